"""A consumer with local state that survives rebalances: it counts the records of each key of its partitions.

Exactly once in the database: the counts of a partition are stored together with its position, and a new owner continues from
there. A member that was replaced may store later than the new owner; its position is older then, and changes nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

__all__ = ["Tally", "open_database"]

STORE = """
    INSERT INTO tally VALUES (?, ?, ?)
    ON CONFLICT DO UPDATE SET position = excluded.position, counts = excluded.counts WHERE excluded.position > position
"""


def open_database(path: str) -> sqlite3.Connection:
    """Opens the database that all members share."""
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE IF NOT EXISTS tally (partition INTEGER PRIMARY KEY, position INTEGER, counts TEXT)")
    return database


class Tally:
    """A member of the group. It counts in memory, and stores the counts of a partition when it loses the partition."""

    def __init__(self, kafka: dict[str, Any], database: sqlite3.Connection, topic: str) -> None:
        self.counts: dict[int, Counter[str]] = {}
        self.positions: dict[int, int] = {}
        self._database = database
        self._consumer = Consumer({**kafka, "group.id": "tally", "enable.auto.commit": False})
        self._consumer.subscribe([topic], on_assign=self._load, on_revoke=self._store)  # on_lost is on_revoke, too
        self.close = self._consumer.close  # stores all

    def poll(self, timeout_s: float) -> None:
        """Counts the next record, if there is one."""
        record = self._consumer.poll(timeout_s)
        if record is not None and record.error() is None:
            partition = record.partition() or 0
            self.counts[partition][(record.key() or b"").decode()] += 1
            self.positions[partition] = (record.offset() or 0) + 1

    def _load(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        stored = {row[0]: row[1:] for row in self._database.execute("SELECT partition, position, counts FROM tally")}
        for each in partitions:
            each.offset, counts = stored.get(each.partition, (OFFSET_BEGINNING, "{}"))
            self.counts[each.partition] = Counter(json.loads(counts))
        consumer.assign(partitions)

    def _store(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        counts = {each.partition: json.dumps(self.counts.pop(each.partition)) for each in partitions}
        positions = {partition: self.positions.pop(partition) for partition in counts if partition in self.positions}
        with self._database:
            self._database.executemany(STORE, [(each, position, counts[each]) for each, position in positions.items()])
