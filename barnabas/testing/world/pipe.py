"""Pipe: one direction of a connection, of a kit's link that is not free and of every simulated link: bytes that wait for their time, or for
the end of a cut.

Invariants: bytes never overtake each other; nothing is lost or doubled; while the flow is cut nothing is emitted. At most BYTES_MAX wait:
a receiver that is full stops its sender (`is_full`), and what is sent over a cut all the same ends the connection.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from barnabas.ports import Rng


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction.

    Attributes:
        cut: nothing arrives until the cut ends; then everything does, as TCP repeats it.
        latency_s: added to the time of each byte.
        jitter_s: the most that is added to or taken from the latency, drawn for each piece of data. Bytes stay in their order.
        bytes_per_s: 0: without limit.
        slow_close_s: a connection closes this much later.
        reset_s: connections are reset this long after they were made, or after this was written; -1: never.
        resets: how often `reset_s` was written: each time begins the wait anew.
        bytes_max: a connection closes after this many bytes; -1: without limit.
        slice_bytes: the data arrive in pieces of this size; 0: whole.
        slice_variation: the most that a piece is larger or smaller.
        slice_delay_s: between two pieces.
    """

    cut: bool = False
    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = 0.0
    slow_close_s: float = 0.0
    reset_s: float = -1.0
    resets: int = 0
    bytes_max: int = -1
    slice_bytes: int = 0
    slice_variation: int = 0
    slice_delay_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The flow as JSON value."""
        return asdict(self)


FREE: Final = Flow()


def merged(flows: Iterable[Flow]) -> Flow:
    """What several flows do together: delays add up, the smallest limit holds."""
    result = FREE
    for each in flows:
        result = each if result is FREE else _pair(result, each)
    return result


def _pair(one: Flow, two: Flow) -> Flow:
    sliced = min((each for each in (one, two) if each.slice_bytes), key=lambda each: each.slice_bytes, default=FREE)
    return Flow(
        cut=one.cut or two.cut,
        latency_s=one.latency_s + two.latency_s,
        jitter_s=one.jitter_s + two.jitter_s,
        bytes_per_s=min((each.bytes_per_s for each in (one, two) if each.bytes_per_s), default=0.0),
        slow_close_s=one.slow_close_s + two.slow_close_s,
        reset_s=min((each.reset_s for each in (one, two) if each.reset_s >= 0), default=-1.0),
        resets=one.resets + two.resets,
        bytes_max=min((each.bytes_max for each in (one, two) if each.bytes_max >= 0), default=-1),
        slice_bytes=sliced.slice_bytes,
        slice_variation=sliced.slice_variation,
        slice_delay_s=sliced.slice_delay_s,
    )


FULL_BYTES: Final = 1 << 20  # the sender is stopped
BYTES_MAX: Final = 64 << 20  # waiting in one pipe; beyond it, the connection fails
CLOCK_S: Final = 1e-9  # a timer may run this much early: the simulated clock counts nanoseconds

_End = Callable[[], None]


class Pipe:
    """See the module.

    Args:
        deliver: takes bytes that have arrived; returns False if the receiver takes no more before `resume`.
        overflow: called once if more than BYTES_MAX wait.
        context: of the receiver. Bytes arrive in this context only, in a later turn of the loop. None: in that of the caller, at once if
            they are due.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rng: Rng,
        deliver: Callable[[bytes], None],
        overflow: Callable[[], None],
        context: contextvars.Context | None = None,
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._deliver = deliver
        self._overflow = overflow
        self._context = context
        self._items: deque[tuple[float, bytes | _End]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._last_s = 0.0  # time of the last item
        self._passed = 0  # bytes so far
        self._pumping = False
        self.flow = FREE
        self.size = 0
        self.stopped = False  # the receiver takes nothing at present
        self.on_limit: Callable[[], None] = _nothing  # the limit of bytes is reached

    @property
    def idle(self) -> bool:
        """Whether bytes may pass it by."""
        return self.flow is FREE and not self._items and not self.stopped

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._items

    @property
    def is_full(self) -> bool:
        """Whether its sender should wait."""
        return self.size >= FULL_BYTES

    def put(self, data: bytes) -> None:
        """Sends bytes."""
        if self.size + len(data) > BYTES_MAX:
            self._overflow()
            return
        flow = self.flow
        if flow.slice_bytes and len(data) > 1:
            position = 0
            while position < len(data):
                size = flow.slice_bytes
                if flow.slice_variation:
                    size += self._rng.randrange(2 * flow.slice_variation + 1) - flow.slice_variation
                piece = data[position : position + max(size, 1)]
                self._add(piece, flow.slice_delay_s if position else 0.0)
                position += len(piece)
        elif data:
            self._add(data, 0.0)
        self._wake()

    def end(self, end: _End, delay_s: float = 0.0) -> None:
        """Calls `end` after everything that was sent before."""
        self._last_s = max(self._last_s, self._loop.time() + self.flow.latency_s) + delay_s
        self._items.append((self._last_s, end))
        self._wake()

    def shape(self, flow: Flow) -> None:
        """Changes the flow. What waits goes at once unless the link is cut; it was sent before the change."""
        if flow.bytes_max != self.flow.bytes_max:
            self._passed = 0
        self.flow = flow
        self._last_s = 0.0
        self._items = deque((0.0, each) for _, each in self._items)
        self._disarm()
        self._wake()

    def resume(self) -> None:
        """The receiver takes bytes again."""
        self.stopped = False
        self._wake()

    def drop(self) -> None:
        """Forgets what waits."""
        self._items.clear()
        self.size = 0
        self._disarm()

    def _add(self, data: bytes, delay_s: float) -> None:
        flow = self.flow
        latency_s = flow.latency_s
        if flow.jitter_s:
            latency_s = max(0.0, latency_s + flow.jitter_s * (2 * self._rng.random() - 1))
        due_s = max(self._last_s + delay_s, self._loop.time() + latency_s)
        if flow.bytes_per_s:
            due_s += len(data) / flow.bytes_per_s
        self._last_s = due_s
        self._items.append((due_s, data))
        self.size += len(data)

    def _wake(self) -> None:
        if self._context is None:
            self._pump()
        elif self._items and self._timer is None and not self._pumping:
            self._arm(max(self._items[0][0], self._loop.time()))

    def _arm(self, due_s: float) -> None:
        self._timer = self._loop.call_at(due_s, self._fire, context=self._context)

    def _fire(self) -> None:
        self._timer = None
        self._pump()

    def _pump(self) -> None:
        """Emits what is due, and arms a timer for the rest."""
        if self._pumping:
            return
        self._pumping = True
        try:
            self._disarm()
            while self._items and not self.stopped and not self.flow.cut:
                due_s, item = self._items[0]
                if due_s > self._loop.time() + CLOCK_S:
                    self._arm(due_s)
                    return
                self._items.popleft()
                if not isinstance(item, bytes):
                    item()
                    continue
                self.size -= len(item)
                if not self._count(item):
                    return
        finally:
            self._pumping = False

    def _count(self, data: bytes) -> bool:
        """Delivers bytes up to the limit of the flow; False: the limit is reached."""
        limit = self.flow.bytes_max
        if limit >= 0:
            data, left = data[: max(limit - self._passed, 0)], limit - self._passed - len(data)
            self._passed += len(data)
            if data:
                self._deliver(data)
            if left <= 0:
                self.drop()
                self.on_limit()
                return False
            return True
        self._deliver(data)
        return True

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _nothing() -> None:
    pass
