"""A record there and back with kafka-python."""

from __future__ import annotations

from typing import Any

from kafka import KafkaConsumer, KafkaProducer

WAIT_S = 30


def kafka_python_round(config: dict[str, Any]) -> bytes:
    """Writes a record, and returns the value that a member of a group reads.

    Args:
        config: of producer and consumer: the address, and what a login needs.
    """
    producer = KafkaProducer(**config)
    producer.send("kafka-python", b"value").get(WAIT_S)
    producer.close()
    consumer = KafkaConsumer("kafka-python", group_id="g", auto_offset_reset="earliest", **config)
    try:
        value = next(iter(consumer)).value
        assert isinstance(value, bytes)
        return value
    finally:
        consumer.close()
