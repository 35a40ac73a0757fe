"""Idempotent producers after their partition moved to a broker that did not have it before.

A producer that the partition knew, that wrote to an earlier topic of this name, or whose records were lost, continues: librdkafka
takes a refusal of its next batch for a fatal error, and Kafka accepts the batch. A new producer must begin with its first batch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from barnabas.client import Admin, NewTopic, TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.transactions import InitProducerIdRequest
from barnabas.testing.simulation.world import Ports, World
from tests.support.broker.nodes import Peer
from tests.support.simulation.brokers import converged
from tests.support.simulation.cluster_story import Story, UnwatchedStory, batch, clients, code_of, committed, connect

pytestmark = pytest.mark.simulation

OUT_OF_ORDER, NONE = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.NONE
Send = Callable[[Peer, int], Awaitable[ErrorCode]]  # takes a sequence


async def new_producer(name: str, ports: Ports, peer: Peer) -> Send:
    """Sends records with the values `<name><sequence>`."""
    identity = await peer.call(InitProducerIdRequest(transactional_id=None), 4)

    async def send(peer: Peer, sequence: int) -> ErrorCode:
        request = batch(ports, identity.producer_id, sequence, value=f"{name}{sequence}".encode())
        return code_of(await peer.call(request, 9))

    return send


async def leader(there: Story, ports: Ports, *brokers: int) -> Peer:
    """A connection to the first of the brokers, once it leads and all are in sync."""
    node = there.node(f"broker-{brokers[0]}")

    def leads() -> bool:
        replica, image = node.replicas.get("t", 0), node.image.partition("t", 0)
        return replica is not None and replica.is_leader and image is not None and set(image.isr) == set(brokers)

    await there.until(leads, 30)
    return await connect(ports, f"broker-{brokers[0]}")


async def restart(there: Story) -> None:
    before = there.node("broker-3")
    there.world.machine("broker-3").start(there.brokers["broker-3"])
    await there.until(lambda: there.node("broker-3") is not before, 30)
    await there.until(lambda: there.node("broker-3").lifecycle.may_lead(), 30)


def tell(story: Callable[[Story, Ports, Admin], Awaitable[None]], expected: list[bytes]) -> None:
    with World(51) as world:
        there = UnwatchedStory(world)

        async def client(ports: Ports) -> None:
            async with Admin(**clients(ports)) as admin:
                await story(there, ports, admin)

        async def main() -> None:
            await there.start()
            await world.machine("client").start(client)
            await converged(there.brokers)
            assert await world.machine("reader").start(lambda ports: committed(ports, "t", 1)) == {0: expected}

        world.run(main(), time_limit_s=3600)


@pytest.mark.parametrize("away", [False, True])
def test_a_topic_that_was_created_again_moves_to_a_broker_that_restarted(away: bool) -> None:
    """The broker restarts afterwards, or was away when the topic, of which it has a replica, was deleted."""

    async def story(there: Story, ports: Ports, admin: Admin) -> None:
        first = [1, 2, 3] if away else [1, 2]
        await admin.create_topics([NewTopic("t", replica_assignments={0: first})])
        peer = await leader(there, ports, *first)
        old = await new_producer("old", ports, peer)
        assert [await old(peer, sequence) for sequence in (0, 1)] == [NONE] * 2
        if away:
            there.world.machine("broker-3").kill()
        await admin.delete_topics(["t"])
        await admin.create_topics([NewTopic("t", replica_assignments={0: [1, 2]})])
        peer = await leader(there, ports, 1, 2)
        known, young = await new_producer("known", ports, peer), await new_producer("young", ports, peer)
        assert [await known(peer, sequence) for sequence in (0, 1)] == [NONE] * 2
        there.world.machine("broker-3").kill()
        await restart(there)
        await admin.alter_partition_reassignments({TopicPartition("t", 0): [3]})
        peer = await leader(there, ports, 3)
        if not away:  # else the new folder replaces one of the former topic, and accepts any sequence
            assert await young(peer, 1) == OUT_OF_ORDER
        assert [await old(peer, 2), await known(peer, 1)] == [NONE] * 2
        assert [await known(peer, 3), await known(peer, 2), await young(peer, 0)] == [OUT_OF_ORDER, NONE, NONE]
        assert [await old(peer, 2), await old(peer, 3)] == [NONE] * 2

    tell(story, [b"known0", b"known1", b"old2", b"known2", b"young0", b"old3"])


def test_a_partition_that_lost_records_moves_to_another_broker() -> None:
    """Its producers continue there, as where it lost them."""

    async def story(there: Story, ports: Ports, admin: Admin) -> None:
        await admin.create_topics([NewTopic("t", replica_assignments={0: [3]})])
        peer = await leader(there, ports, 3)
        early, other = await new_producer("early", ports, peer), await new_producer("other", ports, peer)
        assert [await early(peer, 0), await early(peer, 1), await other(peer, 0)] == [NONE] * 3
        there.world.machine("broker-3").lose_power()
        await restart(there)
        peer = await leader(there, ports, 3)
        late = await new_producer("late", ports, peer)
        assert await other(peer, 1) == NONE
        await admin.alter_partition_reassignments({TopicPartition("t", 0): [2]})
        peer = await leader(there, ports, 2)
        assert [await early(peer, 2), await early(peer, 4), await early(peer, 3)] == [NONE, OUT_OF_ORDER, NONE]
        assert [await late(peer, 1), await late(peer, 0)] == [OUT_OF_ORDER, NONE]

    tell(story, [b"other1", b"early2", b"early3", b"late0"])
