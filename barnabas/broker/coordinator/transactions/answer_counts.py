"""AnswerCounts: refusals of a transaction coordinator, and durations from PREPARE_* to COMPLETE_*."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC
from barnabas.storage.checkpoints import TopicPartition

BOUNDS_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000, 300_000)


class AnswerCounts:
    """Counters that only grow, for the metrics and the log line at the end."""

    __slots__ = ("completed", "completion_ms", "concurrent", "fenced")

    def __init__(self) -> None:
        self.concurrent = 0  # requests answered CONCURRENT_TRANSACTIONS; clients wait 20 to 100 ms after each
        self.fenced = 0  # requests answered PRODUCER_FENCED
        # transactions by duration: bucket i has those of at most BOUNDS_MS[i], the last one all others
        self.completed = [0] * (len(BOUNDS_MS) + 1)
        self.completion_ms = 0  # sum of the durations

    def on_refusal(self, error: BrokerError, *, of_batches: bool = False) -> None:
        """`of_batches`: a verification; the leader counts the batches as fenced."""
        if error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
            self.concurrent += 1
        elif error.code is ErrorCode.PRODUCER_FENCED and not of_batches:
            self.fenced += 1

    def on_completed(self, duration_ms: int) -> None:
        """A clock that went back counts as 0 ms."""
        duration_ms = max(duration_ms, 0)
        self.completed[bisect_left(BOUNDS_MS, duration_ms)] += 1
        self.completion_ms += duration_ms


def are_batches(partitions: Sequence[TopicPartition]) -> bool:
    """Whether a verification of these partitions is for batches, not for offsets of a group."""
    return any(topic != GROUP_METADATA_TOPIC for topic, _ in partitions)
