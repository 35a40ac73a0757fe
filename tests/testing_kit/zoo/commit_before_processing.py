"""Bug: the offset is committed before the record is processed. Who dies between the two loses the record."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from tests.testing_kit.zoo.keeper import Zoo, deliver, next_message, reading, same

SYMPTOM = "lost"


def copy(servers: str, correct: bool) -> None:
    """Copies `in` to `out`."""
    consumer = Consumer(reading(servers, "copy"))
    producer = Producer({"bootstrap.servers": servers})
    consumer.subscribe(["in"])
    try:
        while (message := next_message(consumer)) is not None:
            if not correct:
                consumer.commit(message=message, asynchronous=False)
            deliver(producer, "out", message.value())
            if correct:
                consumer.commit(message=message, asynchronous=False)
    finally:
        consumer.close()


def check(zoo: Zoo, correct: bool) -> None:
    """A write is refused, the application ends, and starts again."""
    zoo.fill("in", b"0", b"1", b"2")
    zoo.faults.on("Produce", topic="out", nth=2).error("INVALID_RECORD")
    with pytest.raises(KafkaException):
        copy(zoo.servers, correct)
    copy(zoo.servers, correct)
    same(zoo.written("out"), [b"0", b"1", b"2"])
