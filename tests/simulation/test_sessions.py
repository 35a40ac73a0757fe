"""Brokers whose session with the controller may be over for a while: what they refuse meanwhile, and what they go on with."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.broker.coordinator.host.decision import Decision
from barnabas.broker.coordinator.host.partitioning import partition_for
from barnabas.broker.coordinator.transactions.shard import ProducerIdAndEpoch
from barnabas.broker.coordinator.transactions.state import TransactionState
from barnabas.broker.node.node import Node
from barnabas.client import Consumer, Producer, TopicPartition
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.protocol.messages.cluster import BrokerHeartbeatResponse
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.testing.simulation.world import Ports
from tests.support.broker.nodes import Peer
from tests.support.requests import request_of
from tests.support.simulation.cluster_story import Story, clients, connect, create, tell
from tests.support.simulation.trio import STATE_TOPICS, Trio, coordinator, simulate

pytestmark = pytest.mark.simulation

ID = "writer"


def lapse(node: Node) -> None:
    """Its last heartbeat that was answered is a session ago, and its followers may have left; the next answer renews the session."""
    node.lifecycle._session_until_ms = 0
    node.lifecycle._fenced_ms = node.reactor.clock.monotonic_ms() + 1


def test_a_transaction_is_completed_after_its_coordinators_session_has_lapsed() -> None:
    async def story(trio: Trio) -> None:
        await trio.create(1, "output", partitions=3)
        node = await coordinator(trio, TRANSACTION_STATE_TOPIC)
        transactions = node.transactions
        answers: list[Any] = []

        transactions.init_producer_id(ID, 60_000, None, answers.append)
        await trio.until(lambda: len(answers) == 1, 5)
        producer: ProducerIdAndEpoch = answers[0].identity
        output = node.image.topics_by_name["output"].partitions
        elsewhere = [("output", number) for number, each in enumerate(output) if each.leader != node.node_id]
        transactions.add_partitions(ID, producer, elsewhere, 2, answers.append)
        await trio.until(lambda: len(answers) == 2, 5)

        def prepared(outcome: Any) -> None:
            answers.append(outcome)
            lapse(node)

        transactions.end_transaction(ID, producer, commit=True, transaction_version=2, done=prepared)
        await trio.until(lambda: len(answers) == 3, 5)
        assert not isinstance(answers[2], BrokerError)
        await trio.until(lambda: transactions.describe(ID).state is TransactionState.COMPLETE_COMMIT, 5)

    simulate(1, story, **STATE_TOPICS)


def test_a_broker_that_is_told_it_is_fenced_accepts_nothing_until_its_metadata_says_what_became_of_it() -> None:
    async def story(trio: Trio) -> None:
        node = trio.node(trio.others(trio.controller)[0])
        await trio.until(node.lifecycle.may_lead, 1)
        node.lifecycle._on_answer(BrokerHeartbeatResponse(is_fenced=True), node.reactor.clock.monotonic_ms(), ())
        assert not node.lifecycle.may_lead()
        await trio.until(node.lifecycle.may_lead, 1)

    simulate(3, story)


def test_who_may_be_a_coordinator_no_more_tells_no_offsets_and_verifies_nothing() -> None:
    async def story(trio: Trio) -> None:
        node = await coordinator(trio, GROUP_METADATA_TOPIC)
        assert partition_for("group", 1) == 0
        read: list[Any] = []
        node.groups.write("group", lambda shard, at: Decision("read"), read.append)
        assert read == ["read"]
        lapse(node)
        node.groups.write("group", lambda shard, at: Decision("read"), read.append)
        assert isinstance(read[1], BrokerError)
        assert read[1].code is ErrorCode.NOT_COORDINATOR

        await trio.create(1, "output", partitions=1)
        node = await coordinator(trio, TRANSACTION_STATE_TOPIC)
        await trio.until(node.lifecycle.may_lead, 5)  # it may be the node whose session lapsed
        answers: list[Any] = []
        node.transactions.init_producer_id(ID, 60_000, None, answers.append)
        await trio.until(lambda: len(answers) == 1, 5)
        producer: ProducerIdAndEpoch = answers[0].identity
        node.transactions.add_partitions(ID, producer, [("output", 0)], 0, answers.append)
        await trio.until(lambda: len(answers) == 2, 5)
        verified = {("output", 0): ErrorCode.NONE}
        assert node.transactions.verify_partitions(ID, producer, [("output", 0)]) == verified
        lapse(node)
        with pytest.raises(BrokerError) as refused:
            node.transactions.verify_partitions(ID, producer, [("output", 0)])
        assert refused.value.code is ErrorCode.NOT_COORDINATOR

    simulate(2, story, **STATE_TOPICS)


class Refusals:
    """Raw requests, which are not repeated: the codes of their answers."""

    def __init__(self, there: Story, ports: Ports) -> None:
        self._there = there
        self._ports = ports
        self._peers: dict[str, Peer] = {}

    async def _call(self, topic: str, partition: int, request: Any, version: int) -> Any:
        leader = self._there.leader(topic, partition)
        if leader not in self._peers:
            self._peers[leader] = await connect(self._ports, leader)
        return await self._peers[leader].call(request, version)

    async def produce(self, topic: str, partition: int, acks: int) -> ErrorCode:
        records = bytes(build_batch([NewRecord(None, b"raw", self._ports.clock.now_ms())]))
        named = {"name": topic, "partition_data": [{"index": partition, "records": records}]}
        request = request_of("Produce", acks=acks, timeout_ms=30_000, topic_data=[named])
        answer = await self._call(topic, partition, request, 9)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    async def commit(self) -> ErrorCode:
        named = {"name": "one", "partitions": [{"partition_index": 0, "committed_offset": 1}]}
        fields = {"generation_id_or_member_epoch": -1, "member_id": "", "group_id": "raw", "topics": [named]}
        answer = await self._call(
            GROUP_METADATA_TOPIC, partition_for("raw", 3), request_of("OffsetCommit", **fields), 8
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def committed(self) -> ErrorCode:
        named = {"group_id": "raw", "topics": [{"name": "one", "partition_indexes": [0]}]}
        answer = await self._call(
            GROUP_METADATA_TOPIC, partition_for("raw", 3), request_of("OffsetFetch", groups=[named]), 8
        )
        return ErrorCode(answer.groups[0].error_code)


@pytest.mark.parametrize("rounds", [4, pytest.param(29, marks=pytest.mark.soak)])  # of 20 s each
def test_without_a_quorum_of_controllers_the_brokers_serve(rounds: int) -> None:
    """Plain writes, groups whose members change, and transactions, for much longer than a session."""

    async def story(there: Story) -> None:
        machine = there.world.machine
        await machine("admin").start(lambda ports: create(ports, "one", 3, 1))
        await machine("admin").start(lambda ports: create(ports, "three", 3, 3))
        await machine("client").start(lambda ports: program(there, ports))

    async def program(there: Story, ports: Ports) -> None:
        loop = asyncio.get_running_loop()
        reading: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        reading |= {"group_id": "g", **clients(ports)}
        raw = Refusals(there, ports)
        async with (
            Producer(transactional_id=ID, **clients(ports)) as transactional,
            Consumer("three", enable_auto_commit=False, **reading) as member,
        ):
            seen = 0

            async def work(number: int) -> None:
                nonlocal seen
                async with transactional.transaction():
                    for topic in ("one", "three"):
                        await transactional.send(topic, b"%d" % number, partition=number % 3)
                    await transactional.send_offsets({TopicPartition("one", 0): number}, "copy")
                async with asyncio.timeout(10):
                    while seen <= number:
                        seen += (await member.getone()).value == b"%d" % seen
                await member.commit()

            await work(0)
            await raw.commit()
            for name in list(there.controllers)[:2]:
                there.world.machine(name).kill()
            began = loop.time()
            for number in range(1, rounds + 1):
                await asyncio.sleep(20)
                codes = [
                    await raw.produce(topic, partition, acks)
                    for topic in ("one", "three")
                    for partition in range(3)
                    for acks in (-1, 1)
                ]
                codes += [await raw.commit(), await raw.committed()]
                assert set(codes) == {ErrorCode.NONE}, f"after {loop.time() - began:.0f} s: {codes}"
                async with asyncio.timeout(5):
                    await work(number)
                if number == 2:  # another member joins and leaves
                    async with Consumer("three", **reading) as other:
                        while not other.assignment():
                            await asyncio.gather(other.getmany(timeout_ms=100), member.getmany(timeout_ms=100))
            assert loop.time() - began >= 20 * rounds

    tell(4, story, **{"process.roles": "broker"})
