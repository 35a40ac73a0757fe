"""Idempotent producers after their partition moved to a broker that did not have it before.

A producer that the partition knew, that wrote to an earlier topic of this name, or whose records were lost, continues: librdkafka
takes a refusal of its next batch for a fatal error, and Kafka accepts the batch. A new producer must begin with its first batch.
"""

from __future__ import annotations

import pytest

from barnabas.client import Admin, NewTopic, TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.transactions import InitProducerIdRequest
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.testing.simulation.world import Ports, World
from tests.support.broker.nodes import Peer
from tests.support.simulation.brokers import converged
from tests.support.simulation.cluster_story import Story, UnwatchedStory, clients, committed, connect, create, tell

pytestmark = pytest.mark.simulation

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
NONE = ErrorCode.NONE
PARTITION = TopicPartition("t", 0)


class Producer:
    """The requests of an idempotent producer. The value of a record is `<name><sequence>`."""

    def __init__(self, name: str, ports: Ports, producer_id: int) -> None:
        self.name = name
        self.producer_id = producer_id
        self._clock = ports.clock

    @classmethod
    async def begin(cls, name: str, ports: Ports, peer: Peer) -> Producer:
        answer = await peer.call(InitProducerIdRequest(transactional_id=None), 4)
        assert answer.error_code == 0
        return cls(name, ports, answer.producer_id)

    async def send(self, peer: Peer, sequence: int) -> ErrorCode:
        record = NewRecord(None, f"{self.name}{sequence}".encode(), self._clock.now_ms())
        records = build_batch([record], producer_id=self.producer_id, producer_epoch=0, base_sequence=sequence)
        topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=bytes(records))])
        answer = await peer.call(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]), 9)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)


async def create_on(ports: Ports, *brokers: int) -> None:
    async with Admin(**clients(ports)) as admin:
        await admin.create_topics([NewTopic("t", replica_assignments={0: brokers})])


async def delete(ports: Ports) -> None:
    async with Admin(**clients(ports)) as admin:
        await admin.delete_topics(["t"])


async def reassign(there: Story, ports: Ports, *brokers: int) -> Peer:
    """Moves the partition; returns a connection to its next leader, the first of the brokers."""
    async with Admin(**clients(ports)) as admin:
        await admin.alter_partition_reassignments({PARTITION: brokers})
    return await leader(there, ports, *brokers)


async def leader(there: Story, ports: Ports, *brokers: int) -> Peer:
    name = f"broker-{brokers[0]}"

    def leads() -> bool:
        replica = there.node(name).replicas.get("t", 0)
        image = there.node(name).image.partition("t", 0)
        return replica is not None and replica.is_leader and image is not None and set(image.isr) == set(brokers)

    await there.until(leads, 30)
    return await connect(ports, name)


async def end(there: Story, name: str, how: str) -> None:
    machine = there.world.machine(name)
    if how == "stopped":
        there.brokers[name].stop()
        await machine.join()
    elif how == "killed":
        machine.kill()
    else:
        machine.lose_power()


async def back(there: Story, name: str) -> None:
    """Starts a broker and waits until it serves."""
    before = there.node(name)
    there.world.machine(name).start(there.brokers[name])
    await there.until(lambda: there.node(name) is not before, 30)
    node = there.node(name)

    def serves() -> bool:
        own = node.image.brokers.get(node.node_id)
        return own is not None and own.incarnation_id == node.lifecycle.incarnation_id and not own.fenced

    await there.until(serves, 30)


async def continues(old: Producer, known: Producer, young: Producer, peer: Peer) -> None:
    """`old` has sent 0 and 1 to a former topic, `known` to this one, `young` nothing."""
    assert await young.send(peer, 1) == OUT_OF_ORDER
    assert await old.send(peer, 2) == NONE
    assert await known.send(peer, 1) == NONE  # again
    assert await known.send(peer, 3) == OUT_OF_ORDER
    assert await known.send(peer, 2) == NONE
    assert await young.send(peer, 0) == NONE
    assert await old.send(peer, 2) == NONE  # again
    assert await old.send(peer, 3) == NONE


EXPECTED = {0: [b"known0", b"known1", b"old2", b"known2", b"young0", b"old3"]}


@pytest.mark.parametrize("how", ["stopped", "killed", "without power"])
def test_a_partition_moves_to_a_broker_that_was_restarted(how: str) -> None:
    async def story(there: Story) -> None:
        async def client(ports: Ports) -> None:
            await create_on(ports, 1, 2)
            peer = await leader(there, ports, 1, 2)
            old = await Producer.begin("old", ports, peer)
            assert [await old.send(peer, sequence) for sequence in (0, 1)] == [NONE] * 2
            await delete(ports)
            await create_on(ports, 1, 2)
            peer = await leader(there, ports, 1, 2)
            known, young = await Producer.begin("known", ports, peer), await Producer.begin("young", ports, peer)
            assert [await known.send(peer, sequence) for sequence in (0, 1)] == [NONE] * 2
            await end(there, "broker-3", how)
            await back(there, "broker-3")
            await continues(old, known, young, await reassign(there, ports, 3))

        await there.world.machine("client").start(client)
        await converged(there.brokers)
        assert await there.world.machine("reader").start(lambda ports: committed(ports, "t", 1)) == EXPECTED

    tell(51, story)


@pytest.mark.parametrize("how", ["stopped", "killed", "without power"])
def test_a_topic_is_created_again_while_a_broker_is_down(how: str) -> None:
    async def story(there: Story) -> None:
        async def client(ports: Ports) -> None:
            await create(ports, "t", 1, 3)
            peer = await reassign(there, ports, 1, 2, 3)
            old = await Producer.begin("old", ports, peer)
            assert [await old.send(peer, sequence) for sequence in (0, 1)] == [NONE] * 2
            await end(there, "broker-3", how)
            await delete(ports)
            await create_on(ports, 1, 2)
            peer = await leader(there, ports, 1, 2)
            known, young = await Producer.begin("known", ports, peer), await Producer.begin("young", ports, peer)
            assert [await known.send(peer, sequence) for sequence in (0, 1)] == [NONE] * 2
            await back(there, "broker-3")
            await continues(old, known, young, await reassign(there, ports, 3))

        await there.world.machine("client").start(client)
        await converged(there.brokers)
        assert await there.world.machine("reader").start(lambda ports: committed(ports, "t", 1)) == EXPECTED

    tell(52, story)


def test_a_partition_that_lost_records_moves_to_another_broker() -> None:
    """The only replica loses its power and records. Its producers continue where it recovers, and on the next broker."""

    async def story(there: Story) -> None:
        async def client(ports: Ports) -> None:
            await create_on(ports, 3)
            peer = await leader(there, ports, 3)
            early = await Producer.begin("early", ports, peer)
            assert [await early.send(peer, sequence) for sequence in (0, 1)] == [NONE] * 2
            await end(there, "broker-3", "without power")
            await back(there, "broker-3")
            peer = await leader(there, ports, 3)
            recovered = there.node("broker-3").replicas.get("t", 0)
            assert recovered is not None
            assert recovered.log.log_end_offset == 0
            late = await Producer.begin("late", ports, peer)
            peer = await reassign(there, ports, 2)
            assert await early.send(peer, 2) == NONE
            assert await early.send(peer, 4) == OUT_OF_ORDER
            assert await early.send(peer, 3) == NONE
            assert await late.send(peer, 1) == OUT_OF_ORDER
            assert await late.send(peer, 0) == NONE

        await there.world.machine("client").start(client)
        await converged(there.brokers)
        found = await there.world.machine("reader").start(lambda ports: committed(ports, "t", 1))
        assert found == {0: [b"early2", b"early3", b"late0"]}

    with World(53) as world:
        there = UnwatchedStory(world)

        async def main() -> None:
            await there.start()
            await story(there)

        world.run(main(), time_limit_s=3600)
