"""What a consumer knows of one partition that it reads: positions, what was fetched and not taken, when to ask again.

Driven by: `Fetcher`, which owns the rules.

Invariants: `trail` has the leader epochs of what was fetched below `fetch_offset`; `position` is the next offset to deliver, None while it is looked up; `fetch_offset` ≥ position; `buffered_bytes` is the
size of what `buffered` holds; a raised `age` voids every answer that is on its way.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from barnabas.client.consumer.epoch_trail import EpochTrail
from barnabas.client.consumer.nearest import NearestReplica
from barnabas.client.consumer.read_committed import AbortedFilter
from barnabas.client.errors import KafkaError
from barnabas.client.net.backoff import retry_pause_ms
from barnabas.client.net.metadata import NO_ID, TopicInfo
from barnabas.client.types import Record, TopicPartition
from barnabas.ports import Buffer, Rng

__all__ = ["NEVER", "Fetched", "PartitionState", "Reset"]

NEVER = 1 << 62  # as `not_before_ms`: not fetched again before a seek


class Reset:
    """How a position that is not known is found."""

    COMMITTED = "committed"  # the group's committed offset, then the policy
    EARLIEST = "earliest"
    LATEST = "latest"


class Fetched:
    """What one answer brought for one partition: whole batches, judged and decoded one by one."""

    __slots__ = ("aborted", "end", "position", "records", "size_bytes")

    def __init__(self, records: Buffer, aborted: AbortedFilter | None) -> None:
        self.records = records
        self.aborted = aborted
        self.position = 0  # of the next batch in `records`
        self.end = len(records)
        self.size_bytes = self.end


class PartitionState:
    """One assigned partition."""

    __slots__ = (
        "age",
        "asked",
        "buffered",
        "buffered_bytes",
        "check",
        "failing_since_ms",
        "fetch_offset",
        "fetching",
        "high_watermark",
        "hurried",
        "index",
        "info",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "nearest",
        "not_before_ms",
        "paused",
        "position",
        "ready",
        "ready_next",
        "reset",
        "safe_position",
        "topic_id",
        "tp",
        "trail",
        "trouble",
        "truncated",
    )

    def __init__(self, tp: TopicPartition, position: int | None) -> None:
        self.tp = tp
        self.age = 0  # raised whenever what is on its way no longer fits
        self.paused = False
        self.fetching = False
        self.hurried = True  # moved since the last fetch: it should not wait behind one that waits for news elsewhere
        self.asked = -1  # the node that was last asked
        self.nearest = NearestReplica()
        self.not_before_ms = 0
        self.failing_since_ms = -1  # −1 while that node answers well
        self.high_watermark = -1  # −1 until the first answer
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.position: int | None = position
        self.safe_position: int | None = position  # what an automatic commit may commit: taken and left behind
        self.fetch_offset = position if position is not None else -1
        self.reset: str | None = Reset.COMMITTED if position is None else None
        self.trail = EpochTrail()
        self.leader_epoch = -1  # the position is known to exist in the log of the leader of this epoch
        self.check: Any = None  # the `InFlightCheck` that asks the leader whether it does
        self.truncated = False  # `LogTruncated` was told: only a seek helps
        self.info: TopicInfo | None = None  # the topic, as metadata had it at the last fetch
        self.topic_id = NO_ID
        self.trouble: KafkaError | None = None  # to be raised once what was fetched before it is taken
        self.buffered: deque[Fetched] = deque()
        self.buffered_bytes = 0
        self.ready: list[Record[Any, Any]] = []  # decoded and not yet taken: ready[index:]
        self.index = 0
        self.ready_next = -1  # position after the last of `ready`

    def move(self, position: int | None, reset: str | None = None, epoch: int = -1) -> None:
        """Sets the position anew; what was fetched is dropped.

        Args:
            epoch: of the record before `position`; −1 where it is not known. Known epochs stay where the position goes back.
        """
        trail = self.trail
        if position is None or self.position is None or self.truncated:
            seen = False
        elif epoch >= 0:
            seen = trail.before(position) == epoch
        else:
            seen = position <= self.position and trail.covers(position)
        if not seen:
            trail.begin(epoch, position or 0)
            self.leader_epoch = -1
        self.check = None
        self.truncated = False
        self.trouble = None
        self.failing_since_ms = -1
        self.not_before_ms = 0
        self.position = position
        self.safe_position = position
        self.reset = reset
        self.refetch()

    def refetch(self) -> None:
        """What is fetched next begins at the position again; what was fetched is dropped, and what is on its way."""
        self.age += 1
        self.hurried = True
        self.fetch_offset = self.position if self.position is not None else -1
        self.trail.cut(self.fetch_offset)
        self.buffered.clear()
        self.buffered_bytes = 0
        self.ready = []
        self.index = 0

    def later(self, now_ms: int, first_ms: int, rng: Rng) -> None:
        """Its leader was of no use: asked again after a growing pause, or at once where another node leads by then."""
        if self.failing_since_ms < 0:
            self.failing_since_ms = now_ms
        self.not_before_ms = now_ms + retry_pause_ms(now_ms - self.failing_since_ms, first_ms, rng)

    def on_other_node(self) -> None:
        """Another node than the one that was asked is to be asked now: no pause, and no waiting behind its other partitions."""
        if self.not_before_ms != NEVER:
            self.not_before_ms = 0
            self.failing_since_ms = -1
            self.hurried = True
