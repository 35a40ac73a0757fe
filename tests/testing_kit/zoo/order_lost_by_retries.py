"""Bug: several requests are in flight and one is retried, without idempotence: records overtake each other."""

from __future__ import annotations

from confluent_kafka import Producer

from tests.testing_kit.zoo.keeper import Zoo, same

SYMPTOM = "out of order"


def save(servers: str, correct: bool) -> None:
    """Writes the states of an order."""
    settings = {"bootstrap.servers": servers, "enable.idempotence": correct, "batch.num.messages": 1}
    producer = Producer({**settings, "linger.ms": 0, "max.in.flight": 5, "retry.backoff.ms": 500})
    for state in (b"made", b"paid", b"sent"):
        producer.produce("out", state)
    producer.flush(60)


def check(zoo: Zoo, correct: bool) -> None:
    """The first request is refused for now, as while a leader changes."""
    zoo.faults.on("Produce", topic="out").error("NOT_LEADER_OR_FOLLOWER")
    save(zoo.servers, correct)
    same(zoo.written("out"), [b"made", b"paid", b"sent"])
