"""Bug: nobody looks at the delivery reports, so a refused record is lost without a word."""

from __future__ import annotations

from confluent_kafka import KafkaError, Message, Producer

from tests.testing_kit.zoo.keeper import Zoo, same

SYMPTOM = "lost"


def save(servers: str, values: list[bytes], correct: bool) -> None:
    """Writes records."""
    failed: list[bytes] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None and correct:
            failed.append(message.value() or b"")

    producer = Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce("out", value, on_delivery=on_delivery)
    producer.flush(60)
    if failed:
        save(servers, failed, correct)


def check(zoo: Zoo, correct: bool) -> None:
    """A write is refused."""
    zoo.faults.on("Produce", topic="out").error("TOPIC_AUTHORIZATION_FAILED")
    save(zoo.servers, [b"0", b"1"], correct)
    same(zoo.written("out"), [b"0", b"1"])
