"""Tests of the application in invoices.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from invoices import write_invoices

from barnabas.testing import Cluster
from barnabas.testing.clients import KitConsumer, KitProducer

pytestmark = pytest.mark.kafka(brokers=3, topics={"orders": 1, "invoices": 1})


def invoices(make_kafka_consumer: Callable[..., KitConsumer], count: int) -> list[bytes]:
    """The first `count` invoices of committed transactions."""
    reader = make_kafka_consumer(isolation_level="read_committed", auto_offset_reset="earliest")
    reader.assign(("invoices", 0))
    return [record.value for record in reader.take(count)]


def test_an_invoice_for_each_order(
    kafka_producer: KitProducer, kafka_aio_config: dict[str, Any], make_kafka_consumer: Callable[..., KitConsumer]
) -> None:
    for order in (b"tea", b"milk"):
        kafka_producer.send("orders", order)
    asyncio.run(write_invoices(kafka_aio_config, 2))
    assert invoices(make_kafka_consumer, 2) == [b"invoice for tea", b"invoice for milk"]


def test_a_broker_dies_between_two_orders(
    kafka: Cluster,
    kafka_producer: KitProducer,
    kafka_aio_config: dict[str, Any],
    make_kafka_consumer: Callable[..., KitConsumer],
) -> None:
    kafka_producer.send("orders", b"tea")
    asyncio.run(write_invoices(kafka_aio_config, 1))
    kafka.kill(kafka.leader("orders"))
    kafka_producer.send("orders", b"milk")
    asyncio.run(write_invoices(kafka_aio_config, 1))
    assert invoices(make_kafka_consumer, 2) == [b"invoice for tea", b"invoice for milk"]
