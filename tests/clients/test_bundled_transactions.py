"""Transactions of the bundled client against a served Barnabas and against real Kafka: both versions, fencing, offsets, copies."""

from __future__ import annotations

import asyncio
import random

import pytest

from barnabas.client import (
    Admin,
    Consumer,
    CopyProgress,
    KafkaError,
    NewMessage,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
    exactly_once,
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


async def test_interleaved_transactions(bootstrap: str, admin: Admin, name: str) -> None:
    """Three transactional producers and a plain one share a partition; every second transaction is aborted."""
    topic = await make_topic(admin, name)
    expected: list[bytes] = []
    producers = [Producer(bootstrap_servers=bootstrap, transactional_id=f"{name}-{i}") for i in range(3)]
    async with Producer(bootstrap_servers=bootstrap) as plain:
        try:
            for producer in producers:
                await producer.start()
            offsets: dict[bytes, int] = {}
            for n in range(8):
                for producer in producers:
                    await producer.begin_transaction()
                for k in range(5):
                    for i, producer in enumerate(producers):
                        value = b"%d %d %d" % (n, i, k)
                        offsets[value] = (await producer.send_and_wait(topic, value)).offset
                    value = b"plain %d %d" % (n, k)
                    offsets[value] = (await plain.send_and_wait(topic, value)).offset
                for i, producer in enumerate(producers):
                    if (n + i) % 2:
                        await producer.abort_transaction()
                    else:
                        await producer.commit_transaction()
            expected = sorted(
                (v for v in offsets if v.startswith(b"plain") or sum(map(int, v.split()[:2])) % 2 == 0),
                key=offsets.__getitem__,
            )
        finally:
            for producer in producers:
                await producer.stop()
    assert values(await read_all(bootstrap, topic, "read_committed")) == expected


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


async def test_copying_in_transactions_is_exactly_once(bootstrap: str, admin: Admin, name: str) -> None:
    """Consume, transform, produce; some transactions are aborted and their records read again."""
    source, target = await make_topic(admin, f"{name}-in", 3), await make_topic(admin, f"{name}-out", 2)
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for i in range(2_000):
            await producer.send(source, b"%d" % i)
    async with (
        Consumer(source, bootstrap_servers=bootstrap, group_id=name, auto_offset_reset="earliest",
                 enable_auto_commit=False, max_poll_records=150) as consumer,
        Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer,
    ):  # fmt: skip
        done = rounds = 0
        async with asyncio.timeout(240):
            while done < 2_000:
                batch = await consumer.getmany(timeout_ms=1_000)
                if not batch:
                    continue
                rounds += 1
                await producer.begin_transaction()
                for records in batch.values():
                    for record in records:
                        await producer.send(target, b"copy of " + (record.value or b""), record.key)
                offsets = {tp: records[-1].offset + 1 for tp, records in batch.items()}
                await producer.send_offsets(offsets, consumer.group_metadata())
                if rounds % 3 == 0:
                    await producer.abort_transaction()
                    await consumer.seek_to_committed()
                else:
                    await producer.commit_transaction()
                    done += sum(map(len, batch.values()))
    copies = values(await read_all(bootstrap, target, "read_committed"))
    assert sorted(copies) == sorted(b"copy of %d" % i for i in range(2_000))


async def test_a_copy_that_is_cancelled_anywhere_goes_on_exactly_once(bootstrap: str, admin: Admin, name: str) -> None:
    """Also in the middle of a commit, which goes on by itself and is waited for: nothing else than the cancellation comes out."""
    source, target = await make_topic(admin, f"{name}-in", 1), await make_topic(admin, f"{name}-out", 1)
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for i in range(600):
            await producer.send(source, b"%d" % i)
    moments = random.Random(1)

    async def copy() -> None:
        async with (
            Consumer(source, bootstrap_servers=bootstrap, group_id=name, auto_offset_reset="earliest",
                     enable_auto_commit=False, isolation_level="read_committed") as consumer,
            Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer,
        ):  # fmt: skip
            await exactly_once(
                consumer,
                producer,
                lambda record: [NewMessage(target, record.value)],
                transaction_records_max=20,
                on_transaction=told,
            )

    async def told(progress: CopyProgress) -> bool:
        if progress.committed:
            moving.set()
        return False

    for _ in range(12):
        moving = asyncio.Event()
        copying = asyncio.ensure_future(copy())
        await asyncio.wait_for(moving.wait(), 60)
        await asyncio.sleep(moments.random() * 0.015)
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
        if len(copies := values(await read_all(bootstrap, target, "read_committed"))) == 600:
            break
    assert copies == [b"%d" % i for i in range(len(copies))]
    assert len(copies) > 100
