"""A topic that a chaos run of the pipeline reads, and the topic that it writes as an independent client reads it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.support.clients.librdkafka import place_of, value_of

PARTITIONS = 2
QUIET = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 500, "log_level": 0}


class Feed:
    """Numbered records for a topic, evenly over its partitions."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.fed = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})

    def more(self, records: int) -> None:
        """So many more, acknowledged when this returns."""
        failed: list[Any] = []
        for number in range(self.fed, self.fed + records):
            self._producer.produce(
                self.topic,
                b"%d" % number,
                b"%d" % number,
                partition=number % PARTITIONS,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert self._producer.flush(60) == 0
        assert not failed, failed[:3]
        self.fed += records


class Output:
    """A topic as an independent client reads it, read_committed."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.seen: Counter[int] = Counter()
        self._next = dict.fromkeys(range(PARTITIONS), 0)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"judge-{topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                **QUIET,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in self._next])

    @property
    def count(self) -> int:
        return self.seen.total()

    def read(self) -> None:
        """Reads what is available."""
        for message in self._consumer.consume(10_000, 0.1):
            error = message.error()
            if error is None:
                self.seen[int(value_of(message))] += 1
                _, partition, offset = place_of(message)
                self._next[partition] = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                _, partition, offset = place_of(message)
                self._next[partition] = offset

    def read_to(self, ends: Sequence[int], seconds: float = 60.0) -> None:
        """Reads up to these ends, by partition."""
        deadline = time.monotonic() + seconds
        while any(self._next[partition] < end for partition, end in enumerate(ends)):
            assert time.monotonic() < deadline, f"{self.topic} is read to {self._next}, not to {ends}"
            self.read()

    def has(self, count: int) -> bool:
        """Whether so many records are there."""
        self.read()
        return self.count >= count

    def has_all(self, fed: int) -> bool:
        """Whether all the records fed are there."""
        self.read()
        return not self.missing(fed)

    def missing(self, fed: int) -> int:
        """How many of the records fed have not been seen."""
        return fed - len(self.seen)

    def repeated(self) -> int:
        """How many records are there too many."""
        return sum(count - 1 for count in self.seen.values())

    def close(self) -> None:
        self._consumer.close()
