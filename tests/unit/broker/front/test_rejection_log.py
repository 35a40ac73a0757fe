"""RejectionLogLimiter: each reason of an address once a minute, and a bounded number of addresses."""

from __future__ import annotations

from barnabas.broker.front.rejection_log import AGAIN_MS, KEPT_MAX, RejectionLogLimiter
from tests.support.clock import ManualClock


def test_a_reason_is_told_again_after_a_minute_or_another_one() -> None:
    clock = ManualClock(0)
    told = RejectionLogLimiter(clock)
    assert not told.before("a", "L", "x")
    assert told.before("a", "L", "x")
    assert not told.before("b", "L", "x")
    assert not told.before("a", "M", "x")
    assert not told.before("a", "L", "y")
    assert not told.before("a", "L", "x")
    clock.time_ms += AGAIN_MS
    assert not told.before("a", "L", "x")


def test_the_oldest_address_is_forgotten() -> None:
    told = RejectionLogLimiter(ManualClock(0))
    for number in range(KEPT_MAX + 1):
        assert not told.before(str(number), "L", "x")
    assert told.before("1", "L", "x")
    assert not told.before("0", "L", "x")
