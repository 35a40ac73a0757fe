"""The measured rate of throttled replication, and who is throttled."""

from __future__ import annotations

from barnabas.broker.replica.core.throttle import ReplicationQuota, is_throttled


def test_a_burst_is_waited_for_and_forgotten_in_time() -> None:
    quota = ReplicationQuota(lambda: 1_000)
    assert not quota.exceeded(0)
    quota.record(1_000, 0)
    assert not quota.exceeded(0)  # a second's worth within its second
    quota.record(4_000, 500)
    assert quota.exceeded(500)
    assert quota.exceeded(4_999)
    assert not quota.exceeded(5_000)  # 5,000 bytes in five seconds
    quota.record(100, 5_000)
    assert quota.exceeded(5_000)
    assert not quota.exceeded(20_000)  # every sample is older than eleven seconds


def test_old_samples_are_dropped_one_by_one() -> None:
    quota = ReplicationQuota(lambda: 1_000, window_ms=1_000, samples_max=3)
    for second in range(10):
        quota.record(1_500, second * 1_000)
        assert quota.exceeded(second * 1_000)
    assert not quota.exceeded(11_999)


def test_the_bound_may_change_meanwhile() -> None:
    bound = [10]
    quota = ReplicationQuota(lambda: bound[0])
    quota.record(5_000, 0)
    assert quota.exceeded(1_000)
    bound[0] = 10_000
    assert not quota.exceeded(1_000)


def test_who_is_throttled() -> None:
    assert is_throttled(frozenset({"*"}), 3, 1)
    assert is_throttled(frozenset({"3:1", "4:2"}), 3, 1)
    assert not is_throttled(frozenset({"3:1", "4:2"}), 3, 2)
    assert not is_throttled(frozenset(), 3, 1)
