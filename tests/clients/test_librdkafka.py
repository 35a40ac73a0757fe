"""librdkafka (confluent-kafka) against a served process: what it writes it reads back, whatever codec, and refusals arrive as Kafka's."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.testing import Broker
from tests.support.clients.librdkafka import value_of
from tests.support.processes.fixtures import restart

confluent_kafka = pytest.importorskip("confluent_kafka")
from confluent_kafka import (  # noqa: E402  # after the check that it is there
    OFFSET_BEGINNING,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # noqa: E402  # as above

pytestmark = pytest.mark.clients

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def producer(broker: Broker, **settings: Any) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 1, **settings})


def create(broker: Broker, partitions: int = 1, /, **config: str) -> str:
    name = "t" + uuid.uuid4().hex[:8]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(60)
    return name


class Deliveries:
    """Delivery reports, by order of their arrival."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.errors: list[KafkaError] = []

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.messages.append(message)
        else:
            self.errors.append(error)


def consume(broker: Broker, topic: str, count: int, partition: int = 0, /, **settings: Any) -> list[Message]:
    """The first `count` messages of a partition; fewer if they do not come within 60 s."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            **settings,
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found: list[Message] = []
    deadline = time.monotonic() + 60
    try:
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(found), 0.2):
                assert message.error() is None, message.error()
                found.append(message)
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_each_codec_comes_back_byte_for_byte(shared_broker: Broker, codec: str) -> None:
    topic = create(shared_broker)
    deliveries = Deliveries()
    sender = producer(shared_broker, **{"compression.type": codec, "enable.idempotence": True})
    sent = [(f"key {n}".encode(), (f"value {n} " * (n % 50)).encode()) for n in range(500)]
    for key, value in sent:
        sender.produce(topic, value, key, on_delivery=deliveries)
    assert sender.flush(60) == 0
    assert not deliveries.errors
    assert [message.offset() for message in deliveries.messages] == list(range(500))
    found = consume(shared_broker, topic, 500, **{"check.crcs": True})
    assert [(message.key(), message.value()) for message in found] == sent
    assert [message.offset() for message in found] == list(range(500))


def test_headers_nulls_and_timestamps(shared_broker: Broker) -> None:
    topic = create(shared_broker)
    sender = producer(shared_broker)
    now_ms = int(time.time() * 1000)
    headers: list[tuple[str, str | bytes | None]] = [
        ("a", b"1"),
        ("a", b"2"),
        ("empty", b""),
        ("null", None),
        ("ünï", b"\xff\x00"),
    ]
    sender.produce(topic, None, b"key only", headers=headers, timestamp=now_ms - 5_000)
    sender.produce(topic, b"", None, timestamp=now_ms)
    assert sender.flush(60) == 0
    first, second = consume(shared_broker, topic, 2)
    assert (first.key(), first.value(), first.headers()) == (b"key only", None, headers)
    assert first.timestamp() == (TIMESTAMP_CREATE_TIME, now_ms - 5_000)
    assert (second.key(), second.value(), second.headers()) == (None, b"", None)


def test_log_append_time_is_the_brokers(shared_broker: Broker) -> None:
    topic = create(shared_broker, **{"message.timestamp.type": "LogAppendTime"})
    deliveries = Deliveries()
    sender = producer(shared_broker)
    before_ms = int(time.time() * 1000)
    sender.produce(topic, b"x", timestamp=1_000, on_delivery=deliveries)
    assert sender.flush(60) == 0
    (message,) = consume(shared_broker, topic, 1, **{"check.crcs": True})
    kind, stamp = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert before_ms <= stamp <= int(time.time() * 1000)
    assert deliveries.messages[0].timestamp()[1] == stamp


def test_offsets_for_times_and_watermarks(shared_broker: Broker) -> None:
    topic = create(shared_broker)
    base_ms = int(time.time() * 1000) - 100_000
    for n in range(10):  # a flush each: ten batches
        sender = producer(shared_broker)
        sender.produce(topic, b"x", timestamp=base_ms + n * 1_000)
        assert sender.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": shared_broker.bootstrap_servers, "group.id": "g"})
    try:
        asked = [base_ms - 1, base_ms, base_ms + 4_001, base_ms + 9_000, base_ms + 9_001]
        found = [consumer.offsets_for_times([TopicPartition(topic, 0, when)], 60)[0].offset for when in asked]
        assert found == [0, 0, 5, 9, -1]
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), 60) == (0, 10)
    finally:
        consumer.close()
    admin = AdminClient({"bootstrap.servers": shared_broker.bootstrap_servers})
    newest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]  # confluent-kafka has no types for it
    result = admin.list_offsets({TopicPartition(topic, 0): newest})[TopicPartition(topic, 0)].result(60)
    assert (result.offset, result.timestamp) == (9, base_ms + 9_000)


def test_messages_of_a_mebibyte(serve: Callable[..., Broker]) -> None:
    broker = serve("message.max.bytes=3000000")
    topic = create(broker)
    deliveries = Deliveries()
    sender = producer(broker, **{"message.max.bytes": 3_000_000})
    values = [os.urandom(1024 * 1024) for _ in range(8)]
    for value in values:
        sender.produce(topic, value, on_delivery=deliveries)
    assert sender.flush(60) == 0
    assert not deliveries.errors
    assert [message.value() for message in consume(broker, topic, 8)] == values
    # A fetch limit below the first batch must not starve the consumer.
    small = {"max.partition.fetch.bytes": 1000, "fetch.max.bytes": 1000, "message.max.bytes": 1000}
    assert [message.value() for message in consume(broker, topic, 2, **small)] == values[:2]


def test_a_message_too_large_is_refused_and_the_next_one_goes_through(shared_broker: Broker) -> None:
    topic = create(shared_broker, **{"max.message.bytes": "10000"})
    deliveries = Deliveries()
    sender = producer(shared_broker, **{"message.max.bytes": 3_000_000})
    sender.produce(topic, os.urandom(20_000), on_delivery=deliveries)
    sender.flush(60)
    sender.produce(topic, b"small", on_delivery=deliveries)
    assert sender.flush(60) == 0
    assert [error.code() for error in deliveries.errors] == [KafkaError.MSG_SIZE_TOO_LARGE]
    assert [message.value() for message in consume(shared_broker, topic, 1)] == [b"small"]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(shared_broker: Broker, acks: str) -> None:
    topic = create(shared_broker)
    deliveries = Deliveries()
    sender = producer(shared_broker, acks=acks)
    for n in range(100):
        sender.produce(topic, str(n), on_delivery=deliveries)
    assert sender.flush(60) == 0
    assert len(deliveries.messages) == 100
    assert [int(value_of(message)) for message in consume(shared_broker, topic, 100)] == list(range(100))


def test_a_topic_is_created_by_its_first_use(shared_broker: Broker) -> None:
    sender = producer(shared_broker)
    sender.produce("made-by-use", b"x")
    assert sender.flush(60) == 0
    metadata = AdminClient({"bootstrap.servers": shared_broker.bootstrap_servers}).list_topics(timeout=60)
    assert list(metadata.topics["made-by-use"].partitions) == [0]
    assert metadata.brokers[1].port == shared_broker.port


def test_an_unknown_topic_is_refused_where_creation_is_off(serve: Callable[..., Broker]) -> None:
    broker = serve("auto.create.topics.enable=false")
    deliveries = Deliveries()
    sender = producer(broker, **{"message.timeout.ms": 60_000, "topic.metadata.propagation.max.ms": 500})
    sender.produce("nowhere", b"x", on_delivery=deliveries)
    sender.flush(60)
    assert [error.code() for error in deliveries.errors] == [KafkaError.UNKNOWN_TOPIC_OR_PART]


def test_an_idempotent_producer_repeats_nothing_over_lost_connections(served_broker: Broker) -> None:
    """The broker restarts under load: every message exactly once, in order."""
    topic = create(served_broker)
    deliveries = Deliveries()
    sender = producer(
        served_broker,
        **{
            "enable.idempotence": True,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 20,
        },
    )
    for n in range(6_000):
        sender.produce(topic, str(n), on_delivery=deliveries)
        if n in (2_000, 4_000):
            sender.poll(0.05)
            restart(served_broker, kill=n == 4_000)
        sender.poll(0)
    assert sender.flush(60) == 0
    assert not deliveries.errors
    assert [int(value_of(message)) for message in consume(served_broker, topic, 6_000)] == list(range(6_000))


def test_transactional_producer_is_seen_by_isolation_level(shared_broker: Broker) -> None:
    topic = create(shared_broker)
    sender = producer(shared_broker, **{"transactional.id": "tx-1"})
    sender.init_transactions(60)
    for name, ends in (("a", "commit"), ("b", "abort"), ("c", "commit")):
        sender.begin_transaction()
        for n in range(3):
            sender.produce(topic, f"{name}{n}")
        if ends == "commit":
            sender.commit_transaction(60)
        else:
            sender.flush(60)
            sender.abort_transaction(60)
    committed = consume(shared_broker, topic, 6, **{"isolation.level": "read_committed"})
    assert [message.value() for message in committed] == [b"a0", b"a1", b"a2", b"c0", b"c1", b"c2"]
    everything = consume(shared_broker, topic, 9, **{"isolation.level": "read_uncommitted"})
    assert [value_of(message)[:1] for message in everything] == [b"a"] * 3 + [b"b"] * 3 + [b"c"] * 3


def test_a_second_producer_of_the_same_id_fences_the_first(shared_broker: Broker) -> None:
    topic = create(shared_broker)
    first = producer(shared_broker, **{"transactional.id": "tx-2"})
    first.init_transactions(60)
    first.begin_transaction()
    first.produce(topic, b"zombie")
    first.flush(60)
    second = producer(shared_broker, **{"transactional.id": "tx-2"})
    second.init_transactions(60)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(60)
    assert fenced.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    second.begin_transaction()
    second.produce(topic, b"alive")
    second.commit_transaction(60)
    found = consume(shared_broker, topic, 1, **{"isolation.level": "read_committed"})
    assert [message.value() for message in found] == [b"alive"]
