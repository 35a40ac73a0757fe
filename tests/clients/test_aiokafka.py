"""aiokafka against a served process: pure Python, other versions of the protocol than librdkafka (ApiVersions v0, Produce v8, Fetch v11)."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import pytest

from barnabas.testing import Broker

aiokafka = pytest.importorskip("aiokafka")
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition  # noqa: E402  # after the check that it is there
from aiokafka.admin import AIOKafkaAdminClient, NewTopic  # noqa: E402  # as above
from aiokafka.errors import MessageSizeTooLargeError, ProducerFenced  # noqa: E402  # as above

pytestmark = pytest.mark.clients


async def create(broker: Broker, partitions: int = 1, /, **config: str) -> str:
    name = "a" + uuid.uuid4().hex[:8]
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=config)])
    finally:
        await admin.close()
    return name


async def consume(broker: Broker, topic: str, count: int, **settings: Any) -> list[Any]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest", fetch_max_wait_ms=100, **settings
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        async with asyncio.timeout(60):
            return [await consumer.getone() for _ in range(count)]
    finally:
        await consumer.stop()


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_each_codec_comes_back(shared_broker: Broker, codec: str | None) -> None:
    topic = await create(shared_broker)
    async with AIOKafkaProducer(
        bootstrap_servers=shared_broker.bootstrap_servers, compression_type=codec, enable_idempotence=True, linger_ms=5
    ) as producer:
        futures = [
            await producer.send(topic, b"value %d " % n * 20, key=b"%d" % n, headers=[("h", b"%d" % n)])
            for n in range(200)
        ]
        sent = [await future for future in futures]
    assert [one.offset for one in sent] == list(range(200))
    found = await consume(shared_broker, topic, 200, check_crcs=True)
    assert [(one.key, one.value, one.headers) for one in found] == [
        (b"%d" % n, b"value %d " % n * 20, (("h", b"%d" % n),)) for n in range(200)
    ]


async def test_offsets_by_time_and_bounds(shared_broker: Broker) -> None:
    topic = await create(shared_broker)
    base_ms = int(time.time() * 1000) - 50_000
    async with AIOKafkaProducer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        for n in range(5):
            await producer.send_and_wait(topic, b"x", timestamp_ms=base_ms + n * 1_000)
    consumer = AIOKafkaConsumer(bootstrap_servers=shared_broker.bootstrap_servers)
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        assert (await consumer.beginning_offsets([partition])) == {partition: 0}
        assert (await consumer.end_offsets([partition])) == {partition: 5}
        found = await consumer.offsets_for_times({partition: base_ms + 2_500})
        assert (found[partition].offset, found[partition].timestamp) == (3, base_ms + 3_000)
        assert (await consumer.offsets_for_times({partition: base_ms + 9_000})) == {partition: None}
    finally:
        await consumer.stop()


async def test_a_message_too_large_is_refused(shared_broker: Broker) -> None:
    topic = await create(shared_broker, **{"max.message.bytes": "5000"})
    async with AIOKafkaProducer(bootstrap_servers=shared_broker.bootstrap_servers) as producer:
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, bytes(10_000))
        assert (await producer.send_and_wait(topic, b"small")).offset == 0


async def test_transactions_and_isolation(shared_broker: Broker) -> None:
    topic = await create(shared_broker)
    async with AIOKafkaProducer(
        bootstrap_servers=shared_broker.bootstrap_servers, transactional_id="aio-1"
    ) as producer:
        async with producer.transaction():
            await producer.send(topic, b"committed 1")
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"aborted")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send(topic, b"committed 2")
    committed = await consume(shared_broker, topic, 2, isolation_level="read_committed")
    assert [one.value for one in committed] == [b"committed 1", b"committed 2"]
    everything = await consume(shared_broker, topic, 3, isolation_level="read_uncommitted")
    assert [one.value for one in everything] == [b"committed 1", b"aborted", b"committed 2"]


async def test_the_second_producer_of_an_id_fences_the_first(shared_broker: Broker) -> None:
    topic = await create(shared_broker)
    first = AIOKafkaProducer(bootstrap_servers=shared_broker.bootstrap_servers, transactional_id="aio-2")
    second = AIOKafkaProducer(bootstrap_servers=shared_broker.bootstrap_servers, transactional_id="aio-2")
    await first.start()
    try:
        await first.begin_transaction()
        await first.send_and_wait(topic, b"zombie")
        await second.start()
        with pytest.raises(ProducerFenced):
            await first.commit_transaction()
        async with second.transaction():
            await second.send(topic, b"alive")
    finally:
        await second.stop()
        await first.stop()
    assert [one.value for one in await consume(shared_broker, topic, 1, isolation_level="read_committed")] == [b"alive"]
