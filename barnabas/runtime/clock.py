"""The real clock: the machine's wall clock and its monotonic one, in milliseconds."""

from __future__ import annotations

import time

__all__ = ["SystemClock"]


class SystemClock:
    """The `Clock` port over the operating system's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump when the machine's clock is set."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start; never goes back."""
        return time.monotonic_ns() // 1_000_000
