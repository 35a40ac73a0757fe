"""Tests of the application in alerts.py."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from alerts import watch
from kafka.errors import KafkaError

from barnabas.testing.clients import KitConsumer, KitProducer
from barnabas.testing.faults.handles import Faults

pytestmark = pytest.mark.kafka(topics={"temperatures": 1, "alerts": 1})


@pytest.fixture(autouse=True)
def temperatures(kafka_producer: KitProducer) -> Iterator[None]:
    for value in (b"20", b"90", b"30"):
        kafka_producer.send("temperatures", value, key=b"oven")
    yield
    gc.collect()  # kafka-python 3.0 leaves it a connection that had bytes to send when it was closed: its loop ends before they are sent


def alerts(producer: KitProducer, consumer: KitConsumer, count: int) -> list[bytes]:
    """The alerts: `count` of them, and no more before a mark that is written now."""
    producer.send("alerts", b"end")
    consumer.assign(("alerts", 0))
    *values, end = [record.value for record in consumer.take(count + 1)]
    assert end == b"end"
    return values


def test_an_alert_for_what_is_too_hot(
    kafka_aio_config: dict[str, Any], kafka_producer: KitProducer, kafka_consumer: KitConsumer
) -> None:
    watch(kafka_aio_config, 3)
    assert alerts(kafka_producer, kafka_consumer, 1) == [b"90"]


def test_an_alert_that_kafka_did_not_get_is_written_by_the_next_process(
    kafka_aio_config: dict[str, Any], kafka_producer: KitProducer, kafka_consumer: KitConsumer, kafka_faults: Faults
) -> None:
    lost = kafka_faults.on("Produce", topic="alerts", times=None).drop()
    with pytest.raises(KafkaError):
        watch(kafka_aio_config, 3, timeout_s=2)
    assert lost.hits >= 1
    lost.remove()
    watch(kafka_aio_config, 3)
    assert alerts(kafka_producer, kafka_consumer, 1) == [b"90"]


def test_an_alert_whose_commit_is_lost_is_repeated(
    kafka_aio_config: dict[str, Any], kafka_producer: KitProducer, kafka_consumer: KitConsumer, kafka_faults: Faults
) -> None:
    kafka_faults.on("OffsetCommit", group="alerts").error("REBALANCE_IN_PROGRESS")
    with pytest.raises(KafkaError):
        watch(kafka_aio_config, 3)
    watch(kafka_aio_config, 3)
    assert alerts(kafka_producer, kafka_consumer, 2) == [b"90", b"90"]
