"""An application on kafka-python: it reads temperatures and writes an alert for each one that is too high.

At least once: offsets are committed after Kafka has acknowledged the alerts of these records. A crash in between repeats alerts.
"""

from __future__ import annotations

from typing import Any

from kafka import KafkaConsumer, KafkaProducer

__all__ = ["watch"]

LIMIT = 80
IDLE_S = 30


def watch(kafka: dict[str, Any], count: int, timeout_s: float = 30) -> None:
    """Reads the next `count` temperatures.

    Raises kafka.errors.KafkaError if an alert is not acknowledged within `timeout_s`, TimeoutError without temperatures.
    """
    group = {"group_id": "alerts", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    limits = {"delivery_timeout_ms": int(timeout_s * 1000), "request_timeout_ms": int(timeout_s * 900)}
    with KafkaConsumer("temperatures", **kafka, **group) as consumer, KafkaProducer(**kafka, **limits) as producer:
        while count > 0:
            polled = consumer.poll(timeout_ms=int(IDLE_S * 1000), max_records=count)
            if not polled:
                raise TimeoutError(f"no temperature in {IDLE_S} s")
            records = [record for each in polled.values() for record in each]
            hot = [record for record in records if int(record.value) > LIMIT]
            for alert in [producer.send("alerts", record.value, record.key) for record in hot]:
                alert.get()  # raises if Kafka has not acknowledged it
            consumer.commit()
            count -= len(records)
