"""Consumer groups as foreign clients use them: librdkafka, aiokafka and kcat, alone and in one group."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
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
        self.revoked = 0
        self.values: list[bytes] = []
        self.closed = False
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
        self.consumer.subscribe([TOPIC], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned += 1

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.revoked += 1

    @property
    def partitions(self) -> set[int]:
        return {partition.partition for partition in self.consumer.assignment()}

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is not None and message.error() is None:
            self.values.append(value_of(message))

    def close(self) -> None:
        self.closed = True
        self.consumer.close()


@contextmanager
def members(*made: Member) -> Iterator[tuple[Member, ...]]:
    with ExitStack() as stack:
        for member in made:
            stack.callback(member.close)
        yield made


def poll_until(condition: Callable[[], bool], *polled: Member) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, [(member.partitions, len(member.values)) for member in polled]
        for member in polled:
            member.poll()


def shared_by(*sharing: Member) -> bool:
    """Whether all partitions are assigned, each to one member, evenly."""
    counts = Counter(partition for member in sharing for partition in member.partitions)
    fair = {PARTITIONS // len(sharing), -(-PARTITIONS // len(sharing))}
    return counts == dict.fromkeys(range(PARTITIONS), 1) and {len(m.partitions) for m in sharing} <= fair


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_librdkafka_members_share_and_take_over(broker: Broker, strategy: str) -> None:
    values = fill(broker, 40)
    settings = {"partition_assignment_strategy": strategy}
    first, second = Member(broker, "g", **settings), Member(broker, "g", **settings)
    with members(first):
        try:
            poll_until(lambda: shared_by(first, second), first, second)
            if strategy == "cooperative-sticky":
                assert not first.revoked or first.assigned > 1
            poll_until(lambda: {*first.values, *second.values} == {*values} and bool(second.values), first, second)
            second.consumer.commit(asynchronous=False)
        finally:
            second.close()
        poll_until(lambda: shared_by(first), first)
        more = fill(broker, 8, 40)
        poll_until(lambda: set(more) <= {*first.values}, first)
    assert {*first.values, *second.values} == {*values, *more}


def test_killed_member_is_replaced_when_its_session_ends(broker: Broker) -> None:
    program = (
        "import sys; from confluent_kafka import Consumer\n"
        f"c = Consumer({{'bootstrap.servers': {broker.bootstrap_servers!r}, 'group.id': 'g', 'session.timeout.ms': 1000,"
        " 'heartbeat.interval.ms': 100})\n"
        f"c.subscribe([{TOPIC!r}], on_assign=lambda c, p: print(len(p), flush=True))\n"
        "while True: c.poll(0.1)\n"
    )
    victim = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert victim.stdout is not None
        assert victim.stdout.readline() == f"{PARTITIONS}\n"
        with members(Member(broker, "g")) as (survivor,):
            poll_until(lambda: len(survivor.partitions) == PARTITIONS // 2, survivor)
            victim.send_signal(signal.SIGKILL)
            poll_until(lambda: len(survivor.partitions) == PARTITIONS, survivor)
    finally:
        victim.kill()
        victim.wait()


def test_static_member_restarts_without_a_rebalance(broker: Broker) -> None:
    first, second = (Member(broker, "g", group_instance_id=name) for name in ("one", "two"))
    with members(first):
        poll_until(lambda: shared_by(first, second), first, second)
        before = first.assigned
        held = second.partitions
        second.close()  # a static member leaves nothing when it goes
        with members(Member(broker, "g", group_instance_id="two")) as (again,):
            poll_until(lambda: again.partitions == held, first, again)
        assert first.assigned == before


def test_second_static_member_of_a_name_fences_the_first(broker: Broker) -> None:
    first = Member(broker, "g", group_instance_id="same")
    poll_until(lambda: len(first.partitions) == PARTITIONS, first)
    with members(Member(broker, "g", group_instance_id="same")) as (second,):
        poll_until(lambda: len(second.partitions) == PARTITIONS, second)
        with pytest.raises(KafkaException, match=r"(?i)fenced|instance id"):
            first.consumer.commit(offsets=[TopicPartition(TOPIC, 0, 1)], asynchronous=False)
    first.close()


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
def test_commits_and_members_survive_a_restart(broker: Broker, kill: bool) -> None:
    fill(broker, 8)
    session_ms = int(
        START_SECONDS_MAX * 1000
    )  # longer than any restart takes: else the member itself gives its session up
    with members(Member(broker, "g", session_timeout_ms=session_ms)) as (member,):
        poll_until(lambda: len(member.values) == 8, member)
        member.consumer.commit(
            offsets=[TopicPartition(TOPIC, partition, 2, f"note {partition}") for partition in range(PARTITIONS)],
            asynchronous=False,
        )
        restart(broker, kill=kill)
        generation = member.assigned
        found = member.consumer.committed([TopicPartition(TOPIC, p) for p in range(PARTITIONS)], timeout=WAIT_S)
        assert [(part.offset, part.metadata) for part in found] == [(2, f"note {p}") for p in range(PARTITIONS)]
        more = fill(broker, 4, 8)
        poll_until(lambda: set(more) <= {*member.values}, member)
        assert member.assigned == generation  # it went on in the same generation
    with members(Member(broker, "g")) as (successor,):
        poll_until(lambda: len(successor.values) >= 4, successor)
        assert sorted(successor.values) == sorted(more)


def test_offsets_in_a_transaction_are_unstable_until_it_ends(broker: Broker) -> None:
    fill(broker, 8)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "copy"})
    producer.init_transactions(WAIT_S)
    with members(Member(broker, "g", isolation_level="read_committed")) as (member,):
        consumer = member.consumer
        poll_until(lambda: len(member.values) == 8, member)
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


def test_zombie_of_an_old_generation_cannot_commit_in_a_transaction(broker: Broker) -> None:
    fill(broker, 8)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "copy"})
    producer.init_transactions(WAIT_S)
    first = Member(broker, "g")
    with members(first):
        poll_until(lambda: len(first.values) == 8, first)
        stale = first.consumer.consumer_group_metadata()
        with members(Member(broker, "g")) as (second,):
            poll_until(lambda: shared_by(first, second), first, second)
            producer.begin_transaction()
            with pytest.raises(KafkaException) as refused:
                producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, 5)], stale, WAIT_S)
            assert refused.value.args[0].txn_requires_abort()
            producer.abort_transaction(WAIT_S)


async def test_aiokafka_and_librdkafka_in_one_group(broker: Broker) -> None:
    native = AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=broker.bootstrap_servers,
        group_id="mixed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=100,
        partition_assignment_strategy=[RoundRobinPartitionAssignor],
    )
    foreign = Member(broker, "mixed", partition_assignment_strategy="roundrobin")
    taken: list[bytes] = []

    async def read_both(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, (native.assignment(), foreign.partitions, len(taken))
            if not foreign.closed:
                await asyncio.to_thread(foreign.poll)
            for batch in (await native.getmany(timeout_ms=20)).values():
                taken.extend(record.value for record in batch)

    await native.start()
    try:
        await read_both(lambda: len(native.assignment()) == len(foreign.partitions) == PARTITIONS // 2)
        values = fill(broker, 40)
        await read_both(lambda: {*taken, *foreign.values} == {*values})
        await native.commit()
        await asyncio.to_thread(foreign.consumer.commit, asynchronous=False)
        foreign.close()
        await read_both(lambda: len(native.assignment()) == PARTITIONS)
        offsets = [await native.committed(partition) for partition in sorted(native.assignment())]
        assert offsets == [10] * PARTITIONS
    finally:
        await native.stop()


async def test_aiokafka_members_come_and_go(broker: Broker) -> None:
    fill(broker, 12)
    consumers = [
        AIOKafkaConsumer(
            TOPIC,
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=100,
            metadata_max_age_ms=1_000,
        )
        for _ in range(3)
    ]
    try:
        for started, consumer in enumerate(consumers, 1):
            await consumer.start()
            async with asyncio.timeout(WAIT_S):
                while sorted(len(c.assignment()) for c in consumers[:started]) != fair_shares(started):
                    await asyncio.gather(*(c.getmany(timeout_ms=20) for c in consumers[:started]))
    finally:
        for consumer in consumers:
            await consumer.stop()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    described = admin.describe_consumer_groups(["g"])["g"].result(WAIT_S)
    assert described.state.name == "EMPTY"


def fair_shares(size: int) -> list[int]:
    return sorted(PARTITIONS // size + (number < PARTITIONS % size) for number in range(size))


def test_admin_looks_at_groups_and_deletes_them(broker: Broker) -> None:
    fill(broker, 8)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    with members(Member(broker, "busy", client_id="me")) as (member,):
        poll_until(lambda: len(member.values) == 8, member)
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
