"""Pipe: one direction of a connection whose link is not free: bytes that wait for their time, or for the end of a cut.

Invariants: bytes never overtake each other; nothing is lost or doubled; while the flow is cut nothing is emitted. At most BYTES_MAX wait:
a receiver that is full stops its sender (`is_full`), and what is sent over a cut all the same ends the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from barnabas.ports import Rng
from barnabas.testing.world.flow import FREE, Flow

FULL_BYTES: Final = 1 << 20  # the sender is stopped
BYTES_MAX: Final = 64 << 20  # waiting in one pipe; beyond it, the connection fails

_End = Callable[[], None]


class Pipe:
    """See the module.

    Args:
        deliver: takes bytes that have arrived; returns False if the receiver takes no more before `resume`.
        overflow: called once if more than BYTES_MAX wait.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: Rng, deliver: Callable[[bytes], None], overflow: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._deliver = deliver
        self._overflow = overflow
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
        self.pump()

    def end(self, end: _End, delay_s: float = 0.0) -> None:
        """Calls `end` after everything that was sent before."""
        self._last_s = max(self._last_s, self._loop.time() + self.flow.latency_s) + delay_s
        self._items.append((self._last_s, end))
        self.pump()

    def shape(self, flow: Flow) -> None:
        """Changes the flow. What waits goes at once unless the link is cut; it was sent before the change."""
        if flow.bytes_max != self.flow.bytes_max:
            self._passed = 0
        self.flow = flow
        self._last_s = 0.0
        self._items = deque((0.0, each) for _, each in self._items)
        self.pump()

    def resume(self) -> None:
        """The receiver takes bytes again."""
        self.stopped = False
        self.pump()

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

    def pump(self) -> None:
        """Emits what is due, and arms a timer for the rest."""
        if self._pumping:
            return
        self._pumping = True
        try:
            self._disarm()
            while self._items and not self.stopped and not self.flow.cut:
                due_s, item = self._items[0]
                if due_s > self._loop.time():
                    self._timer = self._loop.call_at(due_s, self.pump)
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
