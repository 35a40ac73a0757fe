"""Committed and pending offsets of the groups of one shard (KIP-98, KIP-447)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from barnabas.broker.coordinator.groups.records import CommittedOffset, OffsetRecord
from barnabas.broker.coordinator.host.decision import Undo

NO_PRODUCER_ID = -1
CHUNK = 256  # keys in one list

_Key = tuple[str, str, int]  # group id, topic, partition
_Entry = tuple[int, CommittedOffset]  # order of writing, value
_Partitions = dict[int, _Entry]


class OffsetStore:
    """Offsets by group, topic and partition.

    A transaction's offset is pending under its producer id until the marker: a commit makes it the committed one, an abort drops it. Of two
    commits of a partition the one written later counts, whatever the order of their markers: `order` numbers the records in log order.
    Invariants: the (group, topic, partition, producer) of `_open` are exactly those of `_pending`; no dictionary is empty.
    """

    __slots__ = ("_committed", "_open", "_order", "_pending")

    def __init__(self) -> None:
        self._committed: dict[str, dict[str, _Partitions]] = {}
        self._pending: dict[int, dict[_Key, _Entry]] = {}  # by producer id
        self._open: dict[str, dict[tuple[str, int], dict[int, None]]] = {}  # group → partition → producers
        self._order = 0

    # -- reads ---------------------------------------------------------------------------------------------------------

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """The committed offset; pending ones do not count."""
        entry = self._entry(group_id, topic, partition)
        return None if entry is None else entry[1]

    def of_partitions(self, group_id: str, topic: str, partitions: Sequence[int]) -> list[CommittedOffset | None]:
        found = self._committed.get(group_id, {}).get(topic)
        if not found:
            return [None] * len(partitions)
        none: tuple[int, None] = (0, None)
        return [found.get(partition, none)[1] for partition in partitions]

    def existing(self, group_id: str, topic: str, partitions: Iterable[int]) -> list[int]:
        """The partitions that have an offset, committed or pending."""
        committed = self._committed.get(group_id, {}).get(topic, {})
        pending = self._open.get(group_id)
        return [n for n in partitions if n in committed or (pending and (topic, n) in pending)]

    def has_pending(self, group_id: str) -> bool:
        return group_id in self._open

    def topics(self, group_id: str) -> dict[str, dict[int, CommittedOffset]]:
        """A copy of all committed offsets of a group, by topic and partition."""
        return {
            topic: {partition: entry[1] for partition, entry in partitions.items()}
            for topic, partitions in self._committed.get(group_id, {}).items()
        }

    def groups(self) -> Iterable[str]:
        return self._committed

    def of_group(self, group_id: str) -> list[tuple[str, Mapping[int, tuple[int, CommittedOffset]]]]:
        """Committed offsets of a group by topic and partition, each with its order; the partitions are no copies."""
        return list(self._committed.get(group_id, {}).items())

    def chunks(self, group_id: str) -> Iterator[tuple[str, list[int]]]:
        """Partitions with committed offsets: (topic, at most CHUNK partitions). The store may change between two lists."""
        for topic in list(self._committed.get(group_id, ())):
            partitions = list(self._committed.get(group_id, {}).get(topic, ()))
            for start in range(0, len(partitions), CHUNK):
                yield topic, partitions[start : start + CHUNK]

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self._open.get(group_id, ())

    def pending_partitions(self, group_id: str) -> list[tuple[str, int]]:
        return list(self._open.get(group_id, ()))

    def has_any(self, group_id: str) -> bool:
        return group_id in self._committed or group_id in self._open

    @property
    def order(self) -> int:
        """Number of offsets written so far; a later offset has a higher order."""
        return self._order

    def of_topics(self, topics: frozenset[str], order: int) -> Iterator[list[tuple[str, str, int]]]:
        """Offsets of topics, committed or pending, in lists of at most CHUNK (group, topic, partition), each partition once.

        Skips partitions with an offset written after `order`. The store may change between two lists. An empty list is a pause.
        """
        for groups_seen, group_id in enumerate(list(dict.fromkeys([*self._committed, *self._open]))):
            if groups_seen % CHUNK == CHUNK - 1:
                yield []
            by_topic = self._committed.get(group_id, {})
            keys = [(topic, partition) for topic in by_topic if topic in topics for partition in by_topic[topic]]
            keys += [
                (topic, partition)
                for topic, partition in self._open.get(group_id, ())
                if topic in topics and partition not in by_topic.get(topic, ())
            ]
            for start in range(0, len(keys), CHUNK):
                yield [
                    (group_id, topic, partition)
                    for topic, partition in keys[start : start + CHUNK]
                    if self._newest(group_id, topic, partition) <= order
                ]

    def _newest(self, group_id: str, topic: str, partition: int) -> int:
        """Order of the newest offset of a partition, committed or pending; 0 without one."""
        entry = self._entry(group_id, topic, partition)
        newest = 0 if entry is None else entry[0]
        for producer_id in self._open.get(group_id, {}).get((topic, partition), ()):
            newest = max(newest, self._pending[producer_id][group_id, topic, partition][0])
        return newest

    # -- changes -------------------------------------------------------------------------------------------------------

    def put(self, records: Iterable[OffsetRecord], producer_id: int = NO_PRODUCER_ID) -> Undo:
        """Applies records and tombstones in order; returns the undo of all."""
        undos: list[Undo | tuple[str, str, int, _Entry | None]] = []  # most only restore a former entry
        pending = producer_id != NO_PRODUCER_ID
        for group_id, topic, partition, value in records:
            if value is None and group_id in self._open:
                undos.append(self._remove(group_id, topic, partition))
            elif value is None:
                undos.append((group_id, topic, partition, self._pop(group_id, topic, partition)))
            elif pending:
                self._order += 1
                key = (group_id, topic, partition)
                former = self._pending.get(producer_id, {}).get(key)
                self._set_pending(producer_id, key, (self._order, value))
                undos.append(partial(self._restore_pending, producer_id, key, former))
            else:
                self._order += 1
                partitions = self._committed.setdefault(group_id, {}).setdefault(topic, {})
                undos.append((group_id, topic, partition, partitions.get(partition)))
                partitions[partition] = (self._order, value)

        def undo() -> None:
            for each in reversed(undos):
                if isinstance(each, tuple):
                    self._restore(*each)
                else:
                    each()

        return undo

    def complete(self, producer_id: int, *, commit: bool) -> None:
        """Commits or drops the pending offsets of a producer."""
        for key, entry in self._pending.pop(producer_id, {}).items():
            self._close(producer_id, key)
            if commit:
                former = self._entry(*key)
                if former is None or former[0] < entry[0]:
                    self._set(*key, entry)

    def _entry(self, group_id: str, topic: str, partition: int) -> _Entry | None:
        by_topic = self._committed.get(group_id)
        if by_topic is None:
            return None
        partitions = by_topic.get(topic)
        return None if partitions is None else partitions.get(partition)

    def _set(self, group_id: str, topic: str, partition: int, entry: _Entry) -> None:
        self._committed.setdefault(group_id, {}).setdefault(topic, {})[partition] = entry

    def _restore(self, group_id: str, topic: str, partition: int, former: _Entry | None) -> None:
        if former is None:
            self._pop(group_id, topic, partition)
        else:
            self._set(group_id, topic, partition, former)

    def _pop(self, group_id: str, topic: str, partition: int) -> _Entry | None:
        by_topic = self._committed.get(group_id, {})
        partitions = by_topic.get(topic, {})
        former = partitions.pop(partition, None)
        if not partitions:
            by_topic.pop(topic, None)
            if not by_topic:
                self._committed.pop(group_id, None)
        return former

    def _set_pending(self, producer_id: int, key: _Key, entry: _Entry) -> None:
        self._pending.setdefault(producer_id, {})[key] = entry
        self._open.setdefault(key[0], {}).setdefault(key[1:], {})[producer_id] = None

    def _restore_pending(self, producer_id: int, key: _Key, former: _Entry | None) -> None:
        if former is not None:
            self._set_pending(producer_id, key, former)
            return
        entries = self._pending.get(producer_id, {})
        if entries.pop(key, None) is not None:
            self._close(producer_id, key)
        if not entries:
            self._pending.pop(producer_id, None)

    def _close(self, producer_id: int, key: _Key) -> None:
        partitions = self._open.get(key[0], {})
        producers = partitions.get(key[1:], {})
        producers.pop(producer_id, None)
        if not producers:
            partitions.pop(key[1:], None)
        if not partitions:
            self._open.pop(key[0], None)

    def _remove(self, group_id: str, topic: str, partition: int) -> Undo:
        """Also removes pending offsets: they were written before the tombstone."""
        key = (group_id, topic, partition)
        former = self._pop(*key)
        taken: list[tuple[int, _Entry]] = []
        for producer_id in list(self._open.get(group_id, {}).get((topic, partition), ())):
            taken.append((producer_id, self._pending[producer_id][key]))
            self._restore_pending(producer_id, key, None)

        def undo() -> None:
            if former is not None:
                self._set(group_id, topic, partition, former)
            for producer_id, entry in taken:
                self._set_pending(producer_id, key, entry)

        return undo
