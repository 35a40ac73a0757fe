"""Mode "thread": nodes on memory disks, each in a thread with its own event loop, so `pause` stops exactly one node. A node that is down keeps its port
and disk, and has no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

from barnabas.broker.handlers.logger_levels import restore_levels
from barnabas.runtime.loop_thread import LoopThread
from barnabas.storage.disk import MemoryDisk
from barnabas.testing.backend import BrokerFiles, LocalBackend, Lose, Mode, RunState, killed_text
from barnabas.testing.errors import BrokerKilledError, NotPossible
from barnabas.testing.node_commands import COMMANDS
from barnabas.testing.node_host import NodeHost
from barnabas.testing.world.disks import BrokerKilled

T = TypeVar("T")

_running: WeakSet[ThreadBackend] = WeakSet()


class _Broker:
    """One node: its disks, and its host and thread while it is not down."""

    def __init__(self, node_id: int, settings: dict[str, str]) -> None:
        self.node_id = node_id
        self.settings = settings
        self.disks = [MemoryDisk(each) for each in settings["log.dirs"].split(",")]
        self.host: NodeHost | None = None
        self.thread: LoopThread | None = None
        self.may_end = False
        self.killed = False  # by a fault of its disk
        self.serves = False  # its start has ended

    @property
    def state(self) -> RunState:
        if self.thread is None or not self.thread.alive:
            return "down"
        if self.thread.paused:
            return "paused"
        return "running" if self.serves else "starting"


class ThreadBackend(LocalBackend):
    """See the module, and `Backend`."""

    mode: Mode = "thread"

    def _make_brokers(self, settings: dict[int, dict[str, str]]) -> None:
        for node_id, own in settings.items():
            names = [f"memory-{node_id}", *(f"memory-{node_id}-{n}" for n in range(2, self.log_dirs + 1))]
            self._brokers[node_id] = _Broker(node_id, {**own, "log.dirs": ",".join(names)})

    def pid(self, broker_id: int) -> int | None:
        return None  # it has no process of its own

    def files(self, broker_id: int) -> BrokerFiles:
        raise NotPossible(
            "mode 'thread' keeps the files of a broker in memory, and its log goes to Python's logging: use mode 'process'"
        )

    def abandon(self) -> None:
        for broker in self._brokers.values():
            _end_soon(broker)  # all at once: so none can act on the end of another
        for broker in self._brokers.values():
            _end(broker)
        self._release()
        _running.discard(self)
        if not _running:
            restore_levels()  # nodes in threads share the loggers of this process

    # -- one broker

    async def start_broker(self, broker_id: int) -> None:
        _running.add(self)
        broker = self._brokers[broker_id]
        loop = asyncio.get_running_loop()

        def emit(name: str, value: Any) -> None:
            loop.call_soon_threadsafe(self.on_event, broker_id, name, value)

        def on_fatal(error: BaseException) -> None:
            if not broker.may_end:
                self._failures.append(f"broker {broker_id} stopped by itself: {error}")
            loop.call_soon_threadsafe(_end_failed, broker, host)

        def on_kill(lose: str) -> None:
            broker.killed = True
            _kill(host, broker.disks, lose)
            asyncio.get_running_loop().set_exception_handler(_ignore)  # what its tasks raise from now on is the kill
            thread.end_soon()

        _end(broker)  # one that has ended by itself may not have left its port yet
        broker.may_end = broker.killed = broker.serves = False
        host = NodeHost(broker.settings, broker.disks, COMMANDS, emit=emit, on_fatal=on_fatal, on_kill=on_kill)
        thread = LoopThread(f"barnabas-broker-{broker_id}")
        broker.host, broker.thread = host, thread
        try:
            await self._within(broker, host.start(self.before_start(broker_id)))
        except BaseException:
            _end(broker)
            raise
        broker.serves = True

    async def stop_broker(self, broker_id: int) -> None:
        broker = self._brokers[broker_id]
        if broker.host is not None:
            with contextlib.suppress(BrokerKilledError):
                await self._within(broker, broker.host.stop())
        _end(broker)

    async def kill_broker(self, broker_id: int, lose: Lose = "nothing") -> None:
        _end(self._brokers[broker_id], lose)

    async def pause_broker(self, broker_id: int) -> None:
        thread = self._brokers[broker_id].thread
        if thread is not None:
            thread.pause()

    async def resume_broker(self, broker_id: int) -> None:
        thread = self._brokers[broker_id].thread
        if thread is not None:
            thread.resume()

    async def command(self, broker_id: int, name: str, arguments: Mapping[str, Any]) -> Any:
        broker = self._brokers[broker_id]
        if broker.host is None:
            raise RuntimeError(f"broker {broker_id} is down")
        return await self._within(broker, broker.host.command(name, arguments))

    async def _within(self, broker: _Broker, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the broker's thread."""
        if broker.thread is None:
            work.close()
            raise RuntimeError(f"broker {broker.node_id} is down")
        try:
            return await asyncio.wrap_future(broker.thread.submit(work))
        except (asyncio.CancelledError, BrokerKilled):
            if broker.killed:
                raise BrokerKilledError(killed_text(broker.node_id)) from None
            waiting = asyncio.current_task()
            if waiting is None or waiting.cancelling():
                raise
            raise RuntimeError(f"broker {broker.node_id} has ended before it answered") from None


def _end_soon(broker: _Broker, lose: Lose = "nothing") -> None:
    """Begins to end a node; its disk keeps what was written, as the page cache does when a process is killed."""
    host = broker.host

    def kill() -> None:
        if host is not None:
            _kill(host, broker.disks, lose)

    if broker.thread is not None:
        broker.thread.end_soon(kill)


def _kill(host: NodeHost, disks: Sequence[MemoryDisk], lose: str) -> None:
    """Ends a node, before its tasks are cancelled: what they still do has no effect. Runs in the thread of the node."""
    host.kill()
    for disk in disks:
        if lose == "nothing":
            disk.kill()
        else:
            disk.crash()


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    pass


def _end_failed(broker: _Broker, host: NodeHost) -> None:
    """A node has stopped by itself: its thread ends, too, so the broker is down."""
    if broker.host is host and broker.serves:
        _end_soon(broker)


def _end(broker: _Broker, lose: Lose = "nothing") -> None:
    """Ends a node at once and waits for the end of its thread."""
    _end_soon(broker, lose)
    thread = broker.thread
    broker.host = broker.thread = None
    if thread is not None:
        thread.end()
