"""What shells use of an event loop, run by hand."""

from __future__ import annotations

from collections.abc import Callable


class ManualTimer:
    """A timer of a `ManualLoop`."""

    def __init__(self, later: list[Callable[[], None]], callback: Callable[[], None]) -> None:
        self._later = later
        self._callback = callback

    def cancel(self) -> None:
        if self._callback in self._later:
            self._later.remove(self._callback)


class ManualLoop:
    """Collects callbacks; the test runs them.

    Attributes:
        due: callbacks of the present wake-up, in order.
        later: callbacks of timers that are neither cancelled nor run, in the order of their calls.
    """

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []

    def soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> ManualTimer:
        assert delay_ms >= 0
        self.later.append(callback)
        return ManualTimer(self.later, callback)

    def wake(self) -> None:
        """Runs the end of the wake-up."""
        while self.due:
            self.due.pop(0)()

    def run_timers(self) -> None:
        """Runs every timer, those that others start included."""
        while self.later:
            self.later.pop(0)()
