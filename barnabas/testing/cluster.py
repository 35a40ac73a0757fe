"""Cluster and Broker: a Kafka for a test, as a plain object. The work runs in the kit's own thread, never in an event loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar

from barnabas.testing.backend import Lose, Mode, RunState, Shape
from barnabas.testing.core import Core
from barnabas.testing.errors import KitError, KitTimeout, NearestNames, checked_seconds, named_arguments
from barnabas.testing.handle import Handle
from barnabas.testing.kit_thread import Aio, blocking, coroutine
from barnabas.testing.world.broker_disk import BrokerDisk
from barnabas.testing.world.groups import GroupActions
from barnabas.testing.world.links import Cut, Link
from barnabas.testing.world.sides import Direction, check_link, checked_direction, linked_sides, side
from barnabas.testing.world.surroundings import LinkState, Surroundings, with_cut

if TYPE_CHECKING:
    from barnabas.testing.clock import KafkaClock
    from barnabas.testing.faults.handles import Faults
    from barnabas.testing.history.handles import History

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


def _of_core(
    method: Callable[Concatenate[Core, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The method of a running cluster, for any loop."""

    @wraps(method)
    async def call(aio: ClusterAio, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await method(aio._of.core(), *args, **kwargs)

    call.__qualname__ = f"ClusterAio.{method.__name__}"  # for errors
    return coroutine(named_arguments(call))


class ClusterAio(Aio[Handle]):
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


class Cluster(Handle):
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

    # -- what it is

    @property
    def aio(self) -> ClusterAio:
        """This handle's methods as coroutines."""
        return ClusterAio(self, self._limit_s)

    @property
    def faults(self) -> Faults:
        """Faults on the wire: `kafka.faults.on("EndTxn").error("COORDINATOR_NOT_AVAILABLE")`."""
        return self.wire_faults()

    @property
    def history(self) -> History:
        """What the brokers acknowledge and deliver, from the first use of this attribute."""
        return self.recorded()

    @property
    def clock(self) -> KafkaClock:
        """The brokers' time: `kafka.clock.advance(hours=25)`."""
        return self.moved_clock()

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
