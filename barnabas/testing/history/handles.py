"""History: what the brokers of one cluster acknowledged and delivered; `kafka.history` in a test.

    history = kafka.history                     # from here on everything is recorded
    run_my_application()
    assert history.of(Produced, topic="orders")

Driven by: a test, from any thread; brokers, which send events. Emits: commands to the brokers, in the kit's thread.

Recording begins when `kafka.history` is used first; the fixture `kafka_history` does that before the test. The events stay here, so a
broker that dies takes none with it. Memory is bounded: beyond EVENTS_MAX events, or about BYTES_MAX bytes, the oldest are forgotten,
and `forgotten` counts them.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from barnabas.testing.errors import KitError, KitTimeout
from barnabas.testing.extension import Extension
from barnabas.testing.history.events import HistoryEvent, event_of

if TYPE_CHECKING:
    from barnabas.testing.backend import Backend
    from barnabas.testing.core import Core

__all__ = ["EVENTS_MAX", "History"]

EVENTS_MAX: Final = 200_000
BYTES_MAX: Final = 256 * 1024 * 1024
EVENT_BYTES: Final = 900  # of an event, about
PART_BYTES: Final = 150  # of each batch, record or partition in it
SEEN_EVERY: Final = 1_000

E = TypeVar("E", bound=HistoryEvent)
T = TypeVar("T")


class _Cluster(Protocol):
    """What the history needs from the handle of its cluster."""

    def core(self) -> Core: ...

    def backend(self, what: str) -> Backend: ...

    def wait(self, work: Coroutine[Any, Any, T]) -> T: ...


class Ring:
    """The newest events, in the order of their arrival. Any thread may add."""

    def __init__(self, events_max: int = EVENTS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self.forgotten = 0
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        self._events: deque[Mapping[str, Any]] = deque()

    def add(self, event: Mapping[str, Any]) -> None:
        """Adds an event; forgets the oldest ones beyond the limits."""
        with self._lock:
            self._events.append(event)
            self._bytes += _size(event)
            while len(self._events) > self._events_max or self._bytes > self._bytes_max:
                self._bytes -= _size(self._events.popleft())
                self.forgotten += 1

    def events(self) -> list[Mapping[str, Any]]:
        """All of them."""
        with self._lock:
            return list(self._events)

    def clear(self) -> None:
        """Forgets everything, and that it has forgotten."""
        with self._lock:
            self._events.clear()
            self._bytes = self.forgotten = 0


def _size(event: Mapping[str, Any]) -> int:
    return EVENT_BYTES + PART_BYTES * sum(len(event.get(name, ())) for name in ("batches", "records", "offsets"))


class History(Extension):
    """The history of one cluster, from its first use on."""

    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster
        self._ring = Ring()
        self.level = "off"
        self._numbers: dict[int, int] = {}  # by broker: number of the last event
        self._lost = 0  # events that a broker could not send
        self._confirmations: set[asyncio.Task[None]] = set()

    # -- for tests

    @property
    def events(self) -> tuple[HistoryEvent, ...]:
        """Everything that was recorded, in order for each broker; every request that was answered is in it."""
        self.settle()
        return tuple(event_of(each) for each in self._ring.events())

    def of(self, kind: type[E], **wanted: object) -> list[E]:
        """The events of one class of `barnabas.testing.history.events` whose attributes have the given values.

        Raises:
            KitError: the class has no such attribute.
        """
        unknown_one = next((each for each in wanted if each not in kind.__dataclass_fields__), None)
        if unknown_one is not None:
            from barnabas.testing.errors import unknown

            raise KitError(unknown(f"attribute of {kind.__name__}", unknown_one, kind.__dataclass_fields__))
        return [
            each
            for each in self.events
            if isinstance(each, kind) and all(getattr(each, name) == value for name, value in wanted.items())
        ]

    @property
    def forgotten(self) -> int:
        """How many events had no room any more; 0: the history is complete since it began."""
        self.settle()
        return self._ring.forgotten + self._lost

    def clear(self) -> None:
        """Forgets the events so far."""
        self.settle()
        self._ring.clear()
        self._lost = 0

    # -- for the kit

    def start(self, level: str = "all") -> None:
        """Records from now on."""
        self._cluster.wait(self.set_level(level))

    async def set_level(self, level: str) -> None:
        """Tells every broker what to note, as a coroutine of the kit's thread."""
        self.level = level
        backend = self._cluster.backend("history")
        for each in backend.broker_ids:
            if backend.state(each) == "running":
                await backend.command(each, "history_level", self._arguments(backend))

    def _arguments(self, backend: Backend) -> dict[str, Any]:
        return {"level": self.level, **({"sink": self.take} if backend.mode == "thread" else {})}

    async def on_started(self, broker_id: int) -> None:
        """A broker has started again."""
        self._numbers.pop(broker_id, None)
        backend = self._cluster.backend("history")
        await backend.command(broker_id, "history_level", self._arguments(backend))

    def on_event(self, broker_id: int, name: str, value: Any) -> None:
        """As of Extension."""
        if name == "history":
            self._on_noted(value)

    def _on_noted(self, event: Mapping[str, Any]) -> None:
        """A broker in a process of its own has sent an event, in the kit's thread. It keeps what is not confirmed."""
        self.take(event)
        if event["number"] % SEEN_EVERY == 0:
            task = asyncio.get_running_loop().create_task(
                self._confirm(self._cluster.backend("history"), event["broker"])
            )
            self._confirmations.add(task)
            task.add_done_callback(self._confirmed)

    def _confirmed(self, task: asyncio.Task[None]) -> None:
        self._confirmations.discard(task)
        if not task.cancelled():
            task.exception()  # the broker has ended meanwhile

    def take(self, event: Mapping[str, Any]) -> None:
        """A broker has noted something: called in the kit's thread, or in a broker's of this process."""
        broker_id, number = event["broker"], event["number"]
        last = self._numbers.get(broker_id, 0)
        self._lost += max(0, number - last - 1)
        self._numbers[broker_id] = number
        self._ring.add(event)

    def settle(self) -> None:
        """Returns when the events of all answered requests are here. A cluster that has ended sends no more."""
        try:
            self._cluster.wait(self.settled())
        except KitTimeout:
            raise
        except KitError:  # the cluster does not run, or the kit's own thread asks
            return

    async def settled(self) -> None:
        """What `settle` does, as a coroutine of the kit's thread."""
        backend = self._cluster.core().backend
        for each in backend.broker_ids:
            if backend.state(each) == "running":
                await self._confirm(backend, each)

    async def _confirm(self, backend: Backend, broker_id: int) -> None:
        told = await backend.command(broker_id, "history_seen", {"number": self._numbers.get(broker_id, 0)})
        last = self._numbers.get(broker_id, 0)
        self._lost += max(0, told["noted"] - last)
        self._numbers[broker_id] = max(told["noted"], last)
