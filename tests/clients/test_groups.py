"""Consumer groups as librdkafka and kcat use them: restarts, offsets, administration. How clients share: test_bundled_groups.py."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.testing import Broker
from tests.support.clients.librdkafka import value_of
from tests.support.processes.fixtures import START_SECONDS_MAX, restart

pytestmark = pytest.mark.clients

TOPIC = "flights"
PARTITIONS = 4
SETTINGS = ("group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=500", "offsets.topic.num.partitions=4")
WAIT_S = 60


@pytest.fixture
def broker(serve: Callable[..., Broker]) -> Broker:
    """A broker whose groups settle fast, with one topic of four partitions."""
    served = serve(*SETTINGS)
    admin = AdminClient({"bootstrap.servers": served.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(WAIT_S)
    return served


def fill(broker: Broker, count: int, first: int = 0) -> list[bytes]:
    """Records spread over all partitions; returns their values."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    values = [b"%d" % number for number in range(first, first + count)]
    for number, value in enumerate(values):
        producer.produce(TOPIC, value, partition=number % PARTITIONS)
    assert producer.flush(WAIT_S) == 0
    return values


class Member:
    """A librdkafka consumer that counts its rebalances."""

    def __init__(self, broker: Broker, group: str, **settings: Any) -> None:
        self.assigned = 0
        self.values: list[bytes] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 45_000,
                "heartbeat.interval.ms": 100,
                "partition.assignment.strategy": "range",
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        self.consumer.subscribe([TOPIC], on_assign=self._on_assign)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned += 1

    def poll_until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < deadline, len(self.values)
            message = self.consumer.poll(0.02)
            if message is not None and message.error() is None:
                self.values.append(value_of(message))


@contextmanager
def member_of(broker: Broker, group: str, **settings: Any) -> Iterator[Member]:
    member = Member(broker, group, **settings)
    try:
        yield member
    finally:
        member.consumer.close()


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
def test_commits_and_members_survive_a_restart(broker: Broker, kill: bool) -> None:
    fill(broker, 8)
    session_ms = int(START_SECONDS_MAX * 1000)  # longer than a restart: else the member itself gives its session up
    with member_of(broker, "g", session_timeout_ms=session_ms) as member:
        member.poll_until(lambda: len(member.values) == 8)
        member.consumer.commit(
            offsets=[TopicPartition(TOPIC, partition, 2, f"note {partition}") for partition in range(PARTITIONS)],
            asynchronous=False,
        )
        restart(broker, kill=kill)
        generation = member.assigned
        found = member.consumer.committed([TopicPartition(TOPIC, p) for p in range(PARTITIONS)], timeout=WAIT_S)
        assert [(part.offset, part.metadata) for part in found] == [(2, f"note {p}") for p in range(PARTITIONS)]
        more = fill(broker, 4, 8)
        member.poll_until(lambda: set(more) <= {*member.values})
        assert member.assigned == generation  # it went on in the same generation
    with member_of(broker, "g") as successor:
        successor.poll_until(lambda: len(successor.values) >= 4)
        assert sorted(successor.values) == sorted(more)


def test_offsets_in_a_transaction_are_unstable_until_it_ends(broker: Broker) -> None:
    fill(broker, 8)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "copy"})
    producer.init_transactions(WAIT_S)
    with member_of(broker, "g", isolation_level="read_committed") as member:
        consumer = member.consumer
        member.poll_until(lambda: len(member.values) == 8)
        asked = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        for commits, expected in ((False, -1001), (True, 2)):
            producer.begin_transaction()
            producer.produce("copies", b"copy")
            producer.send_offsets_to_transaction(consumer.position(asked), consumer.consumer_group_metadata(), WAIT_S)
            with pytest.raises(KafkaException):  # UNSTABLE_OFFSET_COMMIT, tried again until the time is over
                consumer.committed(asked, timeout=0.5)
            if commits:
                producer.commit_transaction(WAIT_S)
            else:
                producer.abort_transaction(WAIT_S)
            assert {part.offset for part in consumer.committed(asked, timeout=WAIT_S)} == {expected}


def test_admin_looks_at_groups_and_deletes_them(broker: Broker) -> None:
    fill(broker, 8)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    with member_of(broker, "busy", client_id="me") as member:
        member.poll_until(lambda: len(member.values) == 8)
        member.consumer.commit(asynchronous=False)
        group = admin.describe_consumer_groups(["busy"])["busy"].result(WAIT_S)
        assert (group.state.name, group.partition_assignor) == ("STABLE", "range")
        assert [(m.client_id, m.host) for m in group.members] == [("me", "/127.0.0.1")]
        assert {part.partition for part in group.members[0].assignment.topic_partitions} == set(range(PARTITIONS))
        listed = admin.list_consumer_groups().result(WAIT_S).valid
        assert [(entry.group_id, entry.state.name) for entry in listed] == [("busy", "STABLE")]
        with pytest.raises(KafkaException, match=r"NON_EMPTY_GROUP|not empty"):
            admin.delete_consumer_groups(["busy"])["busy"].result(WAIT_S)
    request = ConsumerGroupTopicPartitions("busy", [TopicPartition(TOPIC, 1, 1)])
    admin.alter_consumer_group_offsets([request])["busy"].result(WAIT_S)
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("busy")])["busy"].result(WAIT_S)
    assert {part.partition: part.offset for part in found.topic_partitions} == {0: 2, 1: 1, 2: 2, 3: 2}
    admin.delete_consumer_groups(["busy"])["busy"].result(WAIT_S)
    assert admin.list_consumer_groups().result(WAIT_S).valid == []


def test_deleted_topic_takes_its_offsets_along(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "simple"})
    try:
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, 7)], asynchronous=False)
        assert consumer.committed([TopicPartition(TOPIC, 0)], timeout=WAIT_S)[0].offset == 7
        admin.delete_topics([TOPIC])[TOPIC].result(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while consumer.committed([TopicPartition(TOPIC, 0)], timeout=WAIT_S)[0].offset != -1001:
            assert time.monotonic() < deadline
    finally:
        consumer.close()


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat_reads_in_a_group(broker: Broker) -> None:
    values = fill(broker, 20)
    command = [
        "kcat",
        "-b",
        broker.bootstrap_servers,
        "-G",
        "kcat-group",
        "-q",
        "-e",
        "-X",
        "auto.offset.reset=earliest",
        TOPIC,
    ]
    read = subprocess.run(command, capture_output=True, timeout=240, check=True)
    assert sorted(read.stdout.split()) == sorted(values)
    again = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert again.stdout == b""  # it had committed
