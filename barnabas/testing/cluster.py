"""Cluster and Broker: a Kafka for a test, as a plain object. The work runs in the kit's own thread, never in an event loop of the test."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, ParamSpec, Self, TypeVar

from barnabas.runtime.randomness import SystemRng
from barnabas.testing import kit_thread
from barnabas.testing.backend import Backend, Lose, Mode, RunState, Shape, not_possible
from barnabas.testing.core import Core
from barnabas.testing.errors import KitError, KitTimeout, NearestNames, checked_seconds, named_arguments
from barnabas.testing.kit_thread import Aio, blocking, coroutine
from barnabas.testing.ports import checked_admin_port
from barnabas.testing.world.broker_disk import BrokerDisk
from barnabas.testing.world.groups import GroupActions
from barnabas.testing.world.links import Cut, Link
from barnabas.testing.world.sides import Direction, check_link, checked_direction, linked_sides, side
from barnabas.testing.world.surroundings import LinkState, Surroundings, with_cut

if TYPE_CHECKING:
    from barnabas.testing.admin_port import AdminPort
    from barnabas.testing.clock import KafkaClock
    from barnabas.testing.faults.handles import Fault, Faults
    from barnabas.testing.history.handles import History
    from barnabas.testing.versions import DatedBrokers

P = ParamSpec("P")
T = TypeVar("T")

WAIT_S: Final = 10.0


class ExpectedEndAio(Aio["ExpectedEnd"]):
    """The coroutine of an expected end."""

    @coroutine
    async def wait(self, timeout: float = WAIT_S) -> None:
        """Returns when the broker is down. Raises KitTimeout after `timeout` seconds."""
        timeout = checked_seconds("wait: timeout", timeout, zero=True)
        world, broker_id = self._of._world, self._of._broker
        try:
            async with asyncio.timeout(timeout):
                await world.ended(broker_id)
        except TimeoutError:
            state = world.host.backend("expect_end").state(broker_id)
            raise KitTimeout(f"broker {broker_id} has not ended within {timeout:g} s; it is {state}") from None


class ExpectedEnd(NearestNames):
    """`with kafka.expect_end(2): ...` waits at its end for the broker's exit, unless the block has raised; also as `async with`."""

    def __init__(self, world: Surroundings, broker_id: int) -> None:
        backend = world.host.backend("expect_end")
        if backend.state(broker_id) == "down":
            raise KitError(f"broker {broker_id} is down already, so it cannot end: restart it first")
        self._world = world
        self._broker = broker_id
        world.allow_end(broker_id)

    @property
    def aio(self) -> ExpectedEndAio:
        """The method that waits, as a coroutine."""
        return ExpectedEndAio(self)

    _called = "end"
    wait = blocking(ExpectedEndAio.wait, waits_for_application=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            await self.aio.wait()

    def __repr__(self) -> str:
        return f"<the end of broker {self._broker}>"


TIMEOUT_S = 30.0
SEED_MAX = 2**32
FACTOR_MAX = 10  # of the deadline of a call: `rolling_restart` has it for each broker
MARGIN_S = 5.0  # a call ends by itself at its deadline; the caller waits this much longer


def _checked_topics(topics: Mapping[str, int] | None) -> dict[str, int]:
    if topics is None:
        return {}
    counts = list(topics.values()) if isinstance(topics, Mapping) else [0]
    if not all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in counts):
        raise KitError(f"topics={topics!r}: write names and numbers of partitions, for example {{'orders': 3}}")
    from barnabas.client.errors import KafkaError, check_topic_name

    for name in topics:
        try:
            check_topic_name(name)
        except KafkaError as error:
            raise KitError(f"topics: {error}") from None
    return dict(topics)


def _of_core(
    method: Callable[Concatenate[Core, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The method of a running cluster, for any loop."""

    @wraps(method)
    async def call(aio: ClusterAio, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await method(aio._of.core(), *args, **kwargs)

    call.__qualname__ = f"ClusterAio.{method.__name__}"  # for errors
    return coroutine(named_arguments(call))


class ClusterAio(Aio["Cluster"]):
    """The methods of a cluster as coroutines for asyncio and trio. They run in the kit's thread, so any event loop can await them."""

    async def start(self, *, wait: bool = True) -> None:
        await self._of.wait_async(self._of.begin(wait=wait))

    async def stop(self) -> None:
        await self._of.__aexit__(None, None, None)

    create_topic = _of_core(Core.create_topic)
    delete_topics = _of_core(Core.delete_topics)
    topics = _of_core(Core.topics)
    stop_broker = _of_core(Core.stop_broker)
    restart = _of_core(Core.restart)
    wait_until_ready = _of_core(Core.wait_until_ready)
    pause = _of_core(Core.pause)
    resume = _of_core(Core.resume)
    rolling_restart = _of_core(Core.rolling_restart)
    leader = _of_core(Core.leader)
    controller = _of_core(Core.controller)
    move_leader = _of_core(Core.move_leader)
    move_coordinator = _of_core(Core.move_coordinator)
    kill = _of_core(Core.kill)

    # -- links

    @coroutine
    async def partition(self, one: object, two: object, *, direction: Direction = "both") -> Cut:
        """Cuts the links between two sides, as if cables were pulled: nothing arrives, and no side is told.

        Args:
            one, two: ids of brokers, "clients", or "client:" and a pattern of client ids; several in a list. Clients that are not
                named reach all brokers.
            direction: "both"; "out": only what `one` sends is lost; "in": only what `two` sends.
        """
        return await self._cut(one, two, direction)

    @coroutine
    async def isolate(self, broker_id: int, *, direction: Direction = "both") -> Cut:
        """Cuts the links between a broker and all others; clients still reach it."""
        core = self._of.core()
        others = [each for each in core.backend.broker_ids if each != core.check_broker(broker_id)]
        if not others:
            raise KitError(
                f"broker {broker_id} is the only broker of this cluster; cut its clients off by partition({broker_id}, 'clients')"
            )
        return await self._cut([broker_id], others, direction)

    async def _cut(self, one: object, two: object, direction: object) -> Cut:
        world, checked = Surroundings.of(self._of, "partition"), checked_direction(direction)
        found = linked_sides(one, two, self._of.core().check_broker)
        states = [LinkState(a, b, is_cut=True) for a, b in found]
        await world.set_flows(*(with_cut(each, checked) for each in states))
        return Cut(world, states)

    @coroutine
    async def heal(self) -> None:
        """Ends every cut of `partition` and `isolate`."""
        await Surroundings.of(self._of, "heal").heal()


class BrokerHandle:
    """One broker of a cluster."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self._cluster = cluster
        self.id = broker_id

    @property
    def host(self) -> str:
        """The host for clients."""
        return self._cluster.backend("host").address(self.id)[0]

    @property
    def port(self) -> int:
        """The port for clients; it survives restarts."""
        return self._cluster.backend("port").address(self.id)[1]

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id in mode "process" while it runs; else None."""
        return self._cluster.backend("pid").pid(self.id)

    @property
    def directory(self) -> Path:
        """The data directory, the first of several. Raises NotPossible unless in mode "process"."""
        return self.directories[0]

    @property
    def directories(self) -> tuple[Path, ...]:
        """The log directories. Raises NotPossible unless in mode "process"."""
        return self._cluster.backend("directories").files(self.id).directories

    @property
    def log(self) -> str:
        """All log lines, over all restarts. Raises NotPossible unless in mode "process"."""
        return self._cluster.backend("log").files(self.id).log.read_text(errors="replace")

    @property
    def state(self) -> RunState:
        """ "running", "paused", "down", or "starting" until it serves."""
        return self._cluster.backend("state").state(self.id)

    def kill(self, *, lose: Lose = "nothing") -> None:
        """As `Cluster.kill`."""
        self._cluster.kill(self.id, lose=lose)

    def expect_end(self) -> ExpectedEnd:
        """As `Cluster.expect_end`."""
        return self._cluster.expect_end(self.id)

    def stop(self) -> None:
        """As `Cluster.stop_broker`."""
        self._cluster.stop_broker(self.id)

    def restart(self, *, wait: bool = True) -> None:
        """As `Cluster.restart`."""
        self._cluster.restart(self.id, wait=wait)

    def wait_until_ready(self) -> None:
        """As `Cluster.wait_until_ready`."""
        self._cluster.wait_until_ready(self.id)

    def pause(self) -> None:
        """As `Cluster.pause`."""
        self._cluster.pause(self.id)

    def resume(self) -> None:
        """As `Cluster.resume`."""
        self._cluster.resume(self.id)

    def __repr__(self) -> str:
        return f"<broker {self.id} at {self.address}, {self.state}>"


class Cluster(NearestNames):
    """Brokers for a test. Every method blocks until it is done, with a deadline.

        with Cluster(brokers=3) as kafka:
            kafka.create_topic("orders", partitions=3)
            run_my_application(kafka.bootstrap_servers)
            kafka.kill(2)

    Args:
        brokers: 1 to 9; their ids are 1, 2, …
        mode: "thread": brokers in this process, files in memory. "process": each is a process with files in a temporary directory.
        config: Kafka's broker settings, for example {"log.retention.ms": 1000}.
        node_config: settings of single brokers over `config`, for example {2: {"broker.rack": "b"}}.
        topics: created at the start: name to number of partitions.
        internal_topics: several brokers create the offsets and transactions topics at the start; False: on first use, as in Kafka.
        port: client port of the first broker, the others follow; 0 takes free ports.
        timeout: of one call, in seconds.
        as_version: serve clients as this Kafka release does, for example "3.6"; None: everything supported.
        seed: of the random choices of faults (`probability`, `jitter`); None draws one.
        admin_port: port on 127.0.0.1 for faults over HTTP; 0 takes a free one; None: off.
        security_protocol: of the client listener: "PLAINTEXT", "SSL", "SASL_PLAINTEXT" or "SASL_SSL", which is also its name. Without security
            settings in `config` the kit makes a certificate and a user, see `client_settings`. The kit itself uses an internal listener.
        log_dirs: log directories of each broker, 1 to 9.

    Raises KitError for a wrong argument, with the correct form.
    """

    _called = "kafka"
    _history_level: ClassVar[str] = ""  # what brokers note from their start on; the pytest plugin sets it for its run
    _shape: Shape | None  # None: of a Kafka that was started elsewhere
    _mode: Mode

    @named_arguments
    def __init__(
        self,
        brokers: int = 3,
        *,
        mode: Mode = "thread",
        config: Mapping[str, object] | None = None,
        node_config: Mapping[int, Mapping[str, object]] | None = None,
        topics: Mapping[str, int] | None = None,
        internal_topics: bool = True,
        port: int = 0,
        timeout: float = TIMEOUT_S,
        as_version: str | None = None,
        seed: int | None = None,
        admin_port: int | None = None,
        security_protocol: str = "PLAINTEXT",
        log_dirs: int = 1,
    ) -> None:
        self._shape: Shape | None = Shape.of(brokers, config, port, mode, security_protocol, node_config, log_dirs)
        self._mode: Mode = mode
        self._setup(topics, timeout, seed, admin_port, as_version, internal_topics)

    @classmethod
    def connect(cls, bootstrap_servers: str, *, timeout: float = TIMEOUT_S) -> Self:
        """A handle on a running Kafka (mode "remote"), whose brokers it cannot kill or restart."""
        if not isinstance(bootstrap_servers, str) or not bootstrap_servers.strip():
            raise KitError(f"bootstrap_servers={bootstrap_servers!r}: write HOST:PORT, several separated by commas")
        self = cls.__new__(cls)
        self._shape, self._mode = None, "remote"
        self._setup(None, timeout)
        self._bootstrap = bootstrap_servers
        return self

    def _setup(
        self,
        topics: Mapping[str, int] | None,
        timeout: float,
        seed: int | None = None,
        admin_port: int | None = None,
        as_version: str | None = None,
        internal_topics: bool = True,
    ) -> None:
        if not isinstance(internal_topics, bool):
            raise KitError(f"internal_topics={internal_topics!r}: True or False")
        self._internal_topics = internal_topics
        self._topics = _checked_topics(topics)
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise KitError(f"seed={seed!r}: a whole number")
        self._dated: DatedBrokers | None = None
        if as_version is not None:
            from barnabas.testing.versions import DatedBrokers, check_release

            self._dated = DatedBrokers(check_release(as_version))
        self._timeout_s = checked_seconds("timeout", timeout)
        self._owner = os.getpid()
        self._bootstrap: str | None = None  # of a Kafka that was started elsewhere
        self._backend: Backend | None = None
        self._core: Core | None = None
        self._ended = False  # it has run, and ended
        self._faults: Faults | None = None
        self._history: History | None = None  # stays when the brokers have ended
        self._admin: AdminPort | None = None
        self._admin_port = None if admin_port is None else checked_admin_port(admin_port)
        self._seed = "" if seed is None else str(seed)
        self._clock: KafkaClock | None = None
        self.stop_refusal = ""  # why it must not be ended now

    # -- start and stop

    @named_arguments
    def start(self, *, wait: bool = True) -> Self:
        """Starts the brokers and creates the topics; returns when all serve. Raises KitError.

        `wait`: False returns as soon as the starts have begun, without topics; `wait_until_ready` waits for the brokers.
        """
        self.wait(self.begin(wait=wait))
        return self

    def stop(self) -> None:
        """Ends the brokers. Raises KitError if one had stopped by itself, or if other tests use them, too."""
        if self.stop_refusal:
            raise KitError(self.stop_refusal)
        if self._core is not None:
            self.wait(self._stop())

    async def begin(self, *, wait: bool = True) -> None:
        """For the kit: does what `start` does, as a coroutine of the kit's thread."""
        if self._core is not None:
            raise KitError("the cluster is started already")
        core = self._take(Core(self._new_backend(), self._timeout_s, internal_topics=self._internal_topics))
        try:
            await core.start(self._topics, wait=wait)
            if self._admin_port is not None:
                await self._open_or_stop(core, self._admin_port)
        except BaseException:
            self._forget()
            raise

    def _take(self, core: Core) -> Core:
        backend, self._backend, self._core = core.backend, core.backend, core
        if self._history is None and self._history_level and self._mode != "remote":
            from barnabas.testing.history.handles import History

            self._history = History(self, self._history_level)
        core.extensions.extend(each for each in (self._history, self._dated) if each is not None)
        kit_thread.keep(self, backend.abandon)
        return core

    def hand_over(self) -> Core:
        """For the kit: ends this handle, but not its brokers. They still end with the process."""
        core = self.core()
        self._forget()
        kit_thread.keep(core, core.backend.abandon)
        return core

    async def take_over(self, core: Core) -> None:
        """For the kit: takes what another handle of the same shape has handed over, in place of a start."""
        kit_thread.release(self._take(core))
        for broker_id in core.backend.broker_ids:
            for name, arguments in core.backend.before_start(broker_id):
                await core.backend.command(broker_id, name, arguments)

    async def _open_or_stop(self, core: Core, admin_port: int) -> None:
        try:
            await self.open_admin_port(admin_port)
        except BaseException:
            await core.stop()
            raise

    def _new_backend(self) -> Backend:
        if self._shape is None:
            from barnabas.testing.remote_backend import RemoteBackend

            return RemoteBackend(self._bootstrap or "", self._timeout_s)
        if self._shape.mode == "process":
            from barnabas.testing.process_backend import ProcessBackend

            return ProcessBackend(self._shape)
        from barnabas.testing.thread_backend import ThreadBackend

        return ThreadBackend(self._shape)

    async def _stop(self) -> None:
        core = self.core()
        self._forget()
        failures = await core.stop()
        if failures:
            raise KitError("; ".join(failures))

    def _forget(self) -> None:
        kit_thread.release(self)
        if self._admin is not None:
            self._admin.close()
        self._admin = None
        self._core = self._backend = self._faults = self._clock = None
        self._ended = True

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await self.wait_async(self.begin())
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._core is not None:
            await self.wait_async(self._stop())

    # -- for the other parts of the kit

    @property
    def runs(self) -> bool:
        """For the kit: whether it was started and has not ended."""
        return self._core is not None

    def core(self) -> Core:
        """For the kit: what runs in its thread. Raises KitError if the cluster does not run, or belongs to another process."""
        if os.getpid() != self._owner:
            raise KitError(
                f"{self!r} was started by process {self._owner} and cannot be used in its forked child {os.getpid()}: "
                "give the child bootstrap_servers, or start a cluster there"
            )
        if self._core is None:
            raise KitError(self._not_running())
        return self._core

    def backend(self, what: str) -> Backend:
        """For the kit: what carries the brokers. Raises KitError, which names `what`, if the cluster does not run."""
        if self._backend is None:
            raise KitError(f"{what}: {self._not_running()}")
        return self._backend

    def _not_running(self) -> str:
        name = type(self).__name__
        if self._ended:
            return f"the {name} has ended, with its test, its `with` block or stop(): use it only until then, or call start()"
        return f"the {name} is not started: use `with`, or call start()"

    @property
    def seed(self) -> str:
        """For the kit: the text from which the random choices of faults follow; a random one unless it was set."""
        if not self._seed:
            self._seed = str(SystemRng().randrange(SEED_MAX))
        return self._seed

    @seed.setter
    def seed(self, text: str) -> None:
        self._seed = text

    async def open_admin_port(self, port: int) -> str:
        """For the kit: opens the admin port, if it is not open yet, and returns its URL. Raises KitError."""
        if self.backend("the admin port").mode == "remote":
            raise not_possible("the admin port", "remote")
        if self._admin is None:
            from barnabas.testing.admin_port import AdminPort, AdminRoutes

            self._admin = await AdminPort.open(AdminRoutes(self), port)
        return self._admin.url

    def admin_port(self) -> AdminPort:
        """For the kit: the open admin port. Raises KitError if it is off."""
        if self._admin is None:
            raise KitError(
                "the admin port is off: switch it on by admin_port=0, or in a test by the fixture kafka_admin_url"
            )
        return self._admin

    async def close_admin_port(self) -> None:
        """For the kit: closes it, if it is open."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def noted(self) -> History | None:
        """For the kit: what brokers have noted so far; None: they note nothing."""
        return self._history

    def installed_faults(self) -> list[Fault]:
        """For the kit: the faults on the wire that are there now."""
        return [] if self._faults is None else self._faults.all()

    @property
    def _limit_s(self) -> float:
        """For the kit: longest duration of what a method does. Its parts have deadlines of their own, whose errors tell more."""
        return FACTOR_MAX * self._timeout_s + MARGIN_S

    def wait(self, work: Coroutine[Any, Any, T], factor: int = 1) -> T:
        """For the kit: runs a coroutine in its thread and waits for it."""
        return kit_thread.wait(work, factor * self._timeout_s + MARGIN_S)

    async def wait_async(self, work: Coroutine[Any, Any, T], factor: int = 1) -> T:
        """For the kit: the same for a coroutine of any loop."""
        return await kit_thread.wait_async(work, factor * self._timeout_s + MARGIN_S)

    # -- what it is

    @property
    def aio(self) -> ClusterAio:
        """This handle's methods as coroutines."""
        return ClusterAio(self, self._limit_s)

    @property
    def faults(self) -> Faults:
        """Faults on the wire: `kafka.faults.on("EndTxn").error("COORDINATOR_NOT_AVAILABLE")`."""
        if self.backend("faults").mode == "remote":
            raise not_possible("a fault on the wire", "remote")
        if self._faults is None:
            from barnabas.testing.faults.handles import Faults

            self._faults = Faults(self)
            self.core().extensions.append(self._faults)
        return self._faults

    @property
    def history(self) -> History:
        """What the brokers acknowledge and deliver, from the first use of this attribute."""
        if self._mode == "remote":
            raise not_possible("a history", "remote")
        if self._history is None:
            from barnabas.testing.history.handles import History

            history = History(self)
            self.core().extensions.append(history)
            history.start()
            self._history = history
        elif self._history.level != "all" and self._core is not None:
            self._history.start()
        return self._history

    @property
    def clock(self) -> KafkaClock:
        """The brokers' time: `kafka.clock.advance(hours=25)`."""
        if self._clock is None:
            from barnabas.testing.clock import KafkaClock

            self.core().own("clock")
            self._clock = KafkaClock(self)
            self.core().extensions.append(self._clock)
        return self._clock

    @property
    def admin_url(self) -> str:
        """http://127.0.0.1:PORT of the admin port. Raises KitError if it is off."""
        return self.admin_port().url

    @property
    def mode(self) -> Mode:
        """ "thread", "process" or "remote"."""
        return self._mode

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of every broker, separated by commas."""
        return self._bootstrap or self.backend("bootstrap_servers").bootstrap_servers

    @property
    def client_settings(self) -> dict[str, Any]:
        """Arguments of aiokafka, kafka-python and the bundled client: addresses and, if the kit made the users, the login."""
        return {"bootstrap_servers": self.bootstrap_servers, **self.client_security()}

    def client_security(self, *, librdkafka: bool = False) -> dict[str, Any]:
        """For the kit: the security part of client settings."""
        if self._shape is None or not self._shape.own_security:
            return {}
        from barnabas.testing.secured import aio_settings, librdkafka_settings  # most tests need no TLS

        return (librdkafka_settings if librdkafka else aio_settings)(self._shape.security_protocol)

    @property
    def brokers(self) -> tuple[BrokerHandle, ...]:
        """Running or not, by ascending id."""
        return tuple(BrokerHandle(self, each) for each in self.backend("brokers").broker_ids)

    def broker(self, broker_id: int) -> BrokerHandle:
        """Raises KitError for an unknown id."""
        return BrokerHandle(self, self.core().check_broker(broker_id))

    def __repr__(self) -> str:
        where = "not started" if self._core is None and self._bootstrap is None else self.bootstrap_servers
        return f"<{type(self).__name__} mode={self.mode} {where}>"

    # -- topics, brokers and leaders

    create_topic = blocking(ClusterAio.create_topic)
    delete_topics = blocking(ClusterAio.delete_topics)
    topics = blocking(ClusterAio.topics)
    stop_broker = blocking(ClusterAio.stop_broker)
    restart = blocking(ClusterAio.restart)
    wait_until_ready = blocking(ClusterAio.wait_until_ready)
    pause = blocking(ClusterAio.pause)
    resume = blocking(ClusterAio.resume)
    rolling_restart = blocking(ClusterAio.rolling_restart)
    leader = blocking(ClusterAio.leader)
    controller = blocking(ClusterAio.controller)
    move_leader = blocking(ClusterAio.move_leader)
    kill = blocking(ClusterAio.kill)
    partition = blocking(ClusterAio.partition)
    isolate = blocking(ClusterAio.isolate)
    heal = blocking(ClusterAio.heal)
    move_coordinator = blocking(ClusterAio.move_coordinator)

    def expect_end(self, broker_id: int | None = None) -> ExpectedEnd:
        """The end of a broker, by whatever the test does, is no failure of the test; until the next start of that broker.

        The end of a block `with kafka.expect_end(2):` waits until the broker is down; so does `wait` of the result.
        """
        return ExpectedEnd(Surroundings.of(self, "expect_end"), self.core().check_broker(broker_id))

    def link(self, one: object, two: object, *, direction: Direction = "both") -> Link:
        """The link between two brokers, or a broker and clients, to slow it down or break it.

        Args:
            one, two: the id of a broker, "clients", or "client:" and a pattern of client ids.
            direction: which bytes meet what is written: "both", "out": those that `one` sends, "in": those that `two` sends.
        """
        world, check = Surroundings.of(self, "link"), self.core().check_broker
        a, b = side(one, check), side(two, check)
        check_link(a, b)
        return Link(world, a, b, checked_direction(direction))

    @named_arguments
    def disk(self, broker_id: int, *, log_dir: int | None = None) -> BrokerDisk:
        """The disk of a broker, to make it fail, fill it, slow it down, damage a record, or end the broker at a call.

        Args:
            log_dir: one log directory, from 1, where `log_dirs` gives the brokers several; None: all of them.
        """
        world, known = Surroundings.of(self, "disk"), self.core().backend.log_dirs
        if log_dir is not None and (
            isinstance(log_dir, bool) or not isinstance(log_dir, int) or not 1 <= log_dir <= known
        ):
            raise KitError(
                f"log_dir={log_dir!r}: this cluster has log_dirs={known}, so write a number from 1 to {known}"
            )
        return BrokerDisk(world, self.core().check_broker(broker_id), log_dir)

    def group(self, name: str) -> GroupActions:
        """A consumer group, to see its members, hold their requests or remove one."""
        return GroupActions(self, name)


class Broker(Cluster):
    """A cluster of one broker, whose methods need no broker id."""

    @named_arguments
    def __init__(
        self,
        *,
        mode: Mode = "thread",
        config: Mapping[str, object] | None = None,
        topics: Mapping[str, int] | None = None,
        port: int = 0,
        timeout: float = TIMEOUT_S,
        as_version: str | None = None,
        seed: int | None = None,
        admin_port: int | None = None,
        security_protocol: str = "PLAINTEXT",
        log_dirs: int = 1,
    ) -> None:
        super().__init__(
            1,
            mode=mode,
            config=config,
            topics=topics,
            port=port,
            timeout=timeout,
            as_version=as_version,
            seed=seed,
            admin_port=admin_port,
            security_protocol=security_protocol,
            log_dirs=log_dirs,
        )

    @property
    def port(self) -> int:
        """The port for clients."""
        return self.broker(1).port
