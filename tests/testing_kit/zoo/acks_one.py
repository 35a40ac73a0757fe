"""Bug: acks=1. The leader acknowledges a record that no follower has, and dies with it."""

from __future__ import annotations

import threading

from kafka import KafkaProducer

from tests.testing_kit.zoo.keeper import Zoo, same, start

SYMPTOM = "lost"
BROKERS = 3


class Payments:
    """Writes payments."""

    def __init__(self, servers: str, correct: bool) -> None:
        acks = "all" if correct else 1
        self.producer = KafkaProducer(bootstrap_servers=servers, acks=acks, enable_idempotence=correct)
        self.saved = threading.Event()

    def save(self, value: bytes) -> None:
        self.saved.clear()
        self.producer.send("out", value).get(60)
        self.saved.set()


def check(zoo: Zoo, correct: bool) -> None:
    """The followers are cut off: a response on its way to them would bring them the record. Then the leader is killed."""
    kafka, leader = zoo.kafka, zoo.kafka.leader("out")
    followers = [each.id for each in kafka.brokers if each.id != leader]
    payments = Payments(kafka.broker(leader).address, correct)
    payments.save(b"5 EUR")
    with kafka.partition(leader, followers):
        received = zoo.faults.on("Produce", topic="out", broker=leader).delay(0)
        application = start(payments.save, b"10 EUR")
        received.wait(timeout=60)
        if not correct:
            assert payments.saved.wait(60)
        kafka.kill(leader)
    application.join()
    payments.producer.close()
    same(zoo.written("out"), [b"5 EUR", b"10 EUR"])
