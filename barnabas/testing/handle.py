"""Handle: start, stop and operations of a cluster handle; `Cluster` adds the public methods. Clusters end with the process; forked children cannot use them."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from barnabas.runtime.randomness import SystemRng
from barnabas.testing import kit_thread
from barnabas.testing.backend import Backend, Mode, Shape, not_possible
from barnabas.testing.core import Core
from barnabas.testing.errors import KitError, NearestNames, checked_seconds, named_arguments
from barnabas.testing.ports import checked_admin_port

if TYPE_CHECKING:
    from barnabas.testing.admin_port import AdminPort
    from barnabas.testing.clock import KafkaClock
    from barnabas.testing.faults.handles import Fault, Faults
    from barnabas.testing.history.handles import History
    from barnabas.testing.versions import DatedBrokers

T = TypeVar("T")

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


class Handle(NearestNames):
    """Owner of the brokers. `core`, `backend`, `wait` and `wait_async` are for the kit itself."""

    _called = "kafka"
    history_level: ClassVar[str] = ""  # what brokers note from their start on; the pytest plugin sets it for its run
    _shape: Shape | None  # None: of a Kafka that was started elsewhere
    _mode: Mode

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
        """Does what `start` does, as a coroutine of the kit's thread."""
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
        if self._history is None and self.history_level and self._mode != "remote":
            from barnabas.testing.history.handles import History

            self._history = History(self, self.history_level)
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
        """Whether it was started and has not ended."""
        return self._core is not None

    def core(self) -> Core:
        """What runs in the kit's thread. Raises KitError if the cluster does not run, or belongs to another process."""
        if os.getpid() != self._owner:
            raise KitError(
                f"{self!r} was started by process {self._owner} and cannot be used in its forked child {os.getpid()}: "
                "give the child bootstrap_servers, or start a cluster there"
            )
        if self._core is None:
            raise KitError(self._not_running())
        return self._core

    def backend(self, what: str) -> Backend:
        """What carries the brokers. Raises KitError, which names `what`, if the cluster does not run."""
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

    def wire_faults(self) -> Faults:
        """The faults of this cluster. Raises KitError if it does not run, NotPossible if it was started elsewhere."""
        if self.backend("faults").mode == "remote":
            raise not_possible("a fault on the wire", "remote")
        if self._faults is None:
            from barnabas.testing.faults.handles import Faults

            self._faults = Faults(self)
            self.core().extensions.append(self._faults)
        return self._faults

    def noted(self) -> History | None:
        """What brokers have noted so far; None: they note nothing."""
        return self._history

    def installed_faults(self) -> list[Fault]:
        """The faults on the wire that are there now."""
        return [] if self._faults is None else self._faults.all()

    def recorded(self, level: str = "all") -> History:
        """The history of this cluster, recorded from now on. Raises NotPossible if the cluster was started elsewhere."""
        if self._mode == "remote":
            raise not_possible("a history", "remote")
        if self._history is None:
            from barnabas.testing.history.handles import History

            history = History(self)
            self.core().extensions.append(history)
            history.start(level)
            self._history = history
        elif level == "all" and self._history.level != "all" and self._core is not None:
            self._history.start(level)
        return self._history

    def moved_clock(self) -> KafkaClock:
        """The time of this cluster. Raises KitError if it does not run, NotPossible if it was started elsewhere."""
        if self._clock is None:
            from barnabas.testing.clock import KafkaClock

            self.core().own("clock")
            self._clock = KafkaClock(self)
            self.core().extensions.append(self._clock)
        return self._clock

    @property
    def _limit_s(self) -> float:
        """For the kit: longest duration of what a method does. Its parts have deadlines of their own, whose errors tell more."""
        return FACTOR_MAX * self._timeout_s + MARGIN_S

    def wait(self, work: Coroutine[Any, Any, T], factor: int = 1) -> T:
        """Runs a coroutine in the kit's thread and waits for it."""
        return kit_thread.wait(work, factor * self._timeout_s + MARGIN_S)

    async def wait_async(self, work: Coroutine[Any, Any, T], factor: int = 1) -> T:
        """The same for a coroutine of any loop."""
        return await kit_thread.wait_async(work, factor * self._timeout_s + MARGIN_S)
