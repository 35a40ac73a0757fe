"""System clock: wall clock and monotonic clock in milliseconds."""

from __future__ import annotations

from time import monotonic_ns, time_ns


class SystemClock:
    """The `Clock` port over the operating system's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump when the machine's clock is set."""
        return time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start; never goes back."""
        return monotonic_ns() // 1_000_000
