"""Reactor: how a late timer tells that the process was suspended."""

from __future__ import annotations

import pytest

from barnabas.broker.reactor import STALL_MS, Reactor
from barnabas.runtime.randomness import SystemRng


class Clock:
    """A clock that stands still."""

    def __init__(self, monotonic_ms: int) -> None:
        self._monotonic_ms = monotonic_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self._monotonic_ms


@pytest.mark.parametrize(
    ("late_ms", "stall_ms"), [(-1, 0), (0, 0), (STALL_MS, 0), (STALL_MS + 1, STALL_MS + 1), (60_000, 60_000)]
)
def test_a_timer_later_than_any_work_means_that_the_process_was_suspended(late_ms: int, stall_ms: int) -> None:
    failures: list[BaseException] = []
    reactor = Reactor(Clock(100_000 + late_ms), SystemRng(), name="node", on_fatal=failures.append)
    assert reactor.stall_ms(100_000) == stall_ms
    assert not failures
