"""Replication throttles (KIP-73): limit the copy rate of replicas that are out of sync, on leaders and on followers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig

EVERY_REPLICA: Final = "*"


def is_throttled(named: frozenset[str], partition: int, broker_id: int) -> bool:
    """`named`: a topic's `leader.` or `follower.replication.throttled.replicas`, "*" or partition:broker."""
    return bool(named) and (EVERY_REPLICA in named or f"{partition}:{broker_id}" in named)


class ReplicationQuota:
    """A measured and limited rate of bytes (ReplicationQuotaManager, Kafka's SimpleRate).

    Checked before a fetch, not during it: one fetch may exceed it, and the next waits. `bound` returns the limit in bytes a second. The
    last `samples_max` samples count (replication.quota.window.num), each `window_ms` long (replication.quota.window.size.seconds).
    """

    def __init__(self, bound: Callable[[], int], *, window_ms: int = 1_000, samples_max: int = 11) -> None:
        self._bound = bound
        self._window_ms = window_ms
        self._samples: deque[list[int]] = deque(maxlen=samples_max)  # [start time, bytes], the oldest first
        self._kept_ms = window_ms * samples_max

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Bytes of a throttled replica were copied. `now_ms` is monotonic."""
        samples = self._samples
        if samples and now_ms - samples[-1][0] < self._window_ms:
            samples[-1][1] += size_bytes
        else:
            samples.append([now_ms, size_bytes])

    def exceeded(self, now_ms: int) -> bool:
        samples = self._samples
        while samples and now_ms - samples[0][0] >= self._kept_ms:
            samples.popleft()
        if not samples:
            return False
        elapsed_ms = max(now_ms - samples[0][0], self._window_ms)
        return sum(size for _, size in samples) * 1_000 > self._bound() * elapsed_ms


class ReplicationThrottles:
    """The two quotas of a node: for sending to followers, and for fetching from leaders."""

    def __init__(self, config: BrokerConfig) -> None:
        window_ms = config.get_int("replication.quota.window.size.seconds") * 1_000
        samples_max = config.get_int("replication.quota.window.num")
        self.leader = ReplicationQuota(
            lambda: config.get_int("leader.replication.throttled.rate"), window_ms=window_ms, samples_max=samples_max
        )
        self.follower = ReplicationQuota(
            lambda: config.get_int("follower.replication.throttled.rate"), window_ms=window_ms, samples_max=samples_max
        )
