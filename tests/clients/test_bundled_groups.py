"""Consumer groups with the bundled client, in both protocols and with every assignor, against Barnabas and against real Kafka:

sharing with members of its own kind and of other clients, callbacks, patterns, static members, commits, transactions.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.client import (
    Admin,
    Consumer,
    KafkaError,
    Producer,
    RebalanceListener,
    TopicPartition,
)
from barnabas.errors import ErrorCode
from tests.support.clients.bundled import PARTITIONS, fill, make_group, make_topic, poll_until
from tests.support.clients.group_members import Aiokafka, Bundled, KafkaPython, Librdkafka, Member, Membership

pytestmark = [pytest.mark.clients, pytest.mark.asyncio]

# What each client is called to be in a group of: "consumer" is KIP-848, the others are assignors of the classic protocol.
STRATEGIES: dict[str, list[type[Member]]] = {
    "range": [Aiokafka, Librdkafka, KafkaPython],
    "roundrobin": [Aiokafka, Librdkafka, KafkaPython],
    "sticky": [Aiokafka, KafkaPython],
    "cooperative-sticky": [Librdkafka, KafkaPython],
    "consumer": [Librdkafka],
}


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_all_clients_in_one_group(bootstrap: str, admin: Admin, name: str, strategy: str) -> None:
    """Each client reads the assignment of each leader: the members leave in the order in which they joined."""
    topic = await make_group(admin, name)
    group = Membership(topic, PARTITIONS)
    await fill(bootstrap, topic, 120)
    clients: list[Any] = [Bundled, *STRATEGIES[strategy], Bundled]
    try:
        for client in clients:
            await group.join(client(bootstrap, name, topic, strategy))
            await group.until(group.shared)
        await group.until(lambda: len(group.read) == 120)
        for member in list(group.members)[:-1]:
            await group.leave(member)
            await group.until(group.shared)
        await fill(bootstrap, topic, 120)
        await group.until(lambda: len(group.read) == 240)
    finally:
        await group.close()


@pytest.mark.parametrize("assignor", ["uniform", "range"])
async def test_the_coordinators_assignor_may_be_chosen(bootstrap: str, admin: Admin, name: str, assignor: str) -> None:
    topic = await make_group(admin, name)
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "group_id": name,
        "group_protocol": "consumer",
        "group_remote_assignor": assignor,
    }
    async with Consumer(topic, **settings) as first, Consumer(topic, **settings) as second:
        await poll_until([first, second], lambda: len(first.assignment()) == 3 == len(second.assignment()))
        assert (await admin.describe_group(name)).protocol == assignor
        if assignor == "range":
            ranges = sorted(sorted(tp.partition for tp in each.assignment()) for each in (first, second))
            assert ranges == [[0, 1, 2], [3, 4, 5]]


async def test_an_assignor_that_the_coordinator_does_not_know(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_group(admin, name)
    async with Consumer(
        topic, bootstrap_servers=bootstrap, group_id=name, group_protocol="consumer", group_remote_assignor="fairest"
    ) as consumer:
        with pytest.raises(KafkaError, match="fairest") as refused:
            await poll_until([consumer], lambda: False)
    assert refused.value.code is ErrorCode.UNSUPPORTED_ASSIGNOR


async def test_two_members_share_and_one_takes_over(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name, 4)
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "group_id": name,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "heartbeat_interval_ms": 100,
        "partition_assignment_strategy": ["range"],
    }
    told: list[tuple[str, int]] = []

    class Listener(RebalanceListener):
        async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
            told.append(("assigned", len(assigned)))

        async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
            told.append(("revoked", len(revoked)))

    everything = {TopicPartition(topic, p) for p in range(4)}
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for i in range(40):
            await producer.send(topic, b"%d" % i, partition=i % 4)
    async with Consumer(topic, **settings, listener=Listener()) as first:
        read = await poll_until([first], lambda: first.assignment() == everything)
        assert told == [("assigned", 4)]
        second = Consumer(topic, **settings)
        await second.start()
        try:
            await poll_until([first, second], lambda: len(first.assignment()) == 2 and len(second.assignment()) == 2)
            assert first.assignment() | second.assignment() == everything
            assert told[1:] == [("revoked", 4), ("assigned", 2)]
            assert first.group_metadata().generation_id == second.group_metadata().generation_id
            description = await admin.describe_group(name)
            assert (description.state, description.protocol, len(description.members)) == ("Stable", "range", 2)
        finally:
            await second.stop()
        await poll_until([first], lambda: first.assignment() == everything)
        await first.seek_to_beginning()
        read = []
        async with asyncio.timeout(60):
            while len(read) < 40:
                read += [r for rs in (await first.getmany(timeout_ms=200)).values() for r in rs]
        assert sorted(int(r.value) for r in read) == list(range(40))
        told.clear()
    assert told == [("revoked", 4)], "a close gives up what was held"


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "consumer"])
async def test_what_stays_is_read_on_and_not_spoken_of(bootstrap: str, admin: Admin, name: str, strategy: str) -> None:
    topic = await make_group(admin, name, 4)
    told: list[tuple[str, list[int]]] = []

    class Listener(RebalanceListener):
        async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
            await asyncio.sleep(0.01)  # a coroutine, and the poll waits for it
            told.append(("assigned", sorted(tp.partition for tp in assigned)))

        async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
            assert set(revoked) <= first.assignment(), "still ours"
            await first.commit()
            told.append(("revoked", sorted(tp.partition for tp in revoked)))

    members = [
        Bundled(bootstrap, name, topic, strategy, listener=Listener()),
        Bundled(bootstrap, name, topic, strategy),
    ]
    first, second = (member.consumer for member in members)
    await fill(bootstrap, topic, 40, 4)
    async with first:
        await poll_until([first], lambda: any(event[1] for event in told))
        assert [event for event in told if event[1]] == [("assigned", [0, 1, 2, 3])]
        async with asyncio.timeout(60):
            while sum([await first.position(tp) for tp in first.assignment()]) < 40:
                await first.getmany(timeout_ms=100)
        async with second:
            await poll_until([first, second], lambda: len(first.assignment()) == 2 == len(second.assignment()))
            gone = [number for number in range(4) if TopicPartition(topic, number) not in first.assignment()]
            assert [event for event in told[1:] if event[1]] == [("revoked", gone)], (
                "of those that stay nothing was said"
            )
            assert {await first.position(tp) for tp in first.assignment()} == {10}, "and they are where they were"
            assert {await second.position(tp) for tp in second.assignment()} == {10}, (
                "committed when they were given up"
            )
        del told[:]
        await poll_until([first], lambda: any(event[1] for event in told))
        assert [event for event in told if event[1]] == [("assigned", gone)]
