"""A clock for cores that are tested without a loop."""

from __future__ import annotations

__all__ = ["WALL_MS", "ManualClock"]

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
