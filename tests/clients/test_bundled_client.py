"""The bundled client against a served Barnabas and against real Kafka: producer, consumer, transactions, misuse."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.client import (
    Admin,
    Consumer,
    KafkaError,
    PartlyWritten,
    Producer,
    RecordMetadata,
    TopicPartition,
)
from barnabas.client.errors import (
    AuthorizationFailed,
    IllegalState,
    RecordTooLarge,
    SerializationFailed,
)
from barnabas.client.producer.core.murmur2 import partition_for_key
from barnabas.client.types import Acks, CompressionType, ConsumerGroupMetadata
from barnabas.errors import ErrorCode
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import encode_records
from tests.support.clients.bundled import make_topic, poll_until, read_all, values

pytestmark = [pytest.mark.clients, pytest.mark.asyncio]


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
    async with asyncio.timeout(60):
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


async def test_an_encoded_batch_above_the_topics_limit_is_divided(bootstrap: str, admin: Admin, name: str) -> None:
    """Only records that exceed the limit alone are refused. They are named by their places; the others keep their order."""
    topic = await make_topic(admin, name, max_message_bytes="2000")
    sizes = [5_000 if place in (7, 50) else 100 for place in range(100)]
    packed = encode_records([NewRecord(b"%d" % place, bytes(size), 1) for place, size in enumerate(sizes)])
    fits = encode_records([NewRecord(None, bytes(100), 1) for _ in range(100)])
    async with Producer(bootstrap_servers=bootstrap) as producer:
        refused = await producer.send_batch(topic, 0, packed, divisible=True)
        divided = await producer.send_batch(topic, None, fits, divisible=True)
        with pytest.raises(
            PartlyWritten, match=r"^2 of 100 records are not written; the first is record 7: "
        ) as raised:
            await refused
        assert list(raised.value.failed) == [7, 50]
        assert all(isinstance(error, RecordTooLarge) for error in raised.value.failed.values())
        assert (await divided).offset >= 0
    records = await read_all(bootstrap, topic)
    assert len(records) == 198
    written = [int(r.key) for r in records if r.key is not None]
    assert written == [place for place in range(100) if place not in (7, 50)]


async def test_deserializers_and_serializers(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    async with Producer[str, Any](  # the argument of a lambda has no type
        bootstrap_servers=bootstrap, key_serializer=str.encode, value_serializer=lambda v: str(v + 0).encode()
    ) as producer:
        with pytest.raises(SerializationFailed) as refused:
            await producer.send(topic, "no number", "k")
        assert isinstance(refused.value.__cause__, TypeError)
        await producer.send_and_wait(topic, 41, "k")
        await producer.send_and_wait(topic, None)  # null stays null: neither serializer could take it
    async with Consumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        key_deserializer=bytes.decode,
        value_deserializer=int,
    ) as consumer:
        record = await consumer.getone()
        assert (record.key, record.value) == ("k", 41)
        record = await consumer.getone()
        assert (record.key, record.value) == (None, None)


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
        taken = await consumer.getmany(timeout_ms=60_000, max_records=7)
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
