"""Consumer groups of KIP-848 on three brokers: their coordinator is killed, and its members go on where they were."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.support.clients.librdkafka import value_of
from tests.support.processes.cluster import GROUP, Cluster
from tests.support.processes.kit_cluster import KitCluster

TOPIC = "flights"
PARTITIONS = 4
SETTINGS = (
    "offsets.topic.num.partitions=3",
    "group.consumer.assignment.interval.ms=0",
    "group.consumer.heartbeat.interval.ms=200",
    "group.consumer.session.timeout.ms=30000",
)
WAIT_S = 60.0
LOST = ("STALE_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "_WAIT_COORD", "NOT_COORDINATOR", "_TRANSPORT", "_TIMED_OUT")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with KitCluster(*SETTINGS) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        yield cluster


class Member:
    """Reads and commits; an interrupted commit is only repeated work."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self.values: set[bytes] = set()
        self.rebalances = 0
        self.consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self.consumer.subscribe([TOPIC], on_assign=self._on_assign)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        consumer.incremental_assign(partitions)

    @property
    def partitions(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def read(self) -> None:
        message = self.consumer.poll(0.05)
        if message is not None and message.error() is None:
            self.values.add(value_of(message))
            try:
                self.consumer.commit(message=message, asynchronous=True)
            except KafkaException as error:
                if error.args[0].name() not in LOST:
                    raise


def test_members_go_on_when_their_coordinator_is_killed(cluster: Cluster) -> None:
    group = "orphans"
    members = [Member(cluster, group), Member(cluster, group)]
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    wanted: set[bytes] = set()

    def produce(count: int) -> None:
        for _ in range(count):
            value = b"%d" % len(wanted)
            producer.produce(TOPIC, value, partition=len(wanted) % PARTITIONS)
            wanted.add(value)
        assert producer.flush(WAIT_S) == 0

    def read_until_all() -> None:
        deadline = time.monotonic() + WAIT_S
        while members[0].values | members[1].values != wanted or min(len(m.partitions) for m in members) < 2:
            assert time.monotonic() < deadline, [sorted(member.partitions) for member in members]
            for member in members:
                member.read()

    produce(40)
    read_until_all()
    before = [member.partitions for member in members]
    rebalances = [member.rebalances for member in members]
    for _ in range(2):
        coordinator = cluster.coordinator(group, GROUP)
        cluster.kill(coordinator)
        produce(40)
        read_until_all()
        cluster.start_node(coordinator)
        cluster.wait_in_sync(TOPIC, "__consumer_offsets")
    assert [member.partitions for member in members] == before
    assert [member.rebalances for member in members] == rebalances, "no member was disturbed"
    for member in members:
        member.consumer.close()
