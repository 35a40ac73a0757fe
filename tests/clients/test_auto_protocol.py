"""`group_protocol="auto"`: KIP-848 where the cluster and the group's members allow it, on Barnabas and on a real Kafka."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.client import Admin, Consumer, IllegalState, Producer, RebalanceListener, TopicPartition
from barnabas.client.group.classic_group import ClassicGroup
from barnabas.client.types import GroupProtocol
from barnabas.protocol.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol, LeaveGroupRequest
from barnabas.testing import Broker
from tests.support.clients.bundled import fill, make_group, make_topic, poll_until, values
from tests.support.oracle.wire import Wire
from tests.support.processes.fixtures import Serve

pytestmark = [pytest.mark.clients, pytest.mark.asyncio]


def member(bootstrap: str, group: str, topic: str, protocol: GroupProtocol = "auto", **more: Any) -> Consumer:
    return Consumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        group_protocol=protocol,
        auto_offset_reset="earliest",
        **{"heartbeat_interval_ms": 100, **more},
    )


async def type_of(bootstrap: str, group: str) -> str:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        return next(each.type for each in await admin.list_groups() if each.group_id == group)


async def test_a_fresh_group_gets_the_consumer_protocol(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_group(admin, name, 3)
    await fill(bootstrap, topic, 9, 3)
    told: list[TopicPartition] = []

    class Listener(RebalanceListener):
        async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
            told.extend(assigned)

    async with member(bootstrap, name, topic, group_remote_assignor="uniform", listener=Listener()) as consumer:
        read = await poll_until([consumer], lambda: len(told) == 3)
        while len(read) < 9:
            read.append(await consumer.getone())
        assert await type_of(bootstrap, name) == "consumer"
        assert consumer.group_metadata().generation_id > 0
        await consumer.commit()
    async with member(bootstrap, name, topic) as consumer:
        tps = [TopicPartition(topic, p) for p in range(3)]
        assert [await consumer.committed(tp) for tp in tps] == [3, 3, 3]


async def test_members_of_the_classic_protocol_stay_beside_it(bootstrap: str, admin: Admin, name: str) -> None:
    """The coordinator converts the group (KIP-848: online migration); nobody is removed and nothing is read twice."""
    topic = await make_group(admin, name, 4)
    async with member(bootstrap, name, topic, "classic") as classic:
        await poll_until([classic], lambda: len(classic.assignment()) == 4)
        async with member(bootstrap, name, topic) as auto:
            await poll_until([classic, auto], lambda: len(classic.assignment()) == len(auto.assignment()) == 2)
            assert await type_of(bootstrap, name) == "consumer"
            await fill(bootstrap, topic, 20, 4)
            read: list[bytes] = []
            async with asyncio.timeout(60):
                while len(read) < 20:
                    for consumer in (classic, auto):
                        read += values([r for rs in (await consumer.getmany(timeout_ms=20)).values() for r in rs])
            assert sorted(read, key=int) == [b"%d" % number for number in range(20)]
        await poll_until([classic], lambda: len(classic.assignment()) == 4)


async def test_a_group_that_cannot_be_converted_is_joined_with_the_classic_protocol(
    bootstrap: str, admin: Admin, name: str
) -> None:
    """Its member has a subscription that no coordinator can read; it leaves when the consumer has fallen back."""
    topic = await make_topic(admin, name, 2)
    join = JoinGroupRequest(
        group_id=name,
        session_timeout_ms=6_000,
        rebalance_timeout_ms=6_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"?")],
    )
    with Wire(bootstrap) as wire:
        wire.find_coordinator(name, 0)
        joined = await asyncio.to_thread(wire.call, join, 3)  # version 3: without the round that assigns a member id
        assert joined.error_code == 0
        async with member(bootstrap, name, topic) as consumer:
            await poll_until([consumer], lambda: isinstance(consumer._group, ClassicGroup))
            leave = LeaveGroupRequest(group_id=name, member_id=joined.member_id)
            await asyncio.to_thread(wire.call, leave, 2)
            await poll_until([consumer], lambda: len(consumer.assignment()) == 2)
            assert await type_of(bootstrap, name) == "classic"


@pytest.mark.parametrize(
    "setting",
    ["group.consumer.migration.policy=disabled", "group.coordinator.rebalance.protocols=classic"],
)
async def test_it_joins_beside_classic_members_that_may_not_be_converted(serve: Serve, setting: str) -> None:
    bootstrap = serve(setting, "group.initial.rebalance.delay.ms=0").bootstrap_servers
    async with Admin(bootstrap_servers=bootstrap) as admin:
        topic = await make_topic(admin, "orders", 4)
    async with member(bootstrap, "g", topic, "classic") as classic, member(bootstrap, "g", topic) as auto:
        await poll_until([classic], lambda: len(classic.assignment()) == 4)
        await poll_until([classic, auto], lambda: len(classic.assignment()) == len(auto.assignment()) == 2)
        assert await type_of(bootstrap, "g") == "classic"


async def test_a_cluster_without_the_protocol_is_joined_as_before() -> None:
    """Kafka 3.6 has neither the request nor the feature; a pattern and the constructor's topics are kept."""
    with Broker(as_version="3.6") as broker:
        bootstrap = broker.bootstrap_servers
        async with Producer(bootstrap_servers=bootstrap) as producer:
            await producer.send_and_wait("orders-1", b"tea")
        async with member(bootstrap, "g", "orders-1", group_remote_assignor="uniform") as consumer:
            async with asyncio.timeout(60):
                assert (await consumer.getone()).value == b"tea"
            assert consumer.group_metadata().member_id.startswith("barnabas-consumer-")
        by_pattern = Consumer(
            bootstrap_servers=bootstrap, group_id="p", group_protocol="auto", auto_offset_reset="earliest"
        )
        by_pattern.subscribe(pattern="orders-.*")
        async with by_pattern, asyncio.timeout(60):
            assert (await by_pattern.getone()).topic == "orders-1"


async def test_partitions_by_hand_and_no_start(bootstrap: str, admin: Admin, name: str) -> None:
    topic = await make_topic(admin, name)
    consumer = Consumer(bootstrap_servers=bootstrap, group_id=name, group_protocol="auto")
    assert consumer.group_metadata().group_id == name
    consumer.assign([TopicPartition(topic, 0)])
    async with consumer:
        await consumer.commit({TopicPartition(topic, 0): 7})
        assert await consumer.committed(TopicPartition(topic, 0)) == 7
    with pytest.raises(IllegalState, match="partition_assignment_strategy"):
        Consumer(group_id=name, group_remote_assignor="uniform")
