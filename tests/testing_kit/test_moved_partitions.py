"""Partitions that the test kit moves between members of a group, as librdkafka and the bundled consumer see it, in both modes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

import pytest

from barnabas.client import Admin, Consumer, Producer, RebalanceListener, TopicPartition
from barnabas.protocol.messages.groups import (
    ConsumerProtocolSubscription,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from barnabas.protocol.schema import encode_versioned
from barnabas.testing import Broker, Cluster, KitError, KitTimeout, NotPossible
from barnabas.testing.backend import Mode
from tests.support.kit_modes import THREADS

Kind = Literal["range", "cooperative-sticky", "consumer"]  # two assignors of the classic protocol, and KIP-848
KINDS: list[Kind] = ["range", "cooperative-sticky", "consumer"]
LIMIT_S = 60.0
PARTITIONS = 4
HEARTBEATS = {"group.consumer.min.heartbeat.interval.ms": 200, "group.consumer.heartbeat.interval.ms": 200}
Event = tuple[str, list[int]]  # "revoked" or "assigned", partitions


@pytest.fixture(params=THREADS, scope="module")
def kafka(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    mode: Mode = request.param
    with Broker(mode=mode, timeout=LIMIT_S, config=HEARTBEATS) as kafka:
        yield kafka


class Seen:
    """What one consumer has seen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[Event] = []
        self.values: list[bytes] = []
        self.held: set[int] = set()

    def revoked(self, partitions: list[int]) -> None:
        self.held -= set(partitions)
        if partitions:
            self.events.append(("revoked", sorted(partitions)))

    def assigned(self, partitions: list[int]) -> None:
        self.held |= set(partitions)
        if partitions:
            self.events.append(("assigned", sorted(partitions)))


async def write(kafka: Cluster, topic: str, prefix: str) -> list[bytes]:
    values = [f"{prefix}-{number}".encode() for number in range(3 * PARTITIONS)]
    async with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for number, value in enumerate(values):
            await producer.send_and_wait(topic, value, partition=number % PARTITIONS)
    return values


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not reached():  # noqa: ASYNC110  # other threads and callbacks change what is waited for
            await asyncio.sleep(0.01)


async def until_shared(members: list[Seen]) -> None:
    await until(lambda: sorted(len(each.held) for each in members) == [2, 2])


async def until_read(members: list[Seen], wanted: list[bytes]) -> None:
    await until(lambda: {value for each in members for value in each.values}.issuperset(wanted))


async def check_move(kafka: Cluster, topic: str, group: str, kind: Kind, members: list[Seen]) -> None:
    """Moves a partition between two members that poll, and checks what both have seen."""
    await until_shared(members)
    first = await write(kafka, topic, "before")
    await until_read(members, first)  # a value counts after its commit
    source, target = members
    moved = min(source.held)
    kept, had = source.held - {moved}, set(target.held)
    for each in members:
        each.events.clear()
    await kafka.group(group).aio.move((topic, moved), to=target.name)
    found = {each.client_id: each.assignment for each in await kafka.group(group).aio.members()}
    assert sorted(each.partition for each in found[target.name]) == sorted(had | {moved})
    assert [each.partition for each in found[source.name]] == sorted(kept)
    second = await write(kafka, topic, "after")
    await until_read(members, second)
    if kind == "range":  # every member gives all back
        assert source.events == [("revoked", sorted(kept | {moved})), ("assigned", sorted(kept))]
        assert target.events == [("revoked", sorted(had)), ("assigned", sorted(had | {moved}))]
    else:
        assert (source.events, target.events) == ([("revoked", [moved])], [("assigned", [moved])])
    assert sorted(value for each in members for value in each.values) == sorted(first + second)
    of_moved = {value for number, value in enumerate(second) if number % PARTITIONS == moved}
    assert of_moved <= set(target.values)


# -- librdkafka


@contextmanager
def polling(kafka: Cluster, topic: str, group: str, kind: Kind, seen: Seen) -> Iterator[None]:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    protocol = {"group.protocol": "consumer"} if kind == "consumer" else {"partition.assignment.strategy": kind}
    timing = {} if kind == "consumer" else {"heartbeat.interval.ms": 200, "session.timeout.ms": 30_000}
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": group,
            "client.id": seen.name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **protocol,
            **timing,
        }
    )
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                consumer.commit(message, asynchronous=False)
                seen.values.append(message.value())

    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: seen.assigned([each.partition for each in partitions]),
        on_revoke=lambda _, partitions: seen.revoked([each.partition for each in partitions]),
    )
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        consumer.close()


@pytest.mark.clients
@pytest.mark.parametrize("kind", KINDS)
def test_consumers_of_librdkafka_see_the_move(kafka: Cluster, kind: Kind) -> None:
    name = f"librdkafka-{kind}"
    topic = kafka.create_topic(name, partitions=PARTITIONS)
    one, two = Seen("one"), Seen("two")
    with polling(kafka, topic, name, kind, one), polling(kafka, topic, name, kind, two):
        asyncio.run(check_move(kafka, topic, name, kind, [one, two]))


# -- the bundled consumer


class Listener(RebalanceListener):
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self._seen.revoked([each.partition for each in revoked])

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._seen.assigned([each.partition for each in assigned])


@asynccontextmanager
async def reading(kafka: Cluster, topic: str, group: str, kind: Kind, seen: Seen) -> AsyncIterator[None]:
    consumer = Consumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group,
        client_id=seen.name,
        group_protocol="consumer" if kind == "consumer" else "classic",
        partition_assignment_strategy=("range",) if kind == "consumer" else (kind,),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=200,
        session_timeout_ms=30_000,
        listener=Listener(seen),
    )

    async def run() -> None:
        while True:
            record = await consumer.getone()
            await consumer.commit({TopicPartition(record.topic, record.partition): record.offset + 1})
            seen.values.append(record.value or b"")

    async with consumer:
        task = asyncio.get_running_loop().create_task(run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("kind", KINDS)
def test_bundled_consumers_see_the_move(kafka: Cluster, kind: Kind) -> None:
    name = f"bundled-{kind}"
    topic = kafka.create_topic(name, partitions=PARTITIONS)
    one, two = Seen("one"), Seen("two")

    async def run() -> None:
        async with reading(kafka, topic, name, kind, one), reading(kafka, topic, name, kind, two):
            await check_move(kafka, topic, name, kind, [one, two])

    asyncio.run(run())


# -- what cannot be


@pytest.mark.parametrize("kind", KINDS)
def test_moves_that_cannot_be_are_refused(kafka: Cluster, kind: Kind) -> None:
    topic = kafka.create_topic(f"refused-{kind}", partitions=PARTITIONS)
    other = kafka.create_topic(f"other-{kind}", partitions=1)
    group = kafka.group(f"refused-{kind}")
    one, two = Seen("one"), Seen("two")
    refused: list[tuple[Any, str, str]] = [
        ((topic, 4), "one", "partition 4 of topic 'refused-.*' is unknown; it has partitions 0 to 3"),
        ((topic, -1), "one", "partition=-1: write a whole number from 0"),
        (("none", 0), "one", "unknown topic 'none'"),
        ((topic, 0), "three", "unknown member of group 'refused-.*' 'three'.* Known: 'one', 'two'"),
        ((other, 0), "one", "does not subscribe to the topic of other-"),
        (topic, "one", "name a partition as a pair"),
        ((topic, "0"), "one", "name a partition as a pair"),
        ((topic, True), "one", "name a partition as a pair"),
    ]

    async def run() -> None:
        async with (
            reading(kafka, topic, group.name, kind, one),
            reading(kafka, topic, group.name, kind, two),
        ):
            await until_shared([one, two])
            for partition, to, text in refused:
                with pytest.raises(KitError, match=text):
                    await group.aio.move(partition, to=to)
            with pytest.raises(KitError, match=f"has {topic}-{min(one.held)} already"):
                await group.aio.move((topic, min(one.held)), to="one")

    asyncio.run(run())
    with pytest.raises(KitError, match=r"unknown member of group 'refused-.*' 'one'; there is none"):
        group.move((topic, 0), to="one")
    with Cluster.connect(kafka.bootstrap_servers) as remote, pytest.raises(NotPossible, match="remote"):
        remote.group(group.name).move((topic, 0), to="one")


@asynccontextmanager
async def joined(kafka: Cluster, group: str, protocol_type: str, topic: str, data: bytes) -> AsyncIterator[None]:
    """A member "one" of another program, which gives itself an assignment."""
    subscription = encode_versioned(ConsumerProtocolSubscription(topics=[topic]), 1)
    async with Admin(bootstrap_servers=kafka.bootstrap_servers, client_id="foreign") as admin:

        async def answer(request: Any) -> Any:
            return await admin._ask(request, coordinator=("group", group))

        join = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id="",
            group_instance_id="one",
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name="own", metadata=subscription)],
        )
        member = await answer(join)
        sync = SyncGroupRequest(
            group_id=group,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id="one",
            protocol_type=protocol_type,
            protocol_name="own",
            assignments=[SyncGroupRequestAssignment(member_id=member.member_id, assignment=data)],
        )
        await answer(sync)
        yield


@pytest.mark.parametrize(
    ("group", "protocol_type", "data", "text"),
    [
        ("connectors", "connect", b"", "group 'connectors' is of type 'connect', and only consumers have partitions"),
        ("foreign", "consumer", b"\0\0\xff", "the assignments of protocol 'own' of group 'foreign' cannot be read"),
        ("idle", "consumer", b"", "no member of group 'idle' has idle-0, so it cannot move"),
    ],
)
def test_groups_of_other_programs_are_refused(
    kafka: Cluster, group: str, protocol_type: str, data: bytes, text: str
) -> None:
    topic = kafka.create_topic(group, partitions=1)

    async def run() -> None:
        async with joined(kafka, group, protocol_type, topic, data):
            with pytest.raises(KitError, match=text):
                await kafka.group(group).aio.move((topic, 0), to="one")

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["range", "cooperative-sticky"])
def test_a_member_that_does_not_join_is_named_and_the_group_goes_on(kind: Kind) -> None:
    one, two = Seen("one"), Seen("two")

    async def run(kafka: Cluster) -> None:
        async with (
            reading(kafka, "orders", "late", kind, one),
            reading(kafka, "orders", "late", kind, two),
        ):
            await until_shared([one, two])
            held = kafka.faults.on("JoinGroup", client="one").hold()
            kafka.core().timeout_s = 3
            with pytest.raises(KitTimeout, match=r"missing: JoinGroup of one-.*: a member joins when its application"):
                await kafka.group("late").aio.move(("orders", min(one.held)), to="two")
            kafka.core().timeout_s = LIMIT_S
            held.release()
            values = await write(kafka, "orders", "after")
            await until_read([one, two], values)
            await until_shared([one, two])

    with Broker(topics={"orders": PARTITIONS}) as kafka:
        asyncio.run(run(kafka))


def test_a_cooperative_member_gives_the_partition_back_before_another_one_gets_it(kafka: Cluster) -> None:
    topic = kafka.create_topic("withheld", partitions=PARTITIONS)
    group = kafka.group("withheld")
    one, two = Seen("one"), Seen("two")

    async def run() -> None:
        async with (
            reading(kafka, topic, group.name, "cooperative-sticky", one),
            reading(kafka, topic, group.name, "cooperative-sticky", two),
        ):
            await until_shared([one, two])
            moved = min(one.held)
            held = kafka.faults.on("JoinGroup", client="one", group=group.name, nth=2).hold()
            moving = asyncio.get_running_loop().create_task(group.aio.move((topic, moved), to="two"))
            await held.aio.wait(1, LIMIT_S)  # it has revoked the partition, and joins again
            given = {partition.partition for each in await group.aio.members() for partition in each.assignment}
            assert given == set(range(PARTITIONS)) - {moved}
            held.release()
            await moving
            await until(lambda: moved in two.held)

    asyncio.run(run())
