"""An application on confluent-kafka: it writes records, and reports which of them Kafka has acknowledged."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, Message, Producer

__all__ = ["write"]


def write(kafka: dict[str, Any], topic: str, values: list[bytes], delivery_s: float) -> dict[bytes, str]:
    """Writes `values` and returns an outcome for each: "written", or the error after `delivery_s` seconds of attempts."""
    outcomes: dict[bytes, str] = {}

    def note(error: KafkaError | None, message: Message) -> None:
        outcomes[message.value() or b""] = "written" if error is None else error.name()

    producer = Producer({**kafka, "delivery.timeout.ms": int(delivery_s * 1000), "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, on_delivery=note)
    producer.flush()
    return outcomes
