"""Bug: a producer that retries is not idempotent, so a record is written twice if its acknowledgement is lost."""

from __future__ import annotations

from kafka import KafkaProducer

from tests.testing_kit.zoo.keeper import Zoo, same

SYMPTOM = "twice"


def save(servers: str, correct: bool) -> None:
    """Writes a payment."""
    producer = KafkaProducer(bootstrap_servers=servers, enable_idempotence=correct, acks="all", retries=5)
    producer.send("out", b"10 EUR").get(60)
    producer.close()


def check(zoo: Zoo, correct: bool) -> None:
    """The acknowledgement of a record is lost."""
    zoo.faults.on("Produce", topic="out").disconnect(at="replicated")
    save(zoo.servers, correct)
    same(zoo.written("out"), [b"10 EUR"])
