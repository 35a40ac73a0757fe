"""Transactions of the bundled client against a served Barnabas and against real Kafka: both versions, fencing, offsets, copies."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.client import (
    Admin,
    Consumer,
    KafkaError,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from barnabas.client.errors import (
    ProducerFenced,
    RecordTooLarge,
    TransactionFailed,
)
from barnabas.client.types import TransactionVersion
from barnabas.errors import ErrorCode
from tests.support.clients.bundled import make_topic, read_all, values

pytestmark = [pytest.mark.clients, pytest.mark.asyncio]


@pytest.mark.parametrize("version", [1, 2])
async def test_commit_and_abort(bootstrap: str, admin: Admin, name: str, version: TransactionVersion) -> None:
    topic = await make_topic(admin, name, 3)
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name, transaction_version=version) as producer:
        for n in range(6):
            async with producer.transaction():
                for i in range(9):
                    await producer.send(topic, b"committed %d %d" % (n, i), partition=i % 3)
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is left by the exception
                async with producer.transaction():
                    for i in range(9):
                        await producer.send(topic, b"aborted %d %d" % (n, i), partition=i % 3)
                    if n % 2:
                        await producer.flush()
                    raise ZeroDivisionError
        async with producer.transaction():
            pass  # an empty one tells the cluster nothing
    committed = await read_all(bootstrap, topic, "read_committed")
    for partition in range(3):
        expected = [b"committed %d %d" % (n, i) for n in range(6) for i in range(9) if i % 3 == partition]
        assert values([r for r in committed if r.partition == partition]) == expected
    everything = values(await read_all(bootstrap, topic))
    assert sum(v.startswith(b"committed") for v in everything) == 54
    # What had been flushed before an abort is in the log; the rest was dropped before it left.
    assert {b"aborted %d %d" % (n, i) for n in (1, 3, 5) for i in range(9)} <= set(everything)


async def test_the_transaction_version_is_the_clusters(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    assert (await admin.features())["transaction.version"] == 2
    epochs = []
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        for _ in range(3):
            async with producer.transaction():
                await producer.send(topic, b"x")
            epochs.append((await admin.describe_transaction(name)).producer_epoch)
    # KIP-890: every transaction has an epoch of its own under TV2. The coordinator may still be completing the last one.
    assert epochs[0] < epochs[1] < epochs[2]


async def test_an_open_transaction_holds_back_read_committed(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    async with (
        Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer,
        Producer(bootstrap_servers=bootstrap) as plain,
        Consumer(
            topic,
            bootstrap_servers=bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
        ) as consumer,
    ):
        await plain.send_and_wait(topic, b"before")
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"inside")
        await plain.send_and_wait(topic, b"after")
        assert (await consumer.getone()).value == b"before"
        assert await consumer.getmany(timeout_ms=300) == {}
        await producer.commit_transaction()
        async with asyncio.timeout(60):
            assert [(await consumer.getone()).value for _ in range(2)] == [b"inside", b"after"]


@pytest.mark.parametrize("version", [1, 2])
async def test_an_abort_right_behind_a_commit(
    bootstrap: str, admin: Admin, name: str, version: TransactionVersion
) -> None:
    """What is aborted has not been sent yet, or waits at a leader until the transaction before is completed."""
    topic = await make_topic(admin, name)
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name, transaction_version=version) as producer:
        for number in range(100):
            async with producer.transaction():
                await producer.send(topic, b"%d" % number)
            await producer.begin_transaction()
            await producer.send(topic, b"aborted")
            await asyncio.sleep(0.002 * (number % 3))
            await producer.abort_transaction()
    assert values(await read_all(bootstrap, topic, "read_committed")) == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("version", [1, 2])
async def test_a_second_producer_fences_the_first(
    bootstrap: str, admin: Admin, name: str, version: TransactionVersion
) -> None:
    topic = await make_topic(admin, name)
    first = Producer(bootstrap_servers=bootstrap, transactional_id=name, transaction_version=version)
    second = Producer(bootstrap_servers=bootstrap, transactional_id=name, transaction_version=version)
    await first.start()
    try:
        await first.begin_transaction()
        await first.send_and_wait(topic, b"zombie")
        await second.start()
        async with second.transaction():
            await second.send(topic, b"successor")
        with pytest.raises(KafkaError) as fenced:  # noqa: PT012 - whichever of the two notices first
            await first.send(topic, b"zombie again")
            await first.commit_transaction()
        assert isinstance(fenced.value, ProducerFenced | TransactionFailed)
        if isinstance(fenced.value, TransactionFailed):
            with pytest.raises(ProducerFenced):
                await first.abort_transaction()
        with pytest.raises(ProducerFenced):
            await first.begin_transaction()
        async with second.transaction():
            await second.send(topic, b"still there")
    finally:
        await first.stop()
        await second.stop()
    assert values(await read_all(bootstrap, topic, "read_committed")) == [b"successor", b"still there"]


@pytest.mark.parametrize("version", [1, 2])
async def test_offsets_are_part_of_the_transaction(
    bootstrap: str, admin: Admin, name: str, version: TransactionVersion
) -> None:
    topic = await make_topic(admin, name, 2)
    tp = TopicPartition(topic, 1)
    async with (
        Producer(bootstrap_servers=bootstrap, transactional_id=name, transaction_version=version) as producer,
        Consumer(bootstrap_servers=bootstrap, group_id=name) as consumer,
    ):
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is left by the exception
            async with producer.transaction():
                await producer.send_offsets({tp: 7}, name)
                raise ZeroDivisionError
        assert await consumer.committed(tp) is None
        async with producer.transaction():
            await producer.send(topic, b"x")
            await producer.send_offsets({tp: OffsetAndMetadata(8, "noted")}, consumer.group_metadata())
        assert await consumer.committed(tp) == 8
        assert (await admin.list_group_offsets(name))[tp].metadata == "noted"
        async with producer.transaction():
            await producer.send_offsets({}, name)


async def test_offsets_of_a_member_that_is_none_abort_the_transaction(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    async with (
        Consumer(topic, bootstrap_servers=bootstrap, group_id=name) as consumer,
        Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer,
    ):
        await consumer.getmany(timeout_ms=500)
        async with asyncio.timeout(60):
            while not consumer.assignment():
                await consumer.getmany(timeout_ms=100)
        group = consumer.group_metadata()
        await producer.begin_transaction()
        with pytest.raises(TransactionFailed) as refused:
            await producer.send_offsets({TopicPartition(topic, 0): 1}, group._replace(generation_id=99))
        assert refused.value.code is ErrorCode.ILLEGAL_GENERATION
        with pytest.raises(TransactionFailed):
            await producer.send(topic, b"too late")
        with pytest.raises(TransactionFailed):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_offsets({TopicPartition(topic, 0): 1}, group)
        assert await consumer.committed(TopicPartition(topic, 0)) == 1


async def test_a_failed_record_makes_the_transaction_abortable(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name, max_message_bytes="1000")
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        with pytest.raises(TransactionFailed) as refused:  # noqa: PT012 - whichever statement notices first
            async with producer.transaction():
                await producer.send(topic, b"fine")
                await producer.flush()
                await producer.send(topic, b"x" * 2_000)
        assert refused.value.txn_requires_abort
        assert isinstance(refused.value.__cause__, RecordTooLarge)
        async with producer.transaction():  # the block has aborted: the producer goes on
            await producer.send(topic, b"next")
    assert values(await read_all(bootstrap, topic, "read_committed")) == [b"next"]
