"""An application on confluent-kafka: it writes records, and reports which of them Kafka has acknowledged.

A record that is reported as written is there once: the producer is idempotent, so its retries write nothing twice. After an
error the outcome is unknown: the record is there once or not at all.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, Message, Producer

__all__ = ["write"]


def write(kafka: dict[str, Any], topic: str, values: list[bytes], delivery_s: float = 30) -> dict[bytes, str]:
    """Writes `values` and returns an outcome for each: "written", or the error after `delivery_s` seconds of attempts."""
    outcomes: dict[bytes, str] = {}

    def note(error: KafkaError | None, message: Message) -> None:
        outcomes[message.value() or b""] = "written" if error is None else error.name()

    limits = {"delivery.timeout.ms": int(delivery_s * 1000), "linger.ms": 0}
    producer = Producer({**kafka, **limits, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, on_delivery=note)
    producer.flush()
    return outcomes
