"""A transaction whose predecessor is being completed: requests are held, not refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from barnabas.errors import ErrorCode
from barnabas.ports import File
from barnabas.protocol.messages.groups import FindCoordinatorRequest
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
)
from barnabas.storage.disk import MemoryDisk
from tests.support.broker.nodes import Nodes, Peer
from tests.support.broker.transactional_client import FEW, Client
from tests.support.storage.gated_disk import GatedDisk
from tests.support.waiting import until


async def settled(client: Client, state: str) -> None:
    async with asyncio.timeout(60):
        while True:
            if await client.state() == state:
                return


class SlowCompletion:
    """A node whose transaction `tx` is prepared, and completes when the disk's gate opens."""

    def __init__(self, nodes: Nodes, **settings: str) -> None:
        self.nodes = nodes
        self.disk = GatedDisk()
        self.settings = {"log_flush_interval_messages": "1", **FEW, **settings}

    async def prepare(self) -> Client:
        """Ends a transaction up to its markers, which are written and not yet durable."""
        self.node = await self.nodes.start(self.disk, **self.settings)
        self.client = Client(await self.nodes.peer(self.node))
        await self.client.peer.create("t", 2)
        await self.client.init()
        await self.client.peer.call(FindCoordinatorRequest(key="g", key_type=0), 3)  # the topic of groups is made
        await self.add(self.client.peer, 0)
        assert await self.client.produce(version=11) is ErrorCode.NONE
        replica = self.node.replicas.leader("t", 0)
        gate, sync = self.disk.gate, MemoryDisk.sync

        async def hold_markers(disk: GatedDisk, files: Sequence[File]) -> None:
            if replica.log.log_end_offset > 1:  # a marker is among them
                await gate.wait()
            await sync(disk, files)

        gate.clear()
        self.disk.sync = hold_markers.__get__(self.disk)  # type: ignore[method-assign]  # from here on only markers wait
        assert await self.client.end(version=3) is ErrorCode.NONE
        await settled(Client(await self.nodes.peer(self.node)), "PrepareCommit")
        return self.client

    def adding(self, partition: int, **fields: int) -> AddPartitionsToTxnRequest:
        identity = {"producer_id": self.client.producer_id, "producer_epoch": self.client.epoch} | fields
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=identity["producer_id"],
            v3_and_below_producer_epoch=identity["producer_epoch"],
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[partition])],
        )

    async def add(self, peer: Peer, partition: int) -> None:
        assert self.code(await peer.call(self.adding(partition), 3)) is ErrorCode.NONE

    @staticmethod
    def code(answer: Any) -> ErrorCode:
        return ErrorCode(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)


LONG = {"add_partitions_to_txn_retry_backoff_max_ms": "60000"}


async def test_the_next_transaction_is_held_until_the_one_before_is_complete(nodes: Nodes) -> None:
    slow = SlowCompletion(nodes, **LONG)
    client = await slow.prepare()
    sent = client.peer.send(slow.adding(1), 3)
    behind = client.peer.send(DescribeTransactionsRequest(transactional_ids=["tx"]), 0)
    await until(lambda: len(slow.node.transactions.held) == 1)
    slow.disk.gate.set()
    assert slow.code(await client.peer.receive(sent)) is ErrorCode.NONE
    # What came behind it on the connection waited for its effect.
    (state,) = (await client.peer.receive(behind)).transaction_states
    assert (state.transaction_state, state.topics[0].partitions) == ("Ongoing", [1])
    assert slow.node.transactions.counts.concurrent == 0


async def test_a_held_request_is_refused_when_its_time_is_over(nodes: Nodes) -> None:
    slow = SlowCompletion(nodes, add_partitions_to_txn_retry_backoff_max_ms="30")
    client = await slow.prepare()
    assert slow.code(await client.peer.call(slow.adding(1), 3)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert len(slow.node.transactions.held) == 0
    slow.disk.gate.set()
    await settled(client, "CompleteCommit")


async def test_a_connection_cut_during_the_hold_leaves_nothing_behind(nodes: Nodes) -> None:
    slow = SlowCompletion(nodes, **LONG)
    client = await slow.prepare()
    leaving = await nodes.peer(slow.node)
    leaving.send(slow.adding(1), 3)
    await until(lambda: len(slow.node.transactions.held) == 1)
    leaving.writer.transport.abort()
    await until(lambda: len(slow.node.transactions.held) == 0)
    slow.disk.gate.set()
    await settled(client, "CompleteCommit")
    await slow.add(await nodes.peer(slow.node), 0)
    assert slow.node.transactions.describe("tx").partitions == {("t", 0)}


async def test_additions_are_held_together_until_the_producer_goes_on_without_them(nodes: Nodes) -> None:
    slow = SlowCompletion(nodes, **LONG)
    client = await slow.prepare()
    newer = await nodes.peer(slow.node)
    first = client.peer.send(slow.adding(0), 3)
    await until(lambda: len(slow.node.transactions.held) == 1)
    second = newer.send(slow.adding(1), 3)
    await until(lambda: len(slow.node.transactions.held) == 2)
    assert await Client(await nodes.peer(slow.node)).init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert slow.code(await client.peer.receive(first)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert slow.code(await newer.receive(second)) is ErrorCode.CONCURRENT_TRANSACTIONS
    slow.disk.gate.set()
    await settled(client, "CompleteCommit")
    assert slow.node.transactions.describe("tx").partitions == frozenset()


async def test_a_lost_coordinator_tells_those_it_held(nodes: Nodes) -> None:
    slow = SlowCompletion(nodes, **LONG)
    client = await slow.prepare()
    sent = client.peer.send(slow.adding(1), 3)
    await until(lambda: len(slow.node.transactions.held) == 1)
    for partition in range(2):
        slow.node.transactions.on_resigned(partition)
    assert slow.code(await client.peer.receive(sent)) is ErrorCode.NOT_COORDINATOR
    slow.disk.gate.set()


async def test_a_request_of_another_epoch_is_never_held(nodes: Nodes) -> None:
    slow = SlowCompletion(nodes, **LONG)
    client = await slow.prepare()
    refused = await client.peer.call(slow.adding(1, producer_epoch=client.epoch + 1), 3)
    assert slow.code(refused) is ErrorCode.PRODUCER_FENCED
    assert len(slow.node.transactions.held) == 0
    slow.disk.gate.set()


async def test_an_implicit_addition_is_held_too(nodes: Nodes) -> None:
    slow = SlowCompletion(nodes, **LONG)
    client = await slow.prepare()
    sent = client.peer.send(client.producing(partition=1), 12)
    await until(lambda: len(slow.node.transactions.held) == 1)
    replica = slow.node.replicas.leader("t", 1)
    assert replica.log.log_end_offset == 0
    slow.disk.gate.set()
    answer = await client.peer.receive(sent)
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert await client.state() == "Ongoing"
    assert await client.end() is ErrorCode.NONE
    await settled(client, "CompleteCommit")
    assert replica.last_stable_offset == replica.high_watermark == 2


async def test_a_produce_whose_connection_is_cut_during_the_hold_writes_nothing(nodes: Nodes) -> None:
    slow = SlowCompletion(nodes, **LONG)
    client = await slow.prepare()
    leaving = await nodes.peer(slow.node)
    leaving.send(client.producing(partition=1), 12)
    await until(lambda: len(slow.node.transactions.held) == 1)
    leaving.writer.transport.abort()
    await until(lambda: len(slow.node.transactions.held) == 0)
    slow.disk.gate.set()
    await settled(client, "CompleteCommit")
    assert slow.node.replicas.leader("t", 1).log.log_end_offset == 0
    await slow.add(client.peer, 0)
    assert slow.node.transactions.describe("tx").partitions == {("t", 0)}


async def test_offsets_added_too_early_are_held_too(nodes: Nodes) -> None:
    slow = SlowCompletion(nodes, **LONG)
    client = await slow.prepare()
    adding = asyncio.ensure_future(client.add_offsets())
    await until(lambda: len(slow.node.transactions.held) == 1)
    slow.disk.gate.set()
    assert await adding is ErrorCode.NONE
    assert slow.node.transactions.counts.concurrent == 0
    assert {topic for topic, _ in slow.node.transactions.describe("tx").partitions} == {"__consumer_offsets"}
