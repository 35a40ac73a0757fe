"""Series of committed offsets: one row for each partition of a topic with commits of a group, and sums."""

from __future__ import annotations

from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from barnabas.broker.coordinator.groups.records import CommittedOffset
from barnabas.broker.metrics.line_table import LineTable, Series, escaped, labels_text

ROWS_PER_SLICE: Final = 500
NO_OFFSET: Final = -1

PREFIX: Final = "kafka_consumergroup_"
TOPIC_SUMS: Final = (
    Series(PREFIX + "current_offset_sum", "gauge", "The sum of current_offset over the partitions of a topic."),
    Series(PREFIX + "lag_sum", "gauge", "The sum of lag over the partitions of a topic that have a committed offset."),
)
PARTITION_OFFSETS: Final = (
    Series(PREFIX + "current_offset", "gauge", "The committed offset; -1 without one."),
    Series(PREFIX + "lag", "gauge", "Records from the committed offset to the high watermark; -1 without a commit."),
)

_Topic = tuple[str, str]  # group, topic
_Commits = dict[int, tuple[int, int | None]]  # partition → committed offset, end


class _Known(NamedTuple):
    """State of a topic's rows."""

    partitions: int  # rows exist for no partition from this number on
    commits: _Commits | None  # None: the rows were not all updated


class GroupOffsets:
    """Rows of committed offsets; only changed rows are touched. A scrape abandoned within a topic is completed by the next."""

    def __init__(self) -> None:
        self.sums: LineTable[_Topic] = LineTable(  # a row for each topic of a group
            TOPIC_SUMS, lambda key: labels_text(consumergroup=key[0], topic=key[1])
        )
        # a row for each partition of such a topic
        self.offsets: LineTable[tuple[str, str, int]] = LineTable(PARTITION_OFFSETS, lambda key: _labels(*key))
        self._known: dict[_Topic, _Known] = {}

    def put(
        self, key: _Topic, commits: Mapping[int, tuple[int, CommittedOffset]], ends: Sequence[int | None]
    ) -> Generator[None, None, int]:
        """Returns the number of touched rows. `ends` has the high watermark of each partition of the topic; None: unknown."""
        count = len(ends)
        now = {number: (entry[1].offset, ends[number]) for number, entry in commits.items() if number < count}
        known = self._known.get(key, _Known(0, None))
        if known == (count, now):
            return 0
        touched: Iterable[int] = range(count)
        if known.commits is not None:
            former = known.commits
            changed = [number for number, row in now.items() if former.get(number) != row]
            gone = [number for number in former if number not in now and number < count]
            touched = [*changed, *gone, *range(known.partitions, count)]
        self._known[key] = _Known(max(count, known.partitions), None)
        rows = 0
        for rows, number in enumerate(touched, 1):
            self.offsets.put((*key, number), _row(*now.get(number, (NO_OFFSET, None))))
            if rows % ROWS_PER_SLICE == 0:
                yield None
        yield from self._drop_rows(key, range(count, known.partitions))
        self.sums.put(key, _sums(count, now))
        self._known[key] = _Known(count, now)
        return rows

    def drop_all_but(self, kept: Container[_Topic]) -> Iterator[None]:
        for key in [each for each in self._known if each not in kept]:
            known = self._known[key] = self._known[key]._replace(commits=None)
            yield from self._drop_rows(key, range(known.partitions))
            self.sums.drop(key)
            del self._known[key]
            yield None

    def _drop_rows(self, key: _Topic, numbers: range) -> Iterator[None]:
        for rows, number in enumerate(numbers, 1):
            self.offsets.drop((*key, number))
            if rows % ROWS_PER_SLICE == 0:
                yield None


def _row(offset: int, end: int | None) -> tuple[int, int | None]:
    if offset == NO_OFFSET:
        return NO_OFFSET, NO_OFFSET
    return offset, None if end is None else max(end - offset, 0)


def _sums(count: int, commits: _Commits) -> tuple[int, int | None]:
    """Sums over a topic of `count` partitions; a partition without a commit counts as NO_OFFSET and has no lag."""
    offsets = sum(offset for offset, _ in commits.values()) + NO_OFFSET * (count - len(commits))
    lags = [_row(offset, end)[1] for offset, end in commits.values() if offset != NO_OFFSET]
    known = [lag for lag in lags if lag is not None]
    return offsets, sum(known) if len(known) == len(lags) else None


def _labels(group: str, topic: str, number: int) -> str:
    """As `labels_text`, faster for many partitions of a topic."""
    return f'{{consumergroup="{_escaped(group)}",partition="{number}",topic="{_escaped(topic)}"}}'


_escaped = lru_cache(maxsize=1_024)(escaped)
