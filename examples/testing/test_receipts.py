"""Tests of the application in receipts.py."""

from __future__ import annotations

from typing import Any

from receipts import write

from barnabas.testing import Cluster
from barnabas.testing.clients import KitConsumer
from barnabas.testing.faults.handles import Faults


def test_what_is_reported_as_written_is_there(
    kafka_topic: str, kafka_client_config: dict[str, Any], kafka_consumer: KitConsumer
) -> None:
    assert write(kafka_client_config, kafka_topic, [b"tea", b"milk"]) == {b"tea": "written", b"milk": "written"}
    kafka_consumer.subscribe(kafka_topic)
    assert [record.value for record in kafka_consumer.take(2)] == [b"tea", b"milk"]


def test_a_broker_that_stands_still_has_acknowledged_nothing(
    kafka: Cluster, kafka_topic: str, kafka_client_config: dict[str, Any]
) -> None:
    kafka.pause(1)
    assert write(kafka_client_config, kafka_topic, [b"tea"], 0.5) == {b"tea": "_MSG_TIMED_OUT"}
    kafka.resume(1)
    assert write(kafka_client_config, kafka_topic, [b"milk"]) == {b"milk": "written"}


def test_a_record_whose_acknowledgement_is_lost_is_there_once(
    kafka_topic: str, kafka_client_config: dict[str, Any], kafka_faults: Faults, kafka_consumer: KitConsumer
) -> None:
    kafka_faults.on("Produce", topic=kafka_topic).disconnect(at="applied")
    assert write(kafka_client_config, kafka_topic, [b"tea"]) == {b"tea": "written"}
    assert write(kafka_client_config, kafka_topic, [b"milk"]) == {b"milk": "written"}
    kafka_consumer.subscribe(kafka_topic)
    assert [record.value for record in kafka_consumer.take(2)] == [b"tea", b"milk"]
