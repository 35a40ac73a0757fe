"""Bug: the output is in a transaction, the offset of the input is committed after it by the consumer."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.testing_kit.zoo.keeper import Zoo, next_message, reading, same

SYMPTOM = "twice"


def copy(servers: str, correct: bool) -> None:
    """Copies `in` to `out`, a transaction for each record."""
    consumer = Consumer(reading(servers, "copy"))
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "copy"})
    producer.init_transactions(60)
    consumer.subscribe(["in"])
    try:
        while (message := next_message(consumer)) is not None:
            producer.begin_transaction()
            producer.produce("out", message.value())
            if correct:
                offsets = [TopicPartition("in", 0, (message.offset() or 0) + 1)]
                producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
            producer.commit_transaction(60)
            if not correct:
                consumer.commit(message=message, asynchronous=False)
    finally:
        consumer.close()


def check(zoo: Zoo, correct: bool) -> None:
    """The first commit of offsets is refused, the application ends, and starts again."""
    zoo.fill("in", b"0", b"1")
    for api in ("OffsetCommit", "TxnOffsetCommit"):
        zoo.faults.on(api, group="copy", strict=False).error("GROUP_AUTHORIZATION_FAILED")
    with pytest.raises(KafkaException):
        copy(zoo.servers, correct)
    copy(zoo.servers, correct)
    same(zoo.written("out"), [b"0", b"1"])
