"""Brokers as an older release of Kafka: librdkafka, aiokafka, kafka-python and the bundled client fall back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.client import Admin, Consumer, Producer
from barnabas.client.errors import UnsupportedByBroker
from barnabas.testing import Broker, Cluster

confluent_kafka = pytest.importorskip("confluent_kafka")
aiokafka = pytest.importorskip("aiokafka")
kafka_python = pytest.importorskip("kafka")

pytestmark = pytest.mark.clients
SECONDS_MAX = 60.0


@pytest.fixture(params=["2.8", "3.6", "4.0"])
def kafka(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Broker(as_version=request.param, topics={"orders": 1}) as kafka:
        yield kafka


def _with_librdkafka(kafka: Cluster) -> list[bytes]:
    config = {"bootstrap.servers": kafka.bootstrap_servers}
    producer = confluent_kafka.Producer({**config, "transactional.id": "billing"})
    producer.init_transactions(SECONDS_MAX)
    for value in (b"1", b"2"):
        producer.begin_transaction()
        producer.produce("orders", value)
        producer.commit_transaction(SECONDS_MAX)
    consumer = confluent_kafka.Consumer({**config, "group.id": "billing", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    try:
        return [each.value() for each in consumer.consume(2, SECONDS_MAX)]
    finally:
        consumer.close()


def _with_aiokafka(kafka: Cluster) -> list[bytes]:
    async def run() -> list[bytes]:
        config = {"bootstrap_servers": kafka.bootstrap_servers}
        async with aiokafka.AIOKafkaProducer(**config, transactional_id="billing") as producer:
            for value in (b"1", b"2"):
                async with producer.transaction():
                    await producer.send_and_wait("orders", value)
        async with aiokafka.AIOKafkaConsumer(
            "orders", **config, group_id="billing", auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            return [(await consumer.getone()).value or b"" for _ in range(2)]

    return asyncio.run(run())


def _with_kafka_python(kafka: Cluster) -> list[bytes]:
    producer = kafka_python.KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    for value in (b"1", b"2"):
        producer.send("orders", value).get(SECONDS_MAX)
    producer.close()
    consumer = kafka_python.KafkaConsumer(
        "orders", bootstrap_servers=kafka.bootstrap_servers, group_id="billing", auto_offset_reset="earliest"
    )
    try:
        return [next(consumer).value for _ in range(2)]
    finally:
        consumer.close()


def _with_the_bundled_client(kafka: Cluster) -> list[bytes]:
    async def run() -> list[bytes]:
        servers = kafka.bootstrap_servers
        async with Producer(bootstrap_servers=servers, transactional_id="billing") as producer:
            for value in (b"1", b"2"):
                async with producer.transaction():
                    await producer.send_and_wait("orders", value)
        async with Consumer(
            "orders", bootstrap_servers=servers, group_id="billing", auto_offset_reset="earliest"
        ) as consumer:
            return [(await consumer.getone()).value or b"" for _ in range(2)]

    return asyncio.run(run())


@pytest.mark.parametrize(
    "copy",
    [_with_librdkafka, _with_aiokafka, _with_kafka_python, _with_the_bundled_client],
    ids=lambda each: each.__name__,
)
def test_clients_fall_back(kafka: Cluster, copy: Any) -> None:
    """All of them write, in transactions if they can, and read in a group, on every release."""
    assert copy(kafka) == [b"1", b"2"]


@pytest.mark.parametrize(("release", "added"), [("3.6", True), ("4.3", False)])
def test_transactions_v2_begin_with_4(release: str, added: bool) -> None:
    """Before it, a client adds its partitions by a request of its own, and its epoch stays the same."""
    with Broker(as_version=release, topics={"orders": 1}) as kafka:
        seen = kafka.faults.on("AddPartitionsToTxn", times=None, strict=False).delay(0)

        async def epochs() -> list[int]:
            found = []
            async with (
                Producer(bootstrap_servers=kafka.bootstrap_servers, transactional_id="billing") as producer,
                Admin(bootstrap_servers=kafka.bootstrap_servers) as admin,
            ):
                for _ in range(2):
                    async with producer.transaction():
                        await producer.send_and_wait("orders", b"x")
                        found.append((await admin.describe_transaction("billing")).producer_epoch)
            return found

        first, second = asyncio.run(epochs())
        assert (seen.hits > 0) is added
        assert (first == second) is added


@pytest.mark.parametrize(
    ("release", "text"),
    [("3.6", "does not serve ConsumerGroupHeartbeatRequest"), ("3.9", "its group coordinator refuses the protocol")],
)
def test_a_client_that_wants_the_new_groups_gets_its_own_error(release: str, text: str) -> None:
    """librdkafka reports nothing: it waits, and is never assigned a partition."""

    async def join(servers: str) -> None:
        async with Consumer(
            "orders", bootstrap_servers=servers, group_id="billing", group_protocol="consumer"
        ) as consumer:
            await consumer.getone()

    with Broker(as_version=release, topics={"orders": 1}) as kafka:
        with pytest.raises(UnsupportedByBroker, match=text):
            asyncio.run(join(kafka.bootstrap_servers))
        waiting = confluent_kafka.Consumer(
            {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "other", "group.protocol": "consumer"}
        )
        waiting.subscribe(["orders"])
        assert waiting.poll(2.0) is None
        assert waiting.assignment() == []
        waiting.close()
