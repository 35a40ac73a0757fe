"""Time travel as librdkafka, aiokafka and the bundled client see it: they keep the time of the machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from barnabas.client import Admin, Consumer, TopicPartition
from barnabas.testing import Broker, Cluster
from barnabas.testing.backend import Mode
from tests.support.kit_modes import MODES, THREADS

confluent_kafka = pytest.importorskip("confluent_kafka")
aiokafka = pytest.importorskip("aiokafka")

pytestmark = pytest.mark.clients
SECONDS_MAX = 60.0
HEARTBEATS = {"group.consumer.min.heartbeat.interval.ms": 200, "group.consumer.heartbeat.interval.ms": 200}
Isolation = Literal["read_uncommitted", "read_committed"]


@pytest.fixture(params=THREADS)
def kafka(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    mode: Mode = request.param
    with Broker(mode=mode, topics={"orders": 2}, config=HEARTBEATS) as kafka:
        yield kafka


def _producer(kafka: Cluster, **config: Any) -> Any:
    return confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, **config})


def _send(producer: Any, topic: str, *records: tuple[bytes, bytes | None], partition: int = 0) -> list[int]:
    """Writes records of (key, value); returns their offsets."""
    offsets: list[int] = []

    def written(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for key, value in records:
        producer.produce(topic, value, key, partition=partition, on_delivery=written)
    assert producer.flush(SECONDS_MAX) == 0
    return offsets


def _consumer(kafka: Cluster, group: str, client_id: str = "", **config: Any) -> Any:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": group,
            "client.id": client_id or "test",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **config,
        }
    )


async def _read(
    kafka: Cluster, topic: str, isolation: Isolation = "read_uncommitted"
) -> list[tuple[bytes | None, Any]]:
    """The keys and values of partition 0, up to its present end."""
    where = TopicPartition(topic, 0)
    async with Consumer(
        bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest", isolation_level=isolation
    ) as consumer:
        consumer.assign([where])
        end = (await consumer.end_offsets([where]))[where]
        found = []
        while await consumer.position(where) < end:
            for record in (await consumer.getmany(timeout_ms=1000)).get(where, []):
                found.append((record.key, record.value))
        return found


def test_a_tombstone_vanishes_in_the_cleaning_after_its_horizon(kafka: Cluster) -> None:
    config = {
        "cleanup.policy": "compact",
        "segment.ms": 60_000,
        "min.cleanable.dirty.ratio": 0,
        "message.timestamp.type": "LogAppendTime",
    }
    kafka.create_topic("stock", config=config)
    producer = _producer(kafka)
    _send(producer, "stock", (b"tea", b"10"), (b"milk", b"3"), (b"tea", None))
    kafka.clock.advance(minutes=2)  # the next record begins a segment, so the ones before it can be cleaned
    _send(producer, "stock", (b"milk", b"4"))
    kafka.clock.advance(minutes=2)
    assert asyncio.run(_read(kafka, "stock")) == [(b"milk", b"3"), (b"tea", None), (b"milk", b"4")]
    kafka.clock.advance(hours=23)
    _send(producer, "stock", (b"milk", b"5"))
    kafka.clock.advance(minutes=2)
    assert (b"tea", None) in asyncio.run(_read(kafka, "stock"))
    kafka.clock.advance(hours=1)
    _send(producer, "stock", (b"milk", b"6"))
    kafka.clock.advance(minutes=2)
    assert asyncio.run(_read(kafka, "stock")) == [(b"milk", b"5"), (b"milk", b"6")]


@pytest.mark.parametrize("kafka", MODES, indirect=True)
def test_a_transaction_times_out_and_its_producer_is_fenced(kafka: Cluster) -> None:
    producer = _producer(kafka, **{"transactional.id": "billing", "transaction.timeout.ms": 60_000})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    _send(producer, "orders", (b"1", b"open"))
    _send(_producer(kafka), "orders", (b"2", b"behind it"))
    assert asyncio.run(_read(kafka, "orders", "read_committed")) == []
    kafka.clock.advance(minutes=2)
    assert asyncio.run(_read(kafka, "orders", "read_committed")) == [(b"2", b"behind it")]
    with pytest.raises(confluent_kafka.KafkaException) as failed:
        producer.commit_transaction(SECONDS_MAX)
    error = failed.value.args[0]
    assert error.code() in (confluent_kafka.KafkaError._FENCED, confluent_kafka.KafkaError.INVALID_PRODUCER_EPOCH), (
        error
    )
    assert error.fatal() or error.txn_requires_abort()


def _poll_until_assigned(consumer: Any, partitions: list[int]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while sorted(each.partition for each in consumer.assignment()) != partitions:
        assert time.monotonic() < deadline, consumer.assignment()
        consumer.poll(0.05)


def test_the_partitions_of_a_silent_member_move(kafka: Cluster) -> None:
    """An aiokafka consumer whose event loop stands still, and one of librdkafka that joins its group."""
    with asyncio.Runner() as loop:

        async def join() -> Any:
            consumer = aiokafka.AIOKafkaConsumer(
                "orders", bootstrap_servers=kafka.bootstrap_servers, group_id="billing", session_timeout_ms=300_000
            )
            await consumer.start()
            return consumer

        silent = loop.run(join())
        assert len(silent.assignment()) == 2
        other = _consumer(kafka, "billing")
        try:
            other.subscribe(["orders"])
            assert other.poll(1.0) is None
            assert other.assignment() == []  # it waits for the silent member
            kafka.clock.advance(minutes=6)
            _poll_until_assigned(other, [0, 1])
        finally:
            other.close()
            loop.run(silent.stop())


def test_members_that_are_alive_join_again(kafka: Cluster) -> None:
    """KIP-848: after a jump both members are gone, and the one whose heartbeats arrive gets all partitions."""
    first, second = (
        _consumer(kafka, "billing", name, **{"group.protocol": "consumer"}) for name in ("first", "second")
    )
    try:
        first.subscribe(["orders"])
        _poll_until_assigned(first, [0, 1])
        second.subscribe(["orders"])
        deadline = time.monotonic() + SECONDS_MAX
        while not (len(first.assignment()) == len(second.assignment()) == 1):
            assert time.monotonic() < deadline
            first.poll(0.05)
            second.poll(0.05)
        kafka.faults.on("ConsumerGroupHeartbeat", client="first", times=None, strict=False).drop()
        kafka.clock.advance(minutes=1)
        _poll_until_assigned(second, [0, 1])
    finally:
        kafka.faults.clear()
        first.close()
        second.close()


def test_a_client_finds_no_offsets_after_their_retention(kafka: Cluster) -> None:
    _send(_producer(kafka), "orders", (b"1", b"x"))
    where = [confluent_kafka.TopicPartition("orders", 0)]
    consumer = _consumer(kafka, "billing")
    consumer.subscribe(["orders"])
    _poll_until_assigned(consumer, [0, 1])
    consumer.commit(offsets=[confluent_kafka.TopicPartition("orders", 0, 1)], asynchronous=False)
    consumer.close()
    asker = _consumer(kafka, "billing")
    assert [each.offset for each in asker.committed(where, SECONDS_MAX)] == [1]
    kafka.clock.advance(days=7, minutes=1)
    assert [each.offset for each in asker.committed(where, SECONDS_MAX)] == [confluent_kafka.OFFSET_INVALID]
    asker.close()


def test_an_idempotent_producer_goes_on_after_its_id_has_expired(kafka: Cluster) -> None:
    async def producers() -> int:
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            return len(await admin.describe_producers(TopicPartition("orders", 0)))

    producer = _producer(kafka, **{"enable.idempotence": True})
    assert _send(producer, "orders", (b"1", b"x"), (b"2", b"x")) == [0, 1]
    kafka.clock.advance(hours=23)
    assert asyncio.run(producers()) == 1
    kafka.clock.advance(hours=2)
    assert asyncio.run(producers()) == 0
    assert _send(producer, "orders", (b"3", b"x"), (b"4", b"x")) == [2, 3]
    assert asyncio.run(producers()) == 1


def test_a_record_of_a_client_is_as_old_as_its_timestamp(kafka: Cluster) -> None:
    """A client's timestamp lies behind the brokers' clock, so the next jump deletes the record."""
    kafka.clock.advance(days=8)
    assert _send(_producer(kafka), "orders", (b"1", b"x")) == [0]
    assert asyncio.run(_read(kafka, "orders")) == [(b"1", b"x")]
    kafka.clock.advance(seconds=1)
    assert asyncio.run(_read(kafka, "orders")) == []


@pytest.mark.parametrize("client", ["librdkafka", "aiokafka"])
def test_a_connected_client_notices_nothing_of_a_jump(kafka: Cluster, client: str) -> None:
    """Its connections stay open: nothing is reconnected, and the write after a year succeeds at once."""
    if client == "librdkafka":
        producer = _producer(kafka, **{"reconnect.backoff.ms": 60_000, "reconnect.backoff.max.ms": 60_000})
        assert _send(producer, "orders", (b"1", b"x")) == [0]
        kafka.clock.advance(days=365)
        assert _send(producer, "orders", (b"2", b"x")) == [1]
        return

    async def run() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            await producer.send_and_wait("orders", b"x", partition=0)
            before = kafka.wait(kafka.core().client_connections())
            await kafka.clock.aio.advance(days=365)
            assert (await producer.send_and_wait("orders", b"x", partition=0)).offset == 1
            assert kafka.wait(kafka.core().client_connections()) == before

    asyncio.run(run())
