"""Timers: deadlines of all waiting requests and tasks of a broker, behind one timer of the loop."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from barnabas.errors import InvariantViolated
from barnabas.loggers import logger
from barnabas.ports import Clock

log = logger("kafka.server")

SWEEP_ABOVE = 512  # entries before cancelled ones are removed
CALLS_PER_TURN = 128  # of callbacks whose deadline has passed: 4 ms if each answers a waiting request


class LoopTimer(Protocol):
    """Result of `loop.call_later`."""

    def cancel(self) -> None: ...


class Timer:
    """A callback with a deadline in monotonic milliseconds."""

    __slots__ = ("_timers", "callback", "deadline_ms")

    def __init__(self, timers: Timers, deadline_ms: int, callback: Callable[[], None]) -> None:
        self._timers = timers
        self.deadline_ms = deadline_ms
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Prevents the call; harmless after the call or a cancellation."""
        if self.callback is not None:
            self.callback = None
            self._timers.on_cancelled()


class Timers:
    """All deadlines of a node. Most are cancelled early: a heap entry costs a tenth of a loop timer.

    Cancelled entries are removed when they are the majority. A callback armed by a callback with a delay of 0 runs in a later turn, so a
    chain of them does not block the loop. `call_later` arms the loop's timer: (delay in seconds, callback). `on_broken` gets the
    InvariantViolated of a callback; other exceptions are logged here and end nothing.
    """

    __slots__ = ("_armed", "_armed_for", "_call_later", "_cancelled", "_clock", "_heap", "_on_broken", "_sequence")

    def __init__(
        self,
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], LoopTimer],
        on_broken: Callable[[InvariantViolated], None],
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._on_broken = on_broken
        self._heap: list[tuple[int, int, Timer]] = []  # deadline, arrival: tuples compare without Python code
        self._cancelled = 0
        self._sequence = 0
        self._armed: LoopTimer | None = None
        self._armed_for = 0

    def __len__(self) -> int:
        """Entries that are neither due nor cancelled."""
        return len(self._heap) - self._cancelled

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Calls back after at least `delay_ms`, or 0 if it is negative; never from inside this call."""
        self._sequence += 1
        deadline_ms = self._clock.monotonic_ms() + max(delay_ms, 0)
        timer = Timer(self, deadline_ms, callback)
        heapq.heappush(self._heap, (deadline_ms, self._sequence, timer))
        if self._armed is None or deadline_ms < self._armed_for:
            self._arm(deadline_ms)
        return timer

    @property
    def next_ms(self) -> int | None:
        """The earliest deadline, in monotonic milliseconds; None if nothing waits."""
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def on_clock_moved(self) -> None:
        """The clock was moved forward: due callbacks run from the next turn of the loop on."""
        deadline_ms = self.next_ms
        if deadline_ms is not None:
            self._arm(deadline_ms)

    def stop(self) -> None:
        """Drops all entries; calls nothing any more."""
        self._heap.clear()
        self._cancelled = 0
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None

    def on_cancelled(self) -> None:
        """An entry was cancelled (called by Timer only)."""
        self._cancelled += 1
        if self._cancelled > SWEEP_ABOVE and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def _arm(self, deadline_ms: int) -> None:
        if self._armed is not None:
            self._armed.cancel()
        self._armed_for = deadline_ms
        self._armed = self._call_later(max(deadline_ms - self._clock.monotonic_ms(), 0) / 1000, self._fire)

    def _fire(self) -> None:
        self._armed = None
        now_ms = self._clock.monotonic_ms()
        last = self._sequence
        calls = 0
        while self._heap and self._heap[0][0] <= now_ms and self._heap[0][1] <= last and calls < CALLS_PER_TURN:
            timer = heapq.heappop(self._heap)[2]
            callback, timer.callback = timer.callback, None
            if callback is None:
                self._cancelled -= 1
                continue
            calls += 1
            try:
                callback()
            except InvariantViolated as error:
                self._on_broken(error)
            except Exception:
                log.exception("Callback of a deadline failed")
        deadline_ms = self.next_ms  # a cancelled entry is not worth a wake-up
        if deadline_ms is not None:  # a callback may have armed an earlier one
            self._arm(deadline_ms)
