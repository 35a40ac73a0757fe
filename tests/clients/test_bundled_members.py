"""Members of groups of the bundled client that commit, fall behind, leave and subscribe anew."""

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
from barnabas.client.errors import CommitFailed, IllegalState, UnsupportedByBroker
from barnabas.client.types import GroupProtocol
from barnabas.errors import ErrorCode
from barnabas.testing import Broker
from tests.support.clients.bundled import SHORT, fill, make_group, make_topic, poll_until

pytestmark = [pytest.mark.clients, pytest.mark.asyncio]

PROTOCOLS = ["classic", "consumer"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_commits_are_found_again(bootstrap: str, admin: Admin, name: str, protocol: GroupProtocol) -> None:
    topic = await make_group(admin, name, 1)
    tp = TopicPartition(topic, 0)
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "group_id": name,
        "auto_offset_reset": "earliest",
        "group_protocol": protocol,
    }
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for i in range(100):
            await producer.send(topic, b"%d" % i)
    async with Consumer(topic, **settings, enable_auto_commit=False) as consumer:
        async with asyncio.timeout(60):
            assert [(await consumer.getone()).offset for _ in range(30)] == list(range(30))
            await consumer.commit()
            assert await consumer.committed(tp) == 30
            assert [(await consumer.getone()).offset for _ in range(5)] == list(range(30, 35))
    # The second consumer commits by itself at its end: what it was given and came back from.
    async with Consumer(topic, **settings) as consumer:
        async with asyncio.timeout(60):
            assert [(await consumer.getone()).offset for _ in range(30)] == list(range(30, 60))
    async with Consumer(topic, **settings) as consumer:
        async with asyncio.timeout(60):
            assert (await consumer.getone()).offset == 60


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_who_does_not_poll_loses_its_partitions_and_may_not_commit_for_them(
    bootstrap: str, admin: Admin, name: str, protocol: GroupProtocol
) -> None:
    topic = await make_group(admin, name, 2)
    told: list[tuple[str, int]] = []

    class Listener(RebalanceListener):
        async def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
            told.append(("lost", len(lost)))

        async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
            told.append(("revoked", len(revoked)))

    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "group_id": name,
        "group_protocol": protocol,
        "enable_auto_commit": False,
        "max_poll_interval_ms": 1_500,
        "session_timeout_ms": 6_000,
        "heartbeat_interval_ms": 100,
    }
    async with Consumer(topic, **settings, listener=Listener()) as first, Consumer(topic, **settings) as second:
        await poll_until([first], lambda: len(first.assignment()) == 2)
        # `first` stops polling: it leaves after max_poll_interval_ms and `second` gets everything.
        await poll_until([second], lambda: len(second.assignment()) == 2)
        with pytest.raises(CommitFailed):
            await first.commit({TopicPartition(topic, 0): 5})
        await second.commit({TopicPartition(topic, 0): 6})
        await poll_until([first, second], lambda: len(first.assignment()) == 1 == len(second.assignment()))
        assert await first.committed(TopicPartition(topic, 0)) == 6
        assert told[0] == ("lost", 2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_static_member_keeps_its_place(
    bootstrap: str, admin: Admin, name: str, protocol: GroupProtocol
) -> None:
    topic = await make_group(admin, name, 4)
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "group_id": name,
        "group_protocol": protocol,
        "heartbeat_interval_ms": 100,
    }
    told: list[str] = []

    class Listener(RebalanceListener):
        async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
            told.append("revoked")

    async with Consumer(topic, **settings, group_instance_id="other", listener=Listener()) as other:
        async with Consumer(topic, **settings, group_instance_id="the one") as consumer:
            await poll_until([other, consumer], lambda: len(consumer.assignment()) == 2 == len(other.assignment()))
            held = consumer.assignment()
        told.clear()
        async with Consumer(topic, **settings, group_instance_id="the one") as consumer:
            await poll_until([other, consumer], lambda: bool(consumer.assignment()))
            assert consumer.assignment() == held
            assert {m.group_instance_id for m in (await admin.describe_group(name)).members} == {"the one", "other"}
        assert told == [], "the other one was left alone"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_pattern_finds_topics_that_come_later(
    bootstrap: str, admin: Admin, name: str, protocol: GroupProtocol
) -> None:
    await admin.alter_configs(SHORT, group=name)
    await make_topic(admin, f"{name}-one")
    await make_topic(admin, f"not-{name}-one")
    async with Consumer(
        bootstrap_servers=bootstrap, group_id=name, metadata_max_age_ms=300, group_protocol=protocol
    ) as consumer:
        consumer.subscribe(pattern=f"{name}-.*")
        await poll_until([consumer], lambda: consumer.assignment() == {TopicPartition(f"{name}-one", 0)})
        assert consumer.subscription() == {f"{name}-one"}
        await make_topic(admin, f"{name}-two")
        await poll_until([consumer], lambda: len(consumer.assignment()) == 2)
        consumer.subscribe([f"{name}-two"])
        await poll_until([consumer], lambda: consumer.assignment() == {TopicPartition(f"{name}-two", 0)})


async def test_a_pattern_that_is_none(bootstrap: str, admin: Admin, name: str) -> None:
    async with Consumer(bootstrap_servers=bootstrap, group_id=name, group_protocol="consumer") as consumer:
        with pytest.raises(IllegalState, match="no regular expression"):
            consumer.subscribe(pattern="(")
        consumer.subscribe(pattern="(?=ahead).*")  # Python knows it, RE2 does not
        with pytest.raises(KafkaError) as refused:
            await poll_until([consumer], lambda: False)
        assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_commits_take_effect_in_order_without_being_waited_for(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_group(admin, name, 1)
    tp = TopicPartition(topic, 0)
    await fill(bootstrap, topic, 10, 1)
    async with Consumer(
        topic, bootstrap_servers=bootstrap, group_id=name, auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:  # fmt: skip
        async with asyncio.timeout(60):
            commits = []
            for _ in range(10):
                await consumer.getone()
                commits.append(consumer.commit_soon())
            assert not any(commit.done() for commit in commits), "nobody has waited"
            await consumer.commit({tp: 3})
        assert all(commit.done() and commit.exception() is None for commit in commits)
        assert await consumer.committed(tp) == 3, "the last one asked for"
        consumer.commit_soon({tp: 7})
    async with Consumer(topic, bootstrap_servers=bootstrap, group_id=name) as consumer:
        assert await consumer.committed(tp) == 7, "a close waits for what is on its way"


async def test_seek_to_time(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name, 3)
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(20):
            at = 1_700_000_000_000 + 1_000 * number
            await producer.send(topic, b"%d" % number, partition=number % 2, timestamp_ms=at)
    zero, one, two = (TopicPartition(topic, number) for number in range(3))
    async with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([zero, one, two])
        await consumer.seek_to_time(1_700_000_010_500)
        assert [await consumer.position(tp) for tp in (zero, one, two)] == [6, 5, 0]
        assert (await consumer.getone(zero)).value == b"12"
        await consumer.seek_to_time(1_700_000_000_000, zero)
        assert [await consumer.position(tp) for tp in (zero, one)] == [0, 5], "only what is named"
        await consumer.seek_to_time(1_800_000_000_000, one)
        assert await consumer.position(one) == 10, "behind the last where there is none"
        with pytest.raises(IllegalState, match="not assigned"):
            await consumer.seek_to_time(0, TopicPartition(topic, 9))


async def test_a_cluster_without_the_protocol_is_told_in_words(served_broker: Broker) -> None:
    async with Admin(bootstrap_servers=served_broker.bootstrap_servers) as admin:
        await admin.update_features({"group.version": 0}, downgrade="safe")
        await make_topic(admin, "old")
    async with Consumer(
        "old", bootstrap_servers=served_broker.bootstrap_servers, group_id="g", group_protocol="consumer"
    ) as consumer:
        with pytest.raises(UnsupportedByBroker, match="group_protocol='classic'"):
            await poll_until([consumer], lambda: False)
