"""The bundled client is misused, its callers are cancelled, and the address is nobody's or a stranger's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.client import (
    Admin,
    Consumer,
    HeadersToSend,
    Producer,
    TopicPartition,
)
from barnabas.client.errors import (
    ClientClosed,
    IllegalState,
    SerializationFailed,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from barnabas.client.producer.core.transaction_state import TransactionPhase
from barnabas.testing import Broker
from tests.support.clients.bundled import make_topic, read_all, values

pytestmark = [pytest.mark.clients, pytest.mark.asyncio]


@pytest.fixture(scope="module")
def bootstrap(shared_broker: Broker) -> str:
    return shared_broker.bootstrap_servers


async def test_misuse_says_what_would_be_right(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    producer = Producer(bootstrap_servers=bootstrap)
    with pytest.raises(ClientClosed, match="not started"):
        await producer.send(topic, b"x")
    async with producer:
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 0"):
            await producer.send(topic, b"x", partition=1)
        mistyped: list[dict[str, Any]] = [
            {"value": 42},
            {"value": "text"},
            {"key": "text"},
            {"headers": {"a": 7}},
            {"headers": ["pair"]},
            {"headers": [(b"a", b"b")]},
            {"timestamp_ms": 1.5},
            {"timestamp_ms": -1},
            {"timestamp_ms": 1 << 63},
        ]
        for record in mistyped:
            with pytest.raises(SerializationFailed, match="must be"):
                await producer.send(topic, **record)
        given: tuple[HeadersToSend, ...] = ({"a": "é", "b": b"1"}, [("a", b"2"), ("a", b"2")])
        for headers in given:
            await producer.send_and_wait(topic, b"0", headers=headers)
        assert [record.headers for record in await read_all(bootstrap, topic)] == [
            (("a", "é".encode()), ("b", b"1")),
            (("a", b"2"), ("a", b"2")),
        ]
        mutable = bytearray(b"as it was")
        future = await producer.send(topic, mutable, memoryview(b"key"))
        mutable[:] = b"as it is "
        await future
        assert values(await read_all(bootstrap, topic)) == [b"0", b"0", b"as it was"], "what was refused harmed nothing"
        with pytest.raises(IllegalState, match="transactional_id"):
            await producer.begin_transaction()
    with pytest.raises(ClientClosed, match="closed"):
        await producer.send(topic, b"x")
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        with pytest.raises(IllegalState, match="begin one first"):
            await producer.send(topic, b"x")
        async with producer.transaction():
            with pytest.raises(IllegalState, match="one transaction at a time"):
                await producer.begin_transaction()
    async with Consumer(bootstrap_servers=bootstrap) as consumer:
        with pytest.raises(IllegalState, match="group_id"):
            await consumer.commit()
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(IllegalState, match="unsubscribe"):
            consumer.subscribe([topic])
    with pytest.raises(ClientClosed):
        await consumer.getone()
    with pytest.raises(TopicAlreadyExists):
        await make_topic(admin, topic)
    with pytest.raises(UnknownTopicOrPartition):
        await admin.delete_topics([f"{name}-never"])


async def test_cancelled_callers_leave_a_usable_producer(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        for n in range(20):
            await producer.begin_transaction()
            await producer.send(topic, b"%d" % n)
            committing = asyncio.create_task(producer.commit_transaction())
            for _ in range(n):
                await asyncio.sleep(0)
            committing.cancel()
            try:
                await committing
            except asyncio.CancelledError:
                # Where the commit had begun it goes on: ask again for its outcome, or just begin the next transaction.
                if n % 2 or producer.transaction_state is TransactionPhase.IN_TRANSACTION:
                    await producer.commit_transaction()
        waiting = asyncio.create_task(_sent(producer, topic))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    found = values(await read_all(bootstrap, topic, "read_committed"))
    assert found == [b"%d" % n for n in range(20)]


async def _sent(producer: Producer, topic: str) -> None:
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"never committed")


async def test_a_cancelled_poll_has_taken_nothing(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    async with (
        Producer(bootstrap_servers=bootstrap) as producer,
        Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=20) as consumer,
    ):
        read: list[int] = []
        for i in range(300):
            await producer.send(topic, b"%d" % i)
            try:
                async with asyncio.timeout(0.001 * (i % 4)):
                    read.append(int((await consumer.getone()).value or b""))
            except TimeoutError:
                pass
        await producer.flush()
        async with asyncio.timeout(60):
            while len(read) < 300:
                read.append(int((await consumer.getone()).value or b""))
        assert read == list(range(300))
