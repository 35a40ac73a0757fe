"""FinalState: logs, transaction steps and committed offsets after a test, as plain values."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

Partition = tuple[str, int]


class LoggedBatch(NamedTuple):
    """One batch in a log. `marker` is "commit" or "abort" for the marker of a transaction, else ""."""

    base_offset: int
    last_offset: int
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    crc: int = 0
    marker: str = ""
    at_ms: int = 0


class TransactionSegment(NamedTuple):
    """The part of one transaction in one partition. `outcome` is "commit", "abort" or "open"; `marker_offset` −1 while it is open."""

    producer_id: int
    outcome: str
    marker_offset: int
    batches: tuple[LoggedBatch, ...]

    @property
    def first_offset(self) -> int:
        """Of its first record, or of its marker if it has none."""
        return self.batches[0].base_offset if self.batches else self.marker_offset


@dataclass(frozen=True)
class HeldLog:
    """One partition, as its leader holds it.

    Attributes:
        start_offset, end_offset: the first offset, and the one after the last.
        exact: the batches have the bytes that clients sent, and none is missing: the topic is not compacted, and the broker
            neither compresses anew nor stamps times.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    batches: tuple[LoggedBatch, ...]
    exact: bool = True

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @cached_property
    def _bases(self) -> list[int]:
        return [each.base_offset for each in self.batches]

    def batch_at(self, offset: int) -> LoggedBatch | None:
        """The batch that has an offset."""
        place = bisect_right(self._bases, offset) - 1
        if place < 0 or self.batches[place].last_offset < offset:
            return None
        return self.batches[place]

    def between(self, first: int, end: int) -> Iterator[LoggedBatch]:
        """Batches that begin at or after an offset, below another."""
        for place in range(bisect_right(self._bases, first - 1), len(self.batches)):
            if self.batches[place].base_offset >= end:
                return
            yield self.batches[place]

    @cached_property
    def segments(self) -> tuple[TransactionSegment, ...]:
        """The transactions, by their markers; open ones last."""
        unfinished: dict[int, list[LoggedBatch]] = {}
        found = []
        for each in self.batches:
            if each.marker:
                batches = tuple(unfinished.pop(each.producer_id, ()))
                found.append(TransactionSegment(each.producer_id, each.marker, each.base_offset, batches))
            elif each.transactional:
                unfinished.setdefault(each.producer_id, []).append(each)
        found += [TransactionSegment(producer_id, "open", -1, tuple(each)) for producer_id, each in unfinished.items()]
        return tuple(found)

    @cached_property
    def _segment_of(self) -> dict[int, TransactionSegment]:
        return {batch.base_offset: segment for segment in self.segments for batch in segment.batches}

    def segment_of(self, batch: LoggedBatch) -> TransactionSegment | None:
        """The transaction of a batch; None if it has none."""
        return self._segment_of.get(batch.base_offset)

    def visible(self, batch: LoggedBatch) -> bool:
        """Whether readers under read_committed get the batch."""
        if batch.marker:
            return False
        segment = self.segment_of(batch)
        return segment is None or segment.outcome == "commit"


class TransactionStep(NamedTuple):
    """One record of `__transaction_state`. `state` is Kafka's name, "Dead" for the deletion of the id."""

    transactional_id: str
    state: str
    producer_id: int = -1
    producer_epoch: int = -1
    partitions: tuple[Partition, ...] = ()
    at_ms: int = -1
    started_ms: int = -1
    timeout_ms: int = 0


@dataclass(frozen=True)
class FinalState:
    """Final state of the brokers."""

    logs: Mapping[Partition, HeldLog] = field(default_factory=dict)  # by topic and partition
    steps: tuple[TransactionStep, ...] = ()  # of all transactional ids, in log order
    # by group, topic and partition; −1: deleted or expired
    offsets: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    unread: tuple[str, ...] = ()  # a sentence for everything that could not be read
