"""Reactor: how a late timer tells that the process was suspended."""

from __future__ import annotations

import pytest

from barnabas.broker.scheduling.reactor import STALL_MS, Reactor
from barnabas.runtime.randomness import SystemRng
from tests.support.clock import ManualClock


@pytest.mark.parametrize(
    ("late_ms", "stall_ms"), [(-1, 0), (0, 0), (STALL_MS, 0), (STALL_MS + 1, STALL_MS + 1), (60_000, 60_000)]
)
def test_a_timer_later_than_any_work_means_that_the_process_was_suspended(late_ms: int, stall_ms: int) -> None:
    failures: list[BaseException] = []
    reactor = Reactor(ManualClock(100_000 + late_ms), SystemRng(), name="node", on_fatal=failures.append)
    assert reactor.stall_ms(100_000) == stall_ms
    assert not failures
