"""The bundled client against a served Barnabas and against real Kafka: producer, consumer, transactions, misuse."""

from __future__ import annotations

import asyncio
import random
from itertools import groupby
from typing import Any

import pytest

from barnabas.client import (
    Admin,
    Consumer,
    CopyProgress,
    KafkaError,
    NewMessage,
    OffsetAndMetadata,
    Producer,
    RecordMetadata,
    TopicPartition,
    exactly_once,
)
from barnabas.client.errors import (
    AuthorizationFailed,
    BrokerUnreachable,
    ClientClosed,
    IllegalState,
    NoOffsetForPartition,
    OffsetOutOfRange,
    ProducerFenced,
    RecordTooLarge,
    SerializationFailed,
    TopicAlreadyExists,
    TransactionFailed,
    UnknownTopicOrPartition,
)
from barnabas.client.producer.murmur2 import partition_for_key
from barnabas.client.producer.transaction_state import TransactionPhase
from barnabas.client.types import Acks, CompressionType, ConsumerGroupMetadata
from barnabas.errors import ErrorCode
from barnabas.protocol.records import NewRecord, encode_records
from tests.support.clients.bundled import make_topic, poll_until, read_all, values

pytestmark = [pytest.mark.clients, pytest.mark.asyncio]


# -- produce and consume -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_records_come_back_as_they_were_sent(
    bootstrap: str, admin: Admin, name: str, codec: CompressionType | None
) -> None:
    topic = await make_topic(admin, name)
    async with Producer(bootstrap_servers=bootstrap, compression_type=codec) as producer:
        futures = [
            await producer.send(topic, b"value %d " % i * 50, b"key %d" % i, headers=[("n", b"%d" % i), ("null", None)])
            for i in range(500)
        ]
        futures.append(await producer.send(topic, None, b"tombstone", timestamp_ms=1_600_000_000_123))
        futures.append(await producer.send(topic, b"", b""))
        await producer.flush()
        assert [f.result().offset for f in futures] == list(range(502))
    records = await read_all(bootstrap, topic)
    assert [r.offset for r in records] == list(range(502))
    for i in range(500):
        assert records[i].value == b"value %d " % i * 50
        assert records[i].key == b"key %d" % i
        assert list(records[i].headers) == [("n", b"%d" % i), ("null", None)]
        assert records[i].timestamp == futures[i].result().timestamp
    assert (records[500].key, records[500].value, records[500].timestamp) == (b"tombstone", None, 1_600_000_000_123)
    assert (records[501].key, records[501].value, list(records[501].headers)) == (b"", b"", [])
    assert {(r.topic, r.partition, r.timestamp_type) for r in records} == {(topic, 0, 0)}


async def test_many_partitions_keep_their_order_and_keys_their_partition(
    bootstrap: str, admin: Admin, name: str
) -> None:
    topic = await make_topic(admin, name, 7)
    async with Producer(bootstrap_servers=bootstrap, max_batch_size=2_000, linger_ms=2) as producer:
        for i in range(5_000):
            await producer.send(topic, b"%d" % i, b"key %d" % (i % 50))
        await producer.flush()
    records = await read_all(bootstrap, topic)
    assert sorted(int(v) for v in values(records)) == list(range(5_000))
    for partition in range(7):
        mine = [int(r.value) for r in records if r.partition == partition]
        assert mine == sorted(mine)
    assert all(r.partition == partition_for_key(r.key, 7) for r in records)


async def test_records_without_key_go_to_a_partition_by_the_batch(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name, 4)
    async with Producer(bootstrap_servers=bootstrap, max_batch_size=1_000) as producer:
        sent = [await (await producer.send(topic, b"x" * 69)) for _ in range(400)]
    partitions = [m.partition for m in sent]
    assert set(partitions) == {0, 1, 2, 3}
    runs = [len(list(run)) for _, run in groupby(partitions)]
    assert all(run % 10 == 0 for run in runs), "ten records fill a batch"


async def test_log_append_time_is_told(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name, message_timestamp_type="LogAppendTime")
    async with Producer(bootstrap_servers=bootstrap) as producer:
        metadata = await producer.send_and_wait(topic, b"x", timestamp_ms=1_000)
    assert metadata.timestamp_type == 1
    assert metadata.timestamp > 1_600_000_000_000
    (record,) = await read_all(bootstrap, topic)
    assert (record.timestamp, record.timestamp_type) == (metadata.timestamp, 1)


@pytest.mark.parametrize("acks", [0, 1])
async def test_weaker_acks(bootstrap: str, admin: Admin, name: str, acks: Acks) -> None:
    topic = await make_topic(admin, name)
    async with Producer(bootstrap_servers=bootstrap, acks=acks) as producer:
        assert (await producer.send_and_wait(topic, b"one")).offset == (-1 if acks == 0 else 0)
        for i in range(1_000):
            await producer.send(topic, b"%d" % i)
    async with asyncio.timeout(10):
        while len(found := values(await read_all(bootstrap, topic))) < 1_001:
            pass  # with acks=0 the last requests may still be on their way
    assert found == [b"one"] + [b"%d" % i for i in range(1_000)]


async def test_a_record_of_a_mebibyte_and_one_too_many(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name, max_message_bytes="1100000")
    async with Producer(bootstrap_servers=bootstrap, max_request_size=3_000_000) as producer:
        big = b"x" * 1_048_576
        await producer.send_and_wait(topic, big)
        with pytest.raises(RecordTooLarge) as refused:
            await producer.send_and_wait(topic, b"x" * 1_200_000)
        assert (refused.value.code, refused.value.topic) == (ErrorCode.MESSAGE_TOO_LARGE, topic)
        with pytest.raises(RecordTooLarge):
            await producer.send(topic, b"x" * 3_000_000)
        await producer.send_and_wait(topic, b"after")  # the refused record left no gap in the sequence
    assert values(await read_all(bootstrap, topic)) == [big, b"after"]


async def test_a_batch_too_large_for_the_topic_is_split(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name, max_message_bytes="2000")
    async with Producer(bootstrap_servers=bootstrap, max_batch_size=50_000, linger_ms=50) as producer:
        futures = [await producer.send(topic, b"%03d" % i + b"x" * 97) for i in range(300)]
        await producer.flush()
        assert [f.result().offset for f in futures] == list(range(300))
    assert [int(v[:3]) for v in values(await read_all(bootstrap, topic))] == list(range(300))


@pytest.mark.parametrize("codec", [None, "lz4"])
async def test_a_batch_that_the_caller_has_encoded(
    bootstrap: str, admin: Admin, name: str, codec: CompressionType | None
) -> None:
    topic = await make_topic(admin, name, 2)
    packed = encode_records([NewRecord(b"k", b"packed %d" % i, 1_700_000_000_000 + i) for i in range(1_000)])
    async with Producer(bootstrap_servers=bootstrap, linger_ms=5, compression_type=codec) as producer:
        futures = []
        for _ in range(20):
            await producer.send(topic, b"single", partition=1)
            futures.append(await producer.send_batch(topic, 1, packed))
        await producer.flush()
        assert [f.result() for f in futures] == [
            RecordMetadata(topic, 1, 1 + 1_001 * i, 1_700_000_000_999, 0) for i in range(20)
        ]
        with pytest.raises(KafkaError, match="partitions 0 to 1"):
            await producer.send_batch(topic, 2, packed)
        with pytest.raises(SerializationFailed, match="cannot be in"):
            await producer.send_batch(topic, 0, packed._replace(record_count=0))
        with pytest.raises(RecordTooLarge):
            await producer.send_batch(topic, 0, packed._replace(data=bytes(1_100_000)))
    records = await read_all(bootstrap, topic)
    assert [r.offset for r in records] == list(range(20 * 1_001))
    assert values(records) == [b"single", *(b"packed %d" % i for i in range(1_000))] * 20
    assert [r.timestamp for r in records[1:1_001]] == [1_700_000_000_000 + i for i in range(1_000)]


async def test_an_encoded_batch_belongs_to_its_transaction(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    packed = encode_records([NewRecord(None, b"%d" % i, 1) for i in range(100)])
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        with pytest.raises(IllegalState):
            await producer.send_batch(topic, 0, packed)
        async with producer.transaction():
            await producer.send_batch(topic, 0, packed)
        await producer.begin_transaction()
        await (await producer.send_batch(topic, 0, packed))
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_batch(topic, 0, packed)
    records = await read_all(bootstrap, topic, isolation_level="read_committed")
    assert values(records) == [b"%d" % i for i in range(100)] * 2


async def test_an_encoded_batch_above_the_topics_limit_is_refused_whole(
    bootstrap: str, admin: Admin, name: str
) -> None:
    topic = await make_topic(admin, name, max_message_bytes="2000")
    packed = encode_records([NewRecord(None, bytes(100), 1) for i in range(100)])
    async with Producer(bootstrap_servers=bootstrap) as producer:
        refused = await producer.send_batch(topic, 0, packed)
        after = await producer.send(topic, b"after")
        with pytest.raises(RecordTooLarge):
            await refused
        assert (await after).offset == 0  # the refused batch left no gap in the sequence


async def test_deserializers_and_serializers(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    async with Producer(
        bootstrap_servers=bootstrap, key_serializer=str.encode, value_serializer=lambda v: str(v + 0).encode()
    ) as producer:
        with pytest.raises(SerializationFailed) as refused:
            await producer.send(topic, "no number", "k")
        assert isinstance(refused.value.__cause__, TypeError)
        await producer.send_and_wait(topic, 41, "k")
    async with Consumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        key_deserializer=bytes.decode,
        value_deserializer=int,
    ) as consumer:
        record = await consumer.getone()
        assert (record.key, record.value) == ("k", 41)


async def test_positions(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name, 2)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for i in range(100):
            await producer.send(topic, b"%d" % i, partition=0, timestamp_ms=1_000_000 + 10 * i)
        await producer.flush()
    async with Consumer(bootstrap_servers=bootstrap, fetch_max_wait_ms=100) as consumer:
        consumer.assign([one, two])
        assert await consumer.beginning_offsets([one, two]) == {one: 0, two: 0}
        assert await consumer.end_offsets([one, two]) == {one: 100, two: 0}
        assert await consumer.position(one) == 100  # auto_offset_reset is "latest"
        found = await consumer.offsets_for_times({one: 1_000_555, two: 0})
        there = found[one]
        assert there is not None
        assert (there.offset, there.timestamp, found[two]) == (56, 1_000_560, None)
        assert (await consumer.offsets_for_times({one: 1_000_991}))[one] is None
        consumer.seek(one, 56)
        assert (await consumer.getone()).value == b"56"
        assert await consumer.position(one) == 57
        await consumer.seek_to_beginning(one)
        assert (await consumer.getone()).offset == 0
        taken = await consumer.getmany(timeout_ms=1_000, max_records=7)
        assert [r.offset for r in taken[one]] == list(range(1, 8))
        consumer.pause(one)
        assert consumer.paused() == {one}
        assert await consumer.getmany(timeout_ms=300) == {}
        consumer.resume(one)
        assert (await consumer.getone()).offset == 8
        assert consumer.highwater(one) == 100
        await consumer.seek_to_end()
        assert await consumer.position(one) == 100
        with pytest.raises(IllegalState):
            consumer.seek(TopicPartition(topic, 7), 0)


async def test_out_of_range_resets_or_raises(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    tp = TopicPartition(topic, 0)
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for i in range(10):
            await producer.send_and_wait(topic, b"%d" % i)
    assert await admin.delete_records({tp: 4}) == {tp: 4}
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 2)
        assert (await consumer.getone()).offset == 4
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([tp])
        with pytest.raises(NoOffsetForPartition):
            await consumer.getone()
        consumer.seek(tp, 2)
        with pytest.raises(OffsetOutOfRange) as refused:
            await consumer.getone()
        assert (refused.value.topic, refused.value.partition) == (topic, 0)
        consumer.seek(tp, 9)
        assert (await consumer.getone()).offset == 9


async def test_a_batch_larger_than_every_limit_still_comes(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for i in range(3):
            await producer.send_and_wait(topic, bytes([i]) * 200_000)
    async with Consumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=1_000,
        fetch_max_bytes=1_000,
    ) as consumer:
        async with asyncio.timeout(20):
            for i in range(3):
                assert (await consumer.getone()).value == bytes([i]) * 200_000


# -- transactions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
async def test_commit_and_abort(bootstrap: str, admin: Admin, name: str, version: int) -> None:
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
        async with asyncio.timeout(10):
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
async def test_an_abort_right_behind_a_commit(bootstrap: str, admin: Admin, name: str, version: int) -> None:
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
async def test_a_second_producer_fences_the_first(bootstrap: str, admin: Admin, name: str, version: int) -> None:
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
async def test_offsets_are_part_of_the_transaction(bootstrap: str, admin: Admin, name: str, version: int) -> None:
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
        async with asyncio.timeout(10):
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
        async with asyncio.timeout(60):
            while done < 2_000:
                batch = await consumer.getmany(timeout_ms=1_000)
                if not batch:
                    continue
                rounds += 1
                await producer.begin_transaction()
                for records in batch.values():
                    for record in records:
                        await producer.send(target, b"copy of " + record.value, record.key)
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
        await asyncio.wait_for(moving.wait(), 20)
        await asyncio.sleep(moments.random() * 0.015)
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
        if len(copies := values(await read_all(bootstrap, target, "read_committed"))) == 600:
            break
    assert copies == [b"%d" % i for i in range(len(copies))]
    assert len(copies) > 100


# -- misuse, cancellation, strangers -----------------------------------------------------------------------------------


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
            {"headers": {"a": b"b"}},
            {"headers": [("a", "text")]},
            {"headers": [(b"a", b"b")]},
            {"timestamp_ms": 1.5},
        ]
        for record in mistyped:
            with pytest.raises(SerializationFailed, match="must be"):
                await producer.send(topic, **record)
        mutable = bytearray(b"as it was")
        future = await producer.send(topic, mutable, memoryview(b"key"))
        mutable[:] = b"as it is "
        await future
        assert values(await read_all(bootstrap, topic)) == [b"as it was"], "what was refused harmed nothing"
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
    settings: list[dict[str, Any]] = [{"acks": 2}, {"acks": 1, "transactional_id": "x"}, {"compression_type": "rar"}]
    for wrong in settings:
        with pytest.raises(IllegalState):
            Producer(bootstrap_servers=bootstrap, **wrong)


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
                    read.append(int((await consumer.getone()).value))
            except TimeoutError:
                pass
        await producer.flush()
        async with asyncio.timeout(10):
            while len(read) < 300:
                read.append(int((await consumer.getone()).value))
        assert read == list(range(300))


async def test_nobody_there() -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    producer = Producer(bootstrap_servers=f"127.0.0.1:{port}", request_timeout_ms=300)
    with pytest.raises(BrokerUnreachable, match=f"no Kafka broker answers at 127.0.0.1:{port}") as refused:
        await producer.start()
    assert refused.value.retriable


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x06\x00\x00\x00\x63ab"])
async def test_a_stranger_listens(says: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(says)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        consumer = Consumer("t", bootstrap_servers=f"127.0.0.1:{port}", request_timeout_ms=400)
        with pytest.raises(KafkaError, match=r"does not answer as a Kafka broker|is it a Kafka broker"):
            await consumer.start()


async def test_groups_and_transactions_are_listed(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    async with (
        Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer,
        Consumer(topic, bootstrap_servers=bootstrap, group_id=name) as consumer,
    ):
        await poll_until([consumer], lambda: bool(consumer.assignment()))
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"open")
        description = await admin.describe_transaction(name)
        assert (description.state, description.partitions) == ("Ongoing", (TopicPartition(topic, 0),))
        assert name in [t.transactional_id for t in await admin.list_transactions(states=["Ongoing"])]
        assert name in [g.group_id for g in await admin.list_groups()]
        await producer.abort_transaction()
        with pytest.raises(KafkaError) as refused:
            await admin.delete_group(name)
        assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    await admin.delete_group(name)
    with pytest.raises(KafkaError) as refused:
        await admin.describe_transaction(f"{name}-never")
    assert refused.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert not isinstance(refused.value, AuthorizationFailed)
    assert ConsumerGroupMetadata(name) == ConsumerGroupMetadata(name, -1, "", None)
