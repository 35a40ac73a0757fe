"""Which offsets are read by which task: the pure part of the source.

Driven by: the offsets a cluster told, the options, the filters that Spark pushes down. Emits: ranges of offsets for tasks,
the end offsets of micro-batches.

Invariants: the ranges of a plan are disjoint, in order within a partition, and cover what was asked for; the same input
gives the same plan. The form of offsets in checkpoints is that of Spark's Kafka connector, with one more key for the leader
epochs under which the offsets were told: {"topic":{"0":23},"leader epochs":{"topic":{"0":5}}}. No topic can have that name.
Checkpoints without epochs are as good; only a truncation between two runs of the query goes unseen with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple

from barnabas.client.types import TopicPartition

__all__ = [
    "EPOCHS",
    "OffsetRange",
    "Offsets",
    "Pushdown",
    "epochs_from_json",
    "from_json",
    "limited",
    "split",
    "to_json",
]

EPOCHS = "leader epochs"  # beside the topics in a checkpoint: no topic has a space in its name
Offsets = dict[TopicPartition, int]


class OffsetRange(NamedTuple):
    """The offsets from `start` to before `end` of a partition.

    `epoch` is the partition's leader epoch when the log was seen to hold them, −1 where that is not known: by it a task finds
    out that the log was truncated since.
    """

    topic: str
    partition: int
    start: int
    end: int
    epoch: int = -1

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)


def to_json(
    offsets: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int] | None = None
) -> dict[str, Any]:
    """Offsets as they stand in a checkpoint, in one order whatever theirs is: Spark compares them as text.

    Args:
        epochs: the leader epochs under which the offsets were told. Offset 0 needs none, because no log is truncated below it.
    """
    found: dict[str, Any] = _by_topic(offsets)
    known = {tp: epoch for tp, epoch in (epochs or {}).items() if epoch >= 0 and offsets.get(tp, 0) > 0}
    return found | {EPOCHS: _by_topic(known)} if known else found


def from_json(checkpoint: Mapping[str, Any]) -> Offsets:
    """The offsets of a checkpoint."""
    return _by_partition({topic: each for topic, each in checkpoint.items() if topic != EPOCHS})


def epochs_from_json(checkpoint: Mapping[str, Any]) -> Offsets:
    """The leader epochs of a checkpoint; none in one that an earlier version has written."""
    return _by_partition(checkpoint.get(EPOCHS, {}))


def _by_topic(numbers: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for tp in sorted(numbers):
        found.setdefault(tp.topic, {})[str(tp.partition)] = numbers[tp]
    return found


def _by_partition(numbers: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {TopicPartition(topic, int(p)): n for topic, each in numbers.items() for p, n in each.items()}


def split(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """The ranges cut for tasks: none above `max_records` offsets, and at least `min_partitions` of them if there are so many offsets.

    Of a range as many pieces are made as its share of all offsets earns; they differ by one offset at most.
    """
    whole = [r for r in ranges if r.size]
    counts = [1 if max_records is None else -(-r.size // max_records) for r in whole]
    if min_partitions is not None and sum(counts) < min_partitions:
        total = sum(r.size for r in whole)
        counts = [
            min(r.size, max(count, -(-r.size * min_partitions // total)))
            for r, count in zip(whole, counts, strict=True)
        ]
    return [piece for r, count in zip(whole, counts, strict=True) for piece in _pieces(r, count)]


def _pieces(r: OffsetRange, count: int) -> list[OffsetRange]:
    bounds = [r.start + r.size * i // count for i in range(count + 1)]
    return [r._replace(start=first, end=last) for first, last in pairwise(bounds)]


def limited(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], rows_max: int) -> Offsets:
    """An end at most `rows_max` offsets after `start`, and at `end` at the latest, each partition by its share.

    Every partition that has something gets one offset first, those with most before the others where there is not
    enough for all: no partition starves beside a large one.
    """
    sizes = {tp: max(0, end[tp] - start.get(tp, end[tp])) for tp in sorted(end)}
    total = sum(sizes.values())
    if total <= rows_max:
        return dict(end)
    waiting = sorted((tp for tp in sizes if sizes[tp]), key=lambda tp: -sizes[tp])
    taken = dict.fromkeys(waiting[:rows_max], 1)
    left = rows_max - len(taken)
    if left:
        for tp in waiting:
            taken[tp] += (sizes[tp] - 1) * left // (total - len(waiting))
    spare = rows_max - sum(taken.values())  # lost by rounding down: fewer than there are partitions
    for tp in waiting:
        if spare and taken.get(tp, 0) < sizes[tp]:
            taken[tp] = taken.get(tp, 0) + 1
            spare -= 1
    return {tp: start.get(tp, end[tp]) + taken.get(tp, 0) for tp in end}


class Pushdown:
    """What filters of Spark leave of a plan: topics, partitions, offsets, and a time before which nothing is wanted.

    Invariants: rows that the filters let through are never left out; a filter that `push` gives back is not, or not
    wholly, honoured here.
    """

    def __init__(self) -> None:
        self.topics: frozenset[str] | None = None
        self.partitions: frozenset[int] | None = None
        self.offset_min = 0
        self.offset_end: int | None = None  # exclusive
        self.timestamp_min_ms: int | None = None

    def push(self, filters: Sequence[Any]) -> list[Any]:
        """Takes filters of `pyspark.sql.datasource`, which hold all at once; returns those that Spark has to apply itself."""
        return [each for each in filters if not self._take(each)]

    def narrowed(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """What is left of the ranges; the time is not looked at, the log has to be asked for its offset."""
        found = []
        for r in ranges:
            if self.topics is not None and r.topic not in self.topics:
                continue
            if self.partitions is not None and r.partition not in self.partitions:
                continue
            start = max(r.start, self.offset_min)
            end = r.end if self.offset_end is None else min(r.end, self.offset_end)
            if start < end:
                found.append(r._replace(start=start, end=end))
        return found

    def _take(self, each: Any) -> bool:
        kind = type(each).__name__
        attribute: Any = getattr(each, "attribute", ())
        if len(attribute) != 1:
            return False
        column = attribute[0]
        if kind == "IsNotNull":
            return column in ("topic", "partition", "offset", "timestamp", "timestampType")  # they never are
        value: Any = getattr(each, "value", None)
        if column in ("topic", "partition"):
            if kind not in ("EqualTo", "EqualNullSafe", "In"):
                return False
            wanted = frozenset(value if kind == "In" else (value,)) - {None}
            if column == "topic":
                self.topics = wanted if self.topics is None else self.topics & wanted
            else:
                self.partitions = wanted if self.partitions is None else self.partitions & wanted
            return True
        if column == "offset" and isinstance(value, int):
            return self._take_offset(kind, value)
        if column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
            self._take_time(kind, value)
        return False  # records of one partition need not be in the order of their timestamps

    def _take_offset(self, kind: str, value: int) -> bool:
        low, end = {
            "EqualTo": (value, value + 1),
            "EqualNullSafe": (value, value + 1),
            "GreaterThan": (value + 1, None),
            "GreaterThanOrEqual": (value, None),
            "LessThan": (None, value),
            "LessThanOrEqual": (None, value + 1),
        }.get(kind, (None, None))
        if low is not None:
            self.offset_min = max(self.offset_min, low)
        if end is not None:
            self.offset_end = end if self.offset_end is None else min(self.offset_end, end)
        return low is not None or end is not None

    def _take_time(self, kind: str, value: datetime) -> None:
        if kind in ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"):
            since = value - datetime(1970, 1, 1, tzinfo=UTC)
            ms = (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
            self.timestamp_min_ms = ms if self.timestamp_min_ms is None else max(self.timestamp_min_ms, ms)
