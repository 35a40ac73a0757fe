"""Planner of the source: which task reads which offsets. Pure and deterministic.
Checkpoints have the form of Spark's Kafka connector. Leader epochs are in one more key, which is no valid topic name and
has no partitions, so that readers of topics and offsets skip it: {"topic":{"0":23},"leader epochs {\"topic\":{\"0\":5}}":{}}.
The empty topic there holds the number of tasks, if ranges share tasks: a batch that Spark repeats has the same rows in
the same tasks, whatever options and sizes are now.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple

from barnabas.client.types import TopicPartition

EPOCHS = "leader epochs"  # begins a key beside the topics of a checkpoint: topic names have no spaces
_TASKS = TopicPartition("", 0)
_TASK_ROWS_MIN = 10_000  # a Spark task in Python costs about as much CPU as decoding these
_TASK_BYTES_MIN = 8 * 1024 * 1024
Offsets = dict[TopicPartition, int]


class OffsetRange(NamedTuple):
    """Offsets of a partition from `start` (inclusive) to `end` (exclusive).

    `epoch` is the partition's leader epoch at the time of the plan, −1 unknown, to detect a later truncation of the
    log.
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
    offsets: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int] | None = None, tasks: int | None = None
) -> dict[str, Any]:
    """A checkpoint in canonical order (Spark compares texts), with leader epochs of offsets above 0 and `tasks`."""
    found: dict[str, Any] = _by_topic(offsets)
    known = {tp: epoch for tp, epoch in (epochs or {}).items() if epoch >= 0 and offsets.get(tp, 0) > 0}
    if tasks is not None:
        known[_TASKS] = tasks
    return found | {f"{EPOCHS} {json.dumps(_by_topic(known), separators=(',', ':'))}": {}} if known else found


def from_json(checkpoint: Mapping[str, Any]) -> Offsets:
    return _by_partition(without_epochs(checkpoint)[0])


def epochs_from_json(checkpoint: Mapping[str, Any]) -> Offsets:
    """Leader epochs of a checkpoint; empty if none were known."""
    return _by_partition(json.loads(without_epochs(checkpoint)[1]))


def without_epochs(checkpoint: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The offsets of a checkpoint, and its leader epochs as JSON. Earlier versions have them as the value of the key."""
    offsets, epochs = dict(checkpoint), "{}"
    for key in checkpoint:
        if key.startswith(EPOCHS):
            value = offsets.pop(key)
            epochs = json.dumps(value) if key == EPOCHS else key.removeprefix(EPOCHS)
    return offsets, epochs


def tasks_from_json(checkpoint: Mapping[str, Any]) -> int | None:
    """The number of tasks of the batch that ends at a checkpoint; None: each range has its own."""
    return epochs_from_json(checkpoint).get(_TASKS)


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
    """Splits the ranges for tasks: at most `max_records` offsets each, at least `min_partitions` if possible."""
    whole = [r for r in ranges if r.size]
    counts = [1 if max_records is None else -(-r.size // max_records) for r in whole]
    if min_partitions is not None and sum(counts) < min_partitions:
        total = sum(r.size for r in whole)
        counts = [
            min(r.size, max(count, -(-r.size * min_partitions // total)))
            for r, count in zip(whole, counts, strict=True)
        ]
    return [piece for r, count in zip(whole, counts, strict=True) for piece in _pieces(r, count)]


def tasks_for(
    ranges: Iterable[OffsetRange], record_bytes: Mapping[TopicPartition, float], tasks_max: int | None = None
) -> int:
    """How many tasks are worth their fixed cost, by rows and by bytes (mean size of a record, if it is known)."""
    whole = [r for r in ranges if r.size]
    size_bytes = sum(r.size * record_bytes.get(TopicPartition(r.topic, r.partition), 0) for r in whole)
    by_rows = -(-sum(r.size for r in whole) // _TASK_ROWS_MIN)
    found = min(len(whole), max(by_rows, -(-int(size_bytes) // _TASK_BYTES_MIN)))
    return max(1, found if tasks_max is None else min(found, tasks_max))


def shared(ranges: Sequence[OffsetRange], tasks: int | None) -> list[list[OffsetRange]]:
    """Distributes ranges to at most `tasks` tasks of similar size, in order within each; None: one range a task."""
    if tasks is None or tasks >= len(ranges):
        return [[each] for each in ranges]
    found: list[list[OffsetRange]] = [[] for _ in range(tasks)]
    sizes = [(0, task) for task in range(tasks)]
    for each in sorted(ranges, key=lambda r: -r.size):
        size, task = heapq.heappop(sizes)
        found[task].append(each)
        heapq.heappush(sizes, (size + each.size, task))
    return [sorted(task) for task in found]


def _pieces(r: OffsetRange, count: int) -> list[OffsetRange]:
    bounds = [r.start + r.size * i // count for i in range(count + 1)]
    return [r._replace(start=first, end=last) for first, last in pairwise(bounds)]


def limited(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], rows_max: int) -> Offsets:
    """End offsets at most `rows_max` in total after `start`, in proportion to sizes, so that no partition starves."""
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
    spare = rows_max - sum(taken.values())  # left by rounding down: less than the number of partitions
    for tp in waiting:
        if spare and taken.get(tp, 0) < sizes[tp]:
            taken[tp] = taken.get(tp, 0) + 1
            spare -= 1
    return {tp: start.get(tp, end[tp]) + taken.get(tp, 0) for tp in end}


class TriggerDelay:
    """Holds back small batches: fewer than `rows_min` offsets wait up to `delay_max_ms` after the last batch."""

    def __init__(self, rows_min: int, delay_max_ms: int) -> None:
        self._rows_min = rows_min
        self._delay_max_ms = delay_max_ms
        self._last_ms: int | None = None  # when a batch was last admitted; None: the first one never waits

    def admits(self, rows: int, now_ms: int) -> bool:
        if self._last_ms is not None and rows < self._rows_min and now_ms - self._last_ms < self._delay_max_ms:
            return False
        self._last_ms = now_ms
        return True


class Pushdown:
    """Limits of Spark's filters to a plan: topics, partitions, offsets and an earliest time.

    Rows that pass the filters are never skipped; Spark must apply the filters that `push` returns.
    """

    def __init__(self) -> None:
        self.topics: frozenset[str] | None = None
        self.partitions: frozenset[int] | None = None
        self.offset_min = 0
        self.offset_end: int | None = None  # exclusive
        self.timestamp_min_ms: int | None = None

    def push(self, filters: Sequence[Any]) -> list[Any]:
        """Takes `pyspark.sql.datasource` filters, joined by AND; returns those that Spark must apply itself."""
        return [each for each in filters if not self._take(each)]

    def narrowed(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Narrows the ranges, except by time, which needs a look-up in the log."""
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
            # these columns are never null
            return column in (
                "topic",
                "partition",
                "offset",
                "timestamp",
                "timestampType",
            )
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
        return False  # the records of a partition may be out of timestamp order

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
