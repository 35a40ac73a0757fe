"""Tests of the application in shipping.py. They are coroutines for pytest-asyncio in its mode auto."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator

import pytest
from shipping import make_broker

from barnabas.testing import Cluster
from barnabas.testing.clients import KitConsumer, KitProducer
from barnabas.testing.faults.handles import Faults

pytestmark = pytest.mark.kafka(topics={"orders": 1, "parcels": 1})


@pytest.fixture(autouse=True)
def collected(kafka: Cluster) -> Iterator[None]:
    yield
    gc.collect()  # FastStream leaves the producer of confluent-kafka to it; without this the kit warns of a leaked client


async def order(producer: KitProducer, item: str) -> None:
    await producer.aio.send("orders", json.dumps({"item": item, "count": 2}).encode())


async def parcels(consumer: KitConsumer, count: int) -> list[str]:
    await consumer.aio.assign(("parcels", 0))
    return [json.loads(record.value)["label"] for record in await consumer.aio.take(count, timeout=60)]


async def test_a_parcel_for_each_order(
    kafka_bootstrap_servers: str, kafka_producer: KitProducer, kafka_consumer: KitConsumer
) -> None:
    async with make_broker(kafka_bootstrap_servers) as broker:
        await broker.start()
        await order(kafka_producer, "tea")
        await order(kafka_producer, "milk")
        assert await parcels(kafka_consumer, 2) == ["2 x tea", "2 x milk"]


async def test_an_order_whose_parcel_was_refused_is_read_again(
    kafka_bootstrap_servers: str, kafka_producer: KitProducer, kafka_consumer: KitConsumer, kafka_faults: Faults
) -> None:
    refused = kafka_faults.on("Produce", topic="parcels").error("INVALID_RECORD")
    async with make_broker(kafka_bootstrap_servers) as broker:
        await broker.start()
        await order(kafka_producer, "tea")
        assert await parcels(kafka_consumer, 1) == ["2 x tea"]
    assert refused.hits == 1


async def test_a_parcel_whose_acknowledgement_is_lost_is_written_once(
    kafka_bootstrap_servers: str, kafka_producer: KitProducer, kafka_consumer: KitConsumer, kafka_faults: Faults
) -> None:
    kafka_faults.on("Produce", topic="parcels").disconnect(at="applied")
    async with make_broker(kafka_bootstrap_servers) as broker:
        await broker.start()
        await order(kafka_producer, "tea")
        await order(kafka_producer, "milk")
        assert await parcels(kafka_consumer, 2) == ["2 x tea", "2 x milk"]
