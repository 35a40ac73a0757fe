"""Clocks that the test sets: for cores that are tested without a loop, and for nodes."""

from __future__ import annotations

from barnabas.runtime.clock import SystemClock

WALL_MS = 1_700_000_000_000  # the wall clock when the monotonic clock is 0


class ManualClock:
    """A clock that the test sets; the wall clock advances with the monotonic one.

    Args:
        time_ms: the monotonic time.
    """

    def __init__(self, time_ms: int = 0) -> None:
        self.time_ms = time_ms

    def now_ms(self) -> int:
        return WALL_MS + self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms


class StoppedClock(SystemClock):
    """The clock of a node for which no time passes, so that what is measured is the same on a busy machine.

    The timers of the node keep the time of the machine.

    Attributes:
        time_ms: the monotonic time; the test may advance it.
    """

    def __init__(self) -> None:
        self.time_ms = super().monotonic_ms()

    def monotonic_ms(self) -> int:
        return self.time_ms
