"""State of one partition that a consumer reads: positions, fetched records, time of the next fetch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Container
from typing import Any

from barnabas.client.consumer.core.read_committed import AbortedFilter
from barnabas.client.errors import KafkaError
from barnabas.client.net.core.backoff import retry_pause_ms
from barnabas.client.net.core.metadata import NO_ID, TopicInfo
from barnabas.client.types import Record, TopicPartition
from barnabas.limits import EPOCHS_REMEMBERED_MAX
from barnabas.ports import Buffer, Rng

NEVER = 1 << 62  # as `not_before_ms`: not fetched until a seek
_NONE = -1
_WARY_MS = 10_000  # longer than a broker's session: after this time the leader knows of a dead replica


class NearestReplica:
    """The choice for one partition. `node_id` is the replica instead of the leader, or −1."""

    __slots__ = ("_leader_epoch", "_until_ms", "_wary_until_ms", "node_id")

    def __init__(self) -> None:
        self.node_id = _NONE
        self._leader_epoch = -1
        self._until_ms = 0
        self._wary_until_ms = 0

    def advise(self, node_id: int, leader_epoch: int, until_ms: int) -> None:
        self.node_id = node_id
        self._leader_epoch = leader_epoch
        self._until_ms = until_ms

    def choose(self, leader: int, leader_epoch: int, brokers: Container[int], now_ms: int) -> int:
        if self.node_id == _NONE:
            return leader
        if now_ms >= self._until_ms or leader_epoch != self._leader_epoch or self.node_id not in brokers:
            self.node_id = _NONE
            return leader
        return self.node_id

    def give_up(self, now_ms: int) -> None:
        """The replica failed: asks the leader, for a while without the rack, as it may still name the same replica."""
        self.node_id = _NONE
        self._wary_until_ms = now_ms + _WARY_MS

    def wanted(self, now_ms: int) -> bool:
        return now_ms >= self._wary_until_ms


class LeaderEpochHistory:
    """Leader epochs up to a fetch position, strictly increasing. An entry has the first fetched offset of an epoch."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []

    @property
    def latest(self) -> int:
        """Epoch of the last record before the fetch position; −1 unknown."""
        return self._epochs[-1] if self._epochs else -1

    def begin(self, epoch: int = -1, offset: int = 0) -> None:
        """Clears the history; `epoch` ≥ 0 becomes that of the record before `offset`."""
        self._epochs.clear()
        self._starts.clear()
        if epoch >= 0 and offset > 0:
            self._epochs.append(epoch)
            self._starts.append(offset - 1)

    def note(self, epoch: int, offset: int) -> None:
        """The records from `offset` on have `epoch`. An epoch that is not newer is ignored."""
        if epoch > self.latest:
            self._epochs.append(epoch)
            self._starts.append(offset)
            if len(self._epochs) > EPOCHS_REMEMBERED_MAX:
                del self._epochs[0], self._starts[0]

    def before(self, offset: int) -> int:
        index = bisect_left(self._starts, offset)
        return self._epochs[index - 1] if index else -1

    def covers(self, offset: int) -> bool:
        return bool(self._starts) and offset > self._starts[0]

    def cut(self, offset: int) -> None:
        index = bisect_left(self._starts, offset)
        del self._epochs[index:], self._starts[index:]

    def divergence(self, epoch: int, end_offset: int) -> int:
        """First offset where the logs may differ, if the leader's last common epoch `epoch` ends at `end_offset`."""
        index = bisect_right(self._epochs, epoch)
        return min(end_offset, self._starts[index]) if index < len(self._starts) else end_offset


class Reset:
    """How to look up an unknown position."""

    COMMITTED = "committed"  # the group's committed offset; without one, by auto_offset_reset
    EARLIEST = "earliest"
    LATEST = "latest"


class Fetched:
    """Batches of one response for one partition, decoded one by one."""

    __slots__ = ("aborted", "end", "position", "records", "size_bytes")

    def __init__(self, records: Buffer, aborted: AbortedFilter | None) -> None:
        self.records = records
        self.aborted = aborted
        self.position = 0  # of the next batch in `records`
        self.end = len(records)
        self.size_bytes = self.end


class PartitionState:
    """One assigned partition.

    `position` is the next offset to deliver, None while unknown; `fetch_offset` ≥ position. Responses to requests with
    an older `version` are dropped.
    """

    __slots__ = (
        "asked",
        "buffered",
        "buffered_bytes",
        "check",
        "error",
        "failing_since_ms",
        "fetch_offset",
        "fetching",
        "high_watermark",
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
        "truncated",
        "urgent",
        "version",
    )

    def __init__(self, tp: TopicPartition, position: int | None) -> None:
        self.tp = tp
        self.version = 0  # increased whenever requests in flight no longer fit the position
        self.paused = False
        self.fetching = False
        self.urgent = True  # moved since the last fetch: it must not wait for a fetch that waits for new records
        self.asked = -1  # the node of the last request
        self.nearest = NearestReplica()
        self.not_before_ms = 0
        self.failing_since_ms = -1  # time of the first failure of that node; −1 if its last response was good
        self.high_watermark = -1  # −1 until the first response
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.position: int | None = position
        # the offset that an automatic commit may commit: after the processed records
        self.safe_position: int | None = position
        self.fetch_offset = position if position is not None else -1
        self.reset: str | None = Reset.COMMITTED if position is None else None
        self.trail = LeaderEpochHistory()
        self.leader_epoch = -1  # the log of the leader of this epoch contains the position
        self.check: Any = None  # the `InFlightCheck` that asks the leader whether it contains the position
        self.truncated = False  # `LogTruncated` was raised; a seek is needed
        self.info: TopicInfo | None = None  # metadata of the topic at the last fetch
        self.topic_id = NO_ID
        self.error: KafkaError | None = None  # raised once the records before it are taken
        self.buffered: deque[Fetched] = deque()
        self.buffered_bytes = 0
        self.ready: list[Record[Any, Any]] = []  # the decoded batch; ready[index:] is not taken yet
        self.index = 0
        self.ready_next = -1  # position after the last of `ready`

    def move(self, position: int | None, reset: str | None = None, epoch: int = -1) -> None:
        """Sets the position and drops fetched records. `epoch` is that of the record before `position` (−1 unknown)."""
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
        self.error = None
        self.failing_since_ms = -1
        self.not_before_ms = 0
        self.position = position
        self.safe_position = position
        self.reset = reset
        self.refetch()

    def refetch(self) -> None:
        """Drops fetched records and pending responses; fetches again from the position."""
        self.version += 1
        self.urgent = True
        self.fetch_offset = self.position if self.position is not None else -1
        self.trail.cut(self.fetch_offset)
        self.buffered.clear()
        self.buffered_bytes = 0
        self.ready = []
        self.index = 0

    def retry_later(self, now_ms: int, first_ms: int, rng: Rng) -> None:
        """The node failed: fetches after a growing backoff, or at once from another node."""
        if self.failing_since_ms < 0:
            self.failing_since_ms = now_ms
        self.not_before_ms = now_ms + retry_pause_ms(now_ms - self.failing_since_ms, first_ms, rng)

    def on_other_node(self) -> None:
        """Fetches from another node next: without a backoff, and without waiting for a fetch in flight."""
        if self.not_before_ms != NEVER:
            self.not_before_ms = 0
            self.failing_since_ms = -1
            self.urgent = True
