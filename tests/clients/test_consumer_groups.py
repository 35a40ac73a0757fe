"""Consumer groups of KIP-848 with members of librdkafka: expressions and transactions.

How members share: test_bundled_groups.py. Coordinators that die: tests/process/test_consumer_group_failover.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.testing import Broker

pytestmark = pytest.mark.clients

TOPIC = "flights"
PARTITIONS = 4
SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "offsets.topic.num.partitions=4",
    "group.consumer.assignment.interval.ms=0",
    "group.consumer.heartbeat.interval.ms=100",
    "group.consumer.session.timeout.ms=30000",  # longer than a busy machine stands still
)
WAIT_S = 60


@pytest.fixture
def broker(serve: Callable[..., Broker]) -> Broker:
    """A broker whose members send a heartbeat every 100 ms, with one topic of four partitions."""
    served = serve(*SETTINGS)
    make_topic(served, TOPIC, PARTITIONS)
    return served


def make_topic(broker: Broker, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(WAIT_S)


class Member:
    """A member of a consumer group."""

    def __init__(self, broker: Broker, group: str, topics: str = TOPIC) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self.consumer.subscribe([topics])

    @property
    def partitions(self) -> set[tuple[str, int]]:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}

    def poll_until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < deadline, sorted(self.partitions)
            self.consumer.poll(0.05)


def test_expressions_are_matched_by_the_coordinator_and_find_new_topics(broker: Broker) -> None:
    make_topic(broker, "ships-1", 1)
    member = Member(broker, "matched", "^ships-.*")
    member.poll_until(lambda: member.partitions == {("ships-1", 0)})
    make_topic(broker, "ships-2", 2)
    member.poll_until(lambda: member.partitions == {("ships-1", 0), ("ships-2", 0), ("ships-2", 1)})
    member.consumer.close()


def test_transactions_carry_offsets_of_consumer_groups(broker: Broker) -> None:
    """KIP-447: the group's metadata has the member's epoch."""
    member = Member(broker, "transactional")
    member.poll_until(lambda: len(member.partitions) == PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    metadata = member.consumer.consumer_group_metadata()
    producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, 7)], metadata, WAIT_S)
    producer.commit_transaction(WAIT_S)
    assert member.consumer.committed([TopicPartition(TOPIC, 0)], WAIT_S)[0].offset == 7
    member.consumer.close()
    producer.begin_transaction()
    with pytest.raises(KafkaException):  # the member is gone
        producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, 9)], metadata, WAIT_S)
    producer.abort_transaction(WAIT_S)
