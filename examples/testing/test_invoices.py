"""Tests of the application in invoices.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.errors import KafkaError
from invoices import write_invoices

from barnabas.testing import Cluster
from barnabas.testing.clients import KitConsumer, KitProducer
from barnabas.testing.faults.handles import Faults

pytestmark = pytest.mark.kafka(brokers=3, topics={"orders": 1, "invoices": 1})


@pytest.fixture
def invoices(
    kafka_producer: KitProducer, make_kafka_consumer: Callable[..., KitConsumer]
) -> Callable[[int], list[bytes]]:
    """Reads the committed invoices: `count` of them, and no more before a mark that is written now."""

    def read(count: int) -> list[bytes]:
        kafka_producer.send("invoices", b"end")
        reader = make_kafka_consumer(isolation_level="read_committed", auto_offset_reset="earliest")
        reader.assign(("invoices", 0))
        *values, end = [record.value for record in reader.take(count + 1)]
        assert end == b"end"
        return values

    return read


async def work(kafka: dict[str, Any], count: int) -> None:
    async with asyncio.timeout(60):
        await write_invoices(kafka, count)


async def test_a_broker_dies_between_two_orders(
    kafka: Cluster,
    kafka_producer: KitProducer,
    kafka_aio_config: dict[str, Any],
    invoices: Callable[[int], list[bytes]],
) -> None:
    kafka_producer.send("orders", b"tea")
    await work(kafka_aio_config, 1)
    kafka.kill(kafka.leader("orders"))
    kafka_producer.send("orders", b"milk")
    await work(kafka_aio_config, 1)
    assert invoices(2) == [b"invoice for tea", b"invoice for milk"]


@pytest.mark.parametrize("at", ["received", "applied"])
async def test_a_commit_without_an_answer(
    kafka_producer: KitProducer,
    kafka_aio_config: dict[str, Any],
    kafka_faults: Faults,
    invoices: Callable[[int], list[bytes]],
    at: Any,
) -> None:
    for order in (b"tea", b"milk"):
        kafka_producer.send("orders", order)
    kafka_faults.on("EndTxn", txn="invoices-1").disconnect(at=at)
    await work(kafka_aio_config, 2)
    assert invoices(2) == [b"invoice for tea", b"invoice for milk"]


async def test_a_process_that_was_replaced_writes_nothing(
    kafka_producer: KitProducer,
    kafka_aio_config: dict[str, Any],
    kafka_faults: Faults,
    invoices: Callable[[int], list[bytes]],
) -> None:
    kafka_producer.send("orders", b"tea")
    held = kafka_faults.on("EndTxn", txn="invoices-1").hold()
    replaced = asyncio.create_task(work(kafka_aio_config, 1))
    await held.aio.wait(timeout=60)
    started = kafka_faults.on("InitProducerId", txn="invoices-1").delay(0)
    successor = asyncio.create_task(work(kafka_aio_config, 1))
    await started.aio.wait(timeout=60)
    held.release()
    with pytest.raises(KafkaError):
        await replaced
    await successor
    assert invoices(1) == [b"invoice for tea"]
