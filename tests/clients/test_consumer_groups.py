"""Consumer groups of KIP-848 with members of librdkafka: joining, dying, expressions, beside members of the classic protocol."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.testing import Broker
from tests.support.clients.librdkafka import value_of

pytestmark = pytest.mark.clients

TOPIC = "flights"
PARTITIONS = 4
SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=500",
    "offsets.topic.num.partitions=4",
    "group.consumer.assignment.interval.ms=0",
    "group.consumer.heartbeat.interval.ms=100",
    "group.consumer.session.timeout.ms=30000",  # longer than a busy machine stands still
)
WAIT_S = 60
# A commit for a partition that has just gone to another member, who reads the record again.
LOST = ("STALE_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS")


@pytest.fixture
def broker(serve: Callable[..., Broker]) -> Broker:
    """A broker whose members send a heartbeat every 100 ms, with one topic of four partitions."""
    served = serve(*SETTINGS)
    make_topic(served, TOPIC, PARTITIONS)
    return served


def make_topic(broker: Broker, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(WAIT_S)


def fill(broker: Broker, count: int, first: int = 0) -> set[bytes]:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    values = {b"%d" % number for number in range(first, first + count)}
    for number, value in enumerate(sorted(values)):
        producer.produce(TOPIC, value, partition=number % PARTITIONS)
    assert producer.flush(WAIT_S) == 0
    return values


def settings(broker: Broker, group: str, protocol: str = "consumer") -> dict[str, Any]:
    common = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if protocol == "classic":
        common |= {
            "session.timeout.ms": 3_000,
            "heartbeat.interval.ms": 100,
            "partition.assignment.strategy": "cooperative-sticky",
        }
    return common


class Member:
    """A consumer that commits what it reads and counts who owns what."""

    def __init__(
        self, broker: Broker, group: str, topics: str = TOPIC, protocol: str = "consumer", **more: Any
    ) -> None:
        self.values: list[bytes] = []
        self.consumer = Consumer({**settings(broker, group, protocol), **more})
        self.consumer.subscribe([topics])

    def read(self) -> None:
        message = self.consumer.poll(0.05)
        if message is not None and message.error() is None:
            self.values.append(value_of(message))
            try:
                self.consumer.commit(message=message, asynchronous=False)
            except KafkaException as error:
                if error.args[0].name() not in LOST:
                    raise

    @property
    def partitions(self) -> set[tuple[str, int]]:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


def read_until(members: list[Member], done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, [sorted(member.partitions) for member in members]
        for member in members:
            member.read()


def shared(members: list[Member], topic: str = TOPIC, count: int = PARTITIONS) -> Callable[[], bool]:
    """Every partition is owned, and by one of them."""
    every = {(topic, number) for number in range(count)}

    def balanced() -> bool:
        owned = [member.partitions for member in members]
        return set().union(*owned) == every and sum(map(len, owned)) == count and all(owned)

    return balanced


def test_members_share_join_and_leave(broker: Broker) -> None:
    group = "joined"
    wanted = fill(broker, 200)
    members = [Member(broker, group)]
    read_until(members, lambda: len(members[0].partitions) == PARTITIONS)
    members.append(Member(broker, group))
    read_until(members, shared(members))

    def seen() -> set[bytes]:
        return {value for member in members for value in member.values}

    read_until(members, lambda: seen() == wanted)
    wanted |= fill(broker, 100, 1_000)
    read_until(members, lambda: seen() == wanted)
    gone = members.pop()
    early = set(gone.values)
    gone.close()
    read_until(members, lambda: len(members[0].partitions) == PARTITIONS)
    wanted |= fill(broker, 100, 2_000)
    read_until(members, lambda: seen() | early == wanted)
    members[0].close()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    listed = admin.list_consumer_groups().result(WAIT_S).valid
    assert [(each.group_id, each.state.name, each.type) for each in listed] == [
        (group, "EMPTY", ConsumerGroupType.CONSUMER)
    ]


CHILD = """
import sys
from confluent_kafka import Consumer
consumer = Consumer(eval(sys.argv[1]))
consumer.subscribe([sys.argv[2]])
while True:
    consumer.poll(0.1)
    if consumer.assignment():
        print("assigned", flush=True)
"""


def test_a_killed_member_loses_its_partitions_after_its_session(serve: Callable[..., Broker]) -> None:
    broker = serve(*SETTINGS, "group.consumer.session.timeout.ms=1500")
    make_topic(broker, TOPIC, PARTITIONS)
    group = "killed"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, repr(settings(broker, group)), TOPIC], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "assigned\n"
        member = Member(broker, group)
        read_until([member], lambda: len(member.partitions) == PARTITIONS // 2)
        os.kill(child.pid, signal.SIGKILL)
        read_until([member], lambda: len(member.partitions) == PARTITIONS)
        member.close()
    finally:
        child.kill()
        child.wait()


def test_the_group_outlives_its_coordinator(serve: Callable[..., Broker]) -> None:
    broker = serve(*SETTINGS)
    make_topic(broker, TOPIC, PARTITIONS)
    group = "restarted"
    wanted = fill(broker, 40)
    members = [Member(broker, group), Member(broker, group)]
    read_until(members, shared(members))
    before = [member.partitions for member in members]
    broker.kill()
    broker.restart()
    more = fill(broker, 40, 1_000)
    read_until(members, lambda: {value for member in members for value in member.values} == wanted | more)
    assert [member.partitions for member in members] == before, "a restart moves nothing"
    for member in members:
        member.close()


def test_expressions_are_matched_by_the_coordinator_and_find_new_topics(broker: Broker) -> None:
    make_topic(broker, "ships-1", 1)
    member = Member(broker, "matched", "^ships-.*")
    read_until([member], lambda: member.partitions == {("ships-1", 0)})
    make_topic(broker, "ships-2", 2)
    read_until([member], lambda: member.partitions == {("ships-1", 0), ("ships-2", 0), ("ships-2", 1)})
    member.close()


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_of_both_protocols_share_a_group(broker: Broker, assignor: str) -> None:
    group = f"mixed-{assignor}"
    wanted = fill(broker, 40)
    classic = Member(broker, group, protocol="classic")
    read_until([classic], lambda: len(classic.partitions) == PARTITIONS)
    modern = Member(broker, group, **{"group.remote.assignor": assignor})
    members = [classic, modern]
    read_until(members, shared(members))
    wanted |= fill(broker, 40, 1_000)
    read_until(members, lambda: set(classic.values) | set(modern.values) == wanted)
    assert group_type(broker, group) is ConsumerGroupType.CONSUMER
    modern.close()
    read_until([classic], lambda: len(classic.partitions) == PARTITIONS)
    assert group_type(broker, group) is ConsumerGroupType.CLASSIC
    wanted |= fill(broker, 40, 2_000)
    read_until([classic], lambda: set(classic.values) | set(modern.values) == wanted)
    classic.close()


def group_type(broker: Broker, group: str) -> ConsumerGroupType:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    listed = admin.list_consumer_groups().result(WAIT_S).valid
    kinds: list[ConsumerGroupType] = [each.type for each in listed if each.group_id == group]
    return kinds[0]


def test_transactions_carry_offsets_of_consumer_groups(broker: Broker) -> None:
    """KIP-447: the group's metadata has the member's epoch."""
    fill(broker, 4)
    member = Member(broker, "transactional")
    read_until([member], lambda: len(member.partitions) == PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    metadata = member.consumer.consumer_group_metadata()
    producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, 7)], metadata, WAIT_S)
    producer.commit_transaction(WAIT_S)
    assert member.consumer.committed([TopicPartition(TOPIC, 0)], WAIT_S)[0].offset == 7
    member.close()
    producer.begin_transaction()
    with pytest.raises(KafkaException):  # the member is gone
        producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, 9)], metadata, WAIT_S)
    producer.abort_transaction(WAIT_S)
