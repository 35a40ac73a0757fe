"""Tests of the application in invoices.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka.errors import KafkaError
from invoices import write_invoices

from barnabas.testing import Cluster
from barnabas.testing.clients import KitConsumer, KitProducer
from barnabas.testing.faults.handles import Faults

pytestmark = pytest.mark.kafka(brokers=3, topics={"orders": 1, "invoices": 1})


Invoices = Callable[[int], Awaitable[list[bytes]]]


@pytest.fixture
def invoices(kafka_producer: KitProducer, make_kafka_consumer: Callable[..., KitConsumer]) -> Invoices:
    """Reads the committed invoices: `count` of them, and no more before a mark that is written now."""

    async def read(count: int) -> list[bytes]:
        await kafka_producer.aio.send("invoices", b"end")
        reader = make_kafka_consumer(isolation_level="read_committed", auto_offset_reset="earliest")
        await reader.aio.assign(("invoices", 0))
        *values, end = [record.value for record in await reader.aio.take(count + 1)]
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
    invoices: Invoices,
) -> None:
    await kafka_producer.aio.send("orders", b"tea")
    await work(kafka_aio_config, 1)
    await kafka.aio.kill(await kafka.aio.leader("orders"))
    await kafka_producer.aio.send("orders", b"milk")
    await work(kafka_aio_config, 1)
    assert await invoices(2) == [b"invoice for tea", b"invoice for milk"]


@pytest.mark.parametrize("at", ["received", "applied"])
async def test_a_commit_without_an_answer(
    kafka_producer: KitProducer,
    kafka_aio_config: dict[str, Any],
    kafka_faults: Faults,
    invoices: Invoices,
    at: Any,
) -> None:
    for order in (b"tea", b"milk"):
        await kafka_producer.aio.send("orders", order)
    kafka_faults.on("EndTxn", txn="invoices-0").disconnect(at=at)
    await work(kafka_aio_config, 2)
    assert await invoices(2) == [b"invoice for tea", b"invoice for milk"]


async def test_no_rebalance_can_come_between(
    kafka: Cluster,
    kafka_producer: KitProducer,
    kafka_aio_config: dict[str, Any],
    kafka_faults: Faults,
    invoices: Invoices,
) -> None:
    for order in (b"tea", b"milk"):
        await kafka_producer.aio.send("orders", order)
    held = kafka_faults.on("TxnOffsetCommit").hold()
    working = asyncio.create_task(work(kafka_aio_config, 2))
    await held.aio.wait(timeout=60)
    assert await kafka.group("invoices").aio.members() == []
    held.release()
    await working
    assert await invoices(2) == [b"invoice for tea", b"invoice for milk"]


async def test_a_process_that_was_replaced_writes_nothing(
    kafka_producer: KitProducer,
    kafka_aio_config: dict[str, Any],
    kafka_faults: Faults,
    invoices: Invoices,
) -> None:
    await kafka_producer.aio.send("orders", b"tea")
    held = kafka_faults.on("EndTxn", txn="invoices-0").hold()
    replaced = asyncio.create_task(work(kafka_aio_config, 1))
    await held.aio.wait(timeout=60)
    started = kafka_faults.on("InitProducerId", txn="invoices-0").delay(0)
    successor = asyncio.create_task(work(kafka_aio_config, 1))
    await started.aio.wait(timeout=60)
    held.release()
    with pytest.raises(KafkaError):
        await replaced
    await successor
    assert await invoices(1) == [b"invoice for tea"]
