"""Cluster and Broker: a Kafka for a test, as a plain object.

    with Cluster(brokers=3) as kafka:
        kafka.create_topic("orders", partitions=3)
        run_my_application(kafka.bootstrap_servers)
        kafka.kill(2)

Driven by: a test, from any thread; `async with` and `.aio` from any asyncio or trio loop. Every method blocks until it is done, with
a deadline. The work runs in the kit's own thread (`kit_thread.py`), so no event loop of the test ever runs a broker.

Invariants: a cluster that was started is stopped at the latest when the process ends. A handle refuses use in a forked child.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from barnabas.testing import kit_thread
from barnabas.testing.backend import Backend, BrokerState, Mode, Shape
from barnabas.testing.errors import KitError, named_arguments

if TYPE_CHECKING:
    from barnabas.testing.aio import ClusterAio
    from barnabas.testing.core import Core

__all__ = ["Broker", "BrokerHandle", "Cluster"]

T = TypeVar("T")

TIMEOUT_S = 30.0
MARGIN_S = 5.0  # a call ends by itself at its deadline; the caller waits this much longer


class BrokerHandle:
    """One broker of a cluster."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self._cluster = cluster
        self.id = broker_id

    @property
    def host(self) -> str:
        """The host for clients."""
        return self._cluster._backend_of("host").address(self.id)[0]

    @property
    def port(self) -> int:
        """The port for clients; it stays the same over restarts."""
        return self._cluster._backend_of("port").address(self.id)[1]

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Id of its process in mode "process" while it runs; else None."""
        return self._cluster._backend_of("pid").pid(self.id)

    @property
    def state(self) -> BrokerState:
        """ "running", "paused" or "down"."""
        return self._cluster._backend_of("state").state(self.id)

    def kill(self) -> None:
        """As `Cluster.kill`."""
        self._cluster.kill(self.id)

    def stop(self) -> None:
        """As `Cluster.stop_broker`."""
        self._cluster.stop_broker(self.id)

    def restart(self) -> None:
        """As `Cluster.restart`."""
        self._cluster.restart(self.id)

    def pause(self) -> None:
        """As `Cluster.pause`."""
        self._cluster.pause(self.id)

    def resume(self) -> None:
        """As `Cluster.resume`."""
        self._cluster.resume(self.id)

    def __repr__(self) -> str:
        return f"<broker {self.id} at {self.address}, {self.state}>"


class Cluster:
    """Brokers for a test.

    Args:
        brokers: number of brokers, 1 to 9; their ids are 1, 2, …
        mode: "thread": the brokers run in this process, with their files in memory. "process": each is a process with files in a
            temporary directory, and `kill` is SIGKILL.
        config: Kafka's broker settings, for example {"log.retention.ms": 1000}.
        topics: topics to create at the start, name to number of partitions.
        port: client port of the first broker, the others follow; 0 takes free ports.
        timeout: longest duration of one call, in seconds.

    Raises:
        KitError: an argument is wrong; the text has the correct form.
    """

    @named_arguments
    def __init__(
        self,
        brokers: int = 3,
        *,
        mode: Mode = "thread",
        config: Mapping[str, object] | None = None,
        topics: Mapping[str, int] | None = None,
        port: int = 0,
        timeout: float = TIMEOUT_S,
    ) -> None:
        self._shape: Shape | None = Shape.of(brokers, config, port, mode)
        self._mode: Mode = mode
        self._setup(topics, timeout)

    def _setup(self, topics: Mapping[str, int] | None, timeout: float) -> None:
        self._topics = dict(topics or {})
        self._timeout_s = timeout
        self._owner = os.getpid()
        self._bootstrap: str | None = None  # of a Kafka that was started elsewhere
        self._backend: Backend | None = None
        self._core: Core | None = None

    @classmethod
    def connect(cls, bootstrap_servers: str, *, timeout: float = TIMEOUT_S) -> Cluster:
        """Returns a handle on a Kafka that runs already (mode "remote"). It cannot kill or restart brokers."""
        self = cls.__new__(cls)
        self._shape, self._mode = None, "remote"
        self._setup(None, timeout)
        self._bootstrap = bootstrap_servers
        return self

    # -- start and stop

    def start(self) -> Self:
        """Starts the brokers and creates the topics; returns when all serve. Raises KitError."""
        self._wait(self._start())
        return self

    def stop(self) -> None:
        """Ends the brokers. Raises KitError if one had stopped by itself."""
        if self._core is not None:
            self._wait(self._stop())

    async def _start(self) -> None:
        from barnabas.testing.core import Core

        if self._core is not None:
            raise KitError("the cluster is started already")
        backend = self._backend = self._new_backend()
        core = self._core = Core(backend, self._timeout_s)
        kit_thread.keep(self, backend.abandon)
        try:
            await core.start(self._topics)
        except BaseException:
            self._forget()
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
        core = self._running()
        self._forget()
        failures = await core.stop()
        if failures:
            raise KitError("; ".join(failures))

    def _forget(self) -> None:
        kit_thread.release(self)
        self._core = self._backend = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await self._await(self._start())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._core is not None:
            await self._await(self._stop())

    # -- what it is

    @property
    def aio(self) -> ClusterAio:
        """The methods of this handle as coroutines."""
        from barnabas.testing.aio import ClusterAio

        return ClusterAio(self)

    @property
    def mode(self) -> Mode:
        """ "thread", "process" or "remote"."""
        return self._mode

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of every broker, separated by commas, for the clients of the test."""
        return self._bootstrap or self._backend_of("bootstrap_servers").bootstrap_servers

    @property
    def brokers(self) -> tuple[BrokerHandle, ...]:
        """The brokers, running or not, by ascending id."""
        return tuple(BrokerHandle(self, each) for each in self._backend_of("brokers").broker_ids)

    def broker(self, broker_id: int) -> BrokerHandle:
        """Returns one broker. Raises KitError for an unknown id."""
        return BrokerHandle(self, self._running()._check(broker_id))

    def __repr__(self) -> str:
        where = "not started" if self._core is None and self._bootstrap is None else self.bootstrap_servers
        return f"<{type(self).__name__} mode={self.mode} {where}>"

    # -- topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Creates a topic and returns its name when every broker knows it and its replicas are in sync.

        Args:
            replication_factor: None takes the brokers' default: 3, or the number of brokers if that is less.
            config: Kafka's topic settings, for example {"cleanup.policy": "compact"}.
        """
        return self._wait(self._running().create_topic(name, partitions, replication_factor, config))

    def delete_topics(self, *names: str) -> None:
        """Deletes topics; returns when no broker knows them."""
        self._wait(self._running().delete_topics(list(names)))

    def topics(self) -> list[str]:
        """Names of all topics that are not internal."""
        return self._wait(self._running().topics())

    # -- brokers

    def kill(self, broker_id: int) -> None:
        """Ends a broker as SIGKILL does: without notice, and what it has written stays."""
        self._wait(self._running().kill(broker_id))

    def stop_broker(self, broker_id: int) -> None:
        """Stops a broker cleanly: it hands its leaderships over first."""
        self._wait(self._running().stop_broker(broker_id))

    def restart(self, broker_id: int) -> None:
        """Starts a broker on its data and its port; stops a running one cleanly first, kills a paused one."""
        self._wait(self._running().restart(broker_id))

    def pause(self, broker_id: int) -> None:
        """Stops a broker as SIGSTOP does: its connections stay open, and it answers nothing."""
        self._wait(self._running().pause(broker_id))

    def resume(self, broker_id: int) -> None:
        """Continues a paused broker."""
        self._wait(self._running().resume(broker_id))

    def rolling_restart(self) -> None:
        """Restarts one broker after the other; each is in sync again before the next one stops."""
        self._wait(self._running().rolling_restart(), factor=len(self.brokers))

    # -- leaders

    def leader(self, topic: str, partition: int = 0) -> int:
        """Broker id of the leader of a partition; −1 without one."""
        return self._wait(self._running().leader(topic, partition))

    def controller(self) -> int:
        """Broker id of the active controller; −1 without one."""
        return self._wait(self._running().controller())

    def move_leader(self, topic: str, partition: int = 0, *, to: int | None = None) -> int:
        """Makes another replica the leader of a partition and returns its broker id.

        Args:
            to: a broker with a replica; None takes the next running one.
        """
        return self._wait(self._running().move_leader(topic, partition, to), factor=2)

    # -- for the other parts of the kit

    def _running(self) -> Core:
        if os.getpid() != self._owner:
            raise KitError(
                f"{self!r} was started by process {self._owner} and cannot be used in its forked child {os.getpid()}: "
                "give the child bootstrap_servers, or start a cluster there"
            )
        if self._core is None:
            raise KitError(f"the {type(self).__name__} is not started: use `with`, or call start()")
        return self._core

    def _backend_of(self, what: str) -> Backend:
        if self._backend is None:
            raise KitError(f"{what}: the {type(self).__name__} is not started: use `with`, or call start()")
        return self._backend

    def _wait(self, work: Coroutine[Any, Any, T], factor: int = 1) -> T:
        """Runs a coroutine in the kit's thread and waits for it."""
        return kit_thread.wait(work, factor * self._timeout_s + MARGIN_S)

    async def _await(self, work: Coroutine[Any, Any, T], factor: int = 1) -> T:
        """The same for a coroutine of any loop."""
        return await kit_thread.wait_async(work, factor * self._timeout_s + MARGIN_S)


class Broker(Cluster):
    """One broker alone: a cluster of one, whose methods need no broker id."""

    @named_arguments
    def __init__(
        self,
        *,
        mode: Mode = "thread",
        config: Mapping[str, object] | None = None,
        topics: Mapping[str, int] | None = None,
        port: int = 0,
        timeout: float = TIMEOUT_S,
    ) -> None:
        super().__init__(1, mode=mode, config=config, topics=topics, port=port, timeout=timeout)

    @property
    def port(self) -> int:
        """The port for clients."""
        return self.broker(1).port

    def kill(self, broker_id: int = 1) -> None:
        """Ends the broker as SIGKILL does."""
        super().kill(broker_id)

    def stop_broker(self, broker_id: int = 1) -> None:
        """Stops the broker cleanly; `restart` starts it again."""
        super().stop_broker(broker_id)

    def restart(self, broker_id: int = 1) -> None:
        """Starts the broker again on its data and its port."""
        super().restart(broker_id)

    def pause(self, broker_id: int = 1) -> None:
        """Stops the broker as SIGSTOP does."""
        super().pause(broker_id)

    def resume(self, broker_id: int = 1) -> None:
        """Continues the paused broker."""
        super().resume(broker_id)
