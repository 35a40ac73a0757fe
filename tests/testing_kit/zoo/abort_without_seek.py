"""Bug: after an aborted transaction the consumer goes on behind the records of that transaction."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.testing_kit.zoo.keeper import Zoo, next_message, reading, same

SYMPTOM = "lost"


def copy(servers: str, correct: bool) -> None:
    """Copies `in` to `out`, a transaction for each record."""
    consumer = Consumer(reading(servers, "copy"))
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "copy"})
    producer.init_transactions(60)
    consumer.subscribe(["in"])
    while (message := next_message(consumer)) is not None:
        offset = message.offset() or 0
        producer.begin_transaction()
        try:
            producer.produce("out", message.value())
            offsets = [TopicPartition("in", 0, offset + 1)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
            producer.commit_transaction(60)
        except KafkaException:
            producer.abort_transaction(60)
            if correct:
                consumer.seek(TopicPartition("in", 0, offset))
    consumer.close()


def check(zoo: Zoo, correct: bool) -> None:
    """The offsets of one transaction are refused."""
    zoo.fill("in", b"0", b"1", b"2")
    zoo.faults.on("TxnOffsetCommit", nth=2).error("GROUP_AUTHORIZATION_FAILED")
    copy(zoo.servers, correct)
    same(zoo.written("out"), [b"0", b"1", b"2"])
