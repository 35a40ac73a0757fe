"""The transaction family on a whole node: versions and refusals, durability before answers and markers, time, deleted topics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from barnabas.broker.api.call import Call
from barnabas.broker.handlers.producers import describe_producers
from barnabas.broker.handlers.transaction_listing import list_transactions
from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import DeleteTopicsRequest, FeatureUpdateKey, UpdateFeaturesRequest
from barnabas.protocol.messages.groups import FindCoordinatorRequest
from barnabas.protocol.messages.shared import TopicPartitionIndexes
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    WritableTxnMarker,
    WriteTxnMarkersRequest,
)
from barnabas.runtime.clock import SystemClock
from tests.support.broker.calls import Connection
from tests.support.broker.nodes import Nodes, Peer
from tests.support.broker.transactional_client import FEW, Client
from tests.support.clock import StoppedClock
from tests.support.storage.gated_disk import GatedDisk
from tests.support.waiting import turns, until


async def settled(client: Client, state: str) -> None:
    async with asyncio.timeout(60):
        while True:
            if await client.state() == state:
                return


class Later(SystemClock):
    """A wall clock that is half an hour ahead: records from more than an hour ahead are refused."""

    def now_ms(self) -> int:
        return super().now_ms() + 1_800_000


@pytest.mark.parametrize("version", range(7))
async def test_every_version_of_init_producer_id(peer: Peer, version: int) -> None:
    client = Client(peer)
    assert await client.init(version) is ErrorCode.NONE
    assert client.epoch == 0
    assert await client.init(version) is ErrorCode.NONE
    assert client.epoch == 1
    answer = await peer.call(InitProducerIdRequest(transactional_id=None), version)
    assert (answer.error_code, answer.producer_id > client.producer_id, answer.producer_epoch) == (0, True, 0)


async def test_a_fenced_producer_is_told_in_words_its_version_knows(peer: Peer) -> None:
    client = Client(peer)
    await client.init()
    await peer.create("t")
    client.epoch -= 1
    old, new = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED
    for version, code in ((1, old), (2, new), (4, new)):
        assert await client.end(version=version) is code
        assert await client.add_offsets(version=version) is code
    for version, code in ((1, old), (2, new), (3, new)):
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=client.producer_id,
            v3_and_below_producer_epoch=client.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
        )
        (topic,) = (await peer.call(request, version)).results_by_topic_v3_and_below
        assert topic.results_by_partition[0].partition_error_code == code
    named = {"producer_id": client.producer_id + 1, "producer_epoch": 0}
    assert await client.init(3, **named) is old
    assert await client.init(4, **named) is new


async def test_offsets_before_any_group_make_their_topic(node: Node, peer: Peer) -> None:
    client = Client(peer)
    await client.init()
    assert node.image.topic("__consumer_offsets") is None
    assert await client.add_offsets() is ErrorCode.NONE
    assert node.image.topic("__consumer_offsets") is not None
    assert await client.end() is ErrorCode.NONE
    await settled(client, "CompleteCommit")


async def test_a_connection_that_closes_while_the_topic_is_made_adds_nothing(
    nodes: Nodes, node: Node, peer: Peer
) -> None:
    client = Client(peer)
    await client.init()
    leaving = await nodes.peer(node)
    leaving.send(
        AddOffsetsToTxnRequest(
            transactional_id="tx", producer_id=client.producer_id, producer_epoch=client.epoch, group_id="g"
        ),
        3,
    )
    await leaving.writer.drain()
    leaving.writer.transport.abort()
    await until(lambda: len(node.server.connections) == 1)
    await turns()
    # Either the request was read, and then its effect stands, or it was dropped: never half of it.
    state = await client.state()
    assert state in ("Empty", "Ongoing")
    if state == "Ongoing":
        assert node.image.topic("__consumer_offsets") is not None


async def test_nothing_is_answered_and_no_marker_leaves_before_prepare_is_durable(nodes: Nodes) -> None:
    disk = GatedDisk()
    node = await nodes.start(disk, log_flush_interval_messages="1", **FEW)
    peer = await nodes.peer(node)
    await peer.create("t")
    client = Client(peer)
    await client.init()
    assert await client.produce() is ErrorCode.NONE
    replica = node.replicas.leader("t", 0)
    other = await nodes.peer(node)
    disk.gate.clear()
    sent = peer.send(client.ending(), 5)
    watcher = Client(other)
    for _ in range(20):
        assert await watcher.state() == "Ongoing"
        assert replica.log.log_end_offset == 1
    assert not peer.reader._buffer  # type: ignore[attr-defined]  # nothing has arrived
    disk.gate.set()
    assert (await peer.receive(sent)).error_code == 0
    await settled(watcher, "CompleteCommit")
    assert replica.log.log_end_offset == 2
    assert replica.last_stable_offset == 2


async def test_the_next_transaction_never_meets_the_one_before(node: Node, peer: Peer) -> None:
    """Commit, markers and completion fit in one wake-up, so clients are not told to wait."""
    await peer.create("t", 4)
    client = Client(peer)
    await client.init()
    for number in range(50):
        for partition in range(4):
            assert await client.produce(partition=partition) is ErrorCode.NONE
        assert await client.end(commit=number % 2 == 0) is ErrorCode.NONE
    assert node.transactions.counts.concurrent == 0
    assert len(node.transactions.markers) == 0


async def test_a_deleted_topic_does_not_hold_up_its_transaction(node: Node, peer: Peer) -> None:
    await peer.create("t")
    await peer.create("gone", 3)
    client = Client(peer)
    await client.init()
    assert await client.produce("gone", 1) is ErrorCode.NONE
    assert await client.produce("t") is ErrorCode.NONE
    deleted = await peer.call(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=5_000), 5)
    assert deleted.responses[0].error_code == 0
    assert await client.end() is ErrorCode.NONE
    await settled(client, "CompleteCommit")
    replica = node.replicas.leader("t", 0)
    assert replica.last_stable_offset == replica.high_watermark == 2


async def test_a_transaction_past_its_timeout_is_aborted(node: Node, peer: Peer) -> None:
    await peer.create("t")
    client = Client(peer)
    await client.init(timeout_ms=50)
    assert await client.produce() is ErrorCode.NONE
    await settled(client, "CompleteAbort")
    assert await client.end() is ErrorCode.INVALID_TXN_STATE
    assert await client.end(commit=False) is ErrorCode.NONE
    node.reactor.client_time.clock = StoppedClock()  # the next transaction has time
    assert await client.produce() is ErrorCode.NONE
    assert await client.end() is ErrorCode.NONE


async def test_idle_ids_are_forgotten(nodes: Nodes) -> None:
    node = await nodes.start(
        transactional_id_expiration_ms="1200000",
        transaction_remove_expired_transaction_cleanup_interval_ms="20",
        **FEW,
    )
    peer = await nodes.peer(node)
    await peer.create("t")
    idle, busy = Client(peer, "idle"), Client(peer, "busy")
    await busy.init()
    assert await busy.produce() is ErrorCode.NONE
    await idle.init()
    node.reactor.clock = Later()
    await until(lambda: all(t.transactional_id != "idle" for t in node.transactions.all_transactions()))
    answer = await peer.call(DescribeTransactionsRequest(transactional_ids=["idle", "busy", ""]), 0)
    assert [state.error_code for state in answer.transaction_states] == [
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert await idle.end() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await busy.end() is ErrorCode.NONE


async def test_two_phase_transactions_are_a_matter_of_configuration(nodes: Nodes) -> None:
    node = await nodes.start(**FEW)
    client = Client(await nodes.peer(node))
    assert await client.init(6, timeout_ms=1, enable_2pc=True) is ErrorCode.NONE
    await client.peer.create("t")
    assert await client.produce() is ErrorCode.NONE
    assert node.transactions.describe("tx").is_two_phase
    assert all(not shard.deadlines for _, shard in node.transactions.host.active_shards())
    assert (
        await client.peer.call(InitProducerIdRequest(transactional_id=None, enable_2pc=True), 6)
    ).error_code == ErrorCode.INVALID_REQUEST
    without = Client(await nodes.peer(await nodes.start(transaction_two_phase_commit_enable="false", **FEW)))
    assert await without.init(6, enable_2pc=True) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_a_prepared_transaction_is_handed_over(nodes: Nodes) -> None:
    peer = await nodes.peer(await nodes.start(**FEW))
    await peer.create("t", 2)
    first, second = Client(peer), Client(peer)
    assert await first.init(6, timeout_ms=1, enable_2pc=True) is ErrorCode.NONE
    assert await first.produce() is ErrorCode.NONE
    await peer.call(FindCoordinatorRequest(key="tx", key_type=1), 3)
    taking = InitProducerIdRequest(
        transactional_id="tx", transaction_timeout_ms=1, enable_2pc=True, keep_prepared_txn=True
    )
    taken = await peer.call(taking, 6)
    assert (taken.ongoing_txn_producer_id, taken.ongoing_txn_producer_epoch) == (first.producer_id, first.epoch)
    second.producer_id, second.epoch = taken.producer_id, taken.producer_epoch
    assert await first.produce(partition=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await second.produce(partition=1) is ErrorCode.INVALID_TXN_STATE
    assert await first.end() is ErrorCode.PRODUCER_FENCED
    assert await second.state() == "Ongoing"
    assert await second.end() is ErrorCode.NONE
    await settled(second, "CompleteCommit")
    # The next transaction goes by the epoch that the commit brought.
    assert await second.produce(sequence=0) is ErrorCode.NONE
    assert await second.end() is ErrorCode.NONE
    nothing = await peer.call(taking, 6)
    assert (nothing.error_code, nothing.ongoing_txn_producer_id, nothing.ongoing_txn_producer_epoch) == (0, -1, -1)


async def test_nothing_can_be_handed_over_below_transaction_version_1(nodes: Nodes) -> None:
    peer = await nodes.peer(await nodes.start(**FEW))
    lowered = FeatureUpdateKey(feature="transaction.version", max_version_level=0, upgrade_type=2)
    assert (await peer.call(UpdateFeaturesRequest(feature_updates=[lowered]), 1)).error_code == 0
    client = Client(peer)
    assert await client.init(6, keep_prepared_txn=True) is ErrorCode.UNSUPPORTED_VERSION
    assert await client.init(6, enable_2pc=True) is ErrorCode.NONE


async def test_many_transactions_in_one_request_of_a_broker(peer: Peer) -> None:
    await peer.create("t", 2)
    clients = [Client(peer, name) for name in ("a", "b")]
    for client in clients:
        await client.init()
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=client.transactional_id,
                producer_id=client.producer_id,
                producer_epoch=client.epoch,
                topics=[AddPartitionsToTxnTopic(name="t", partitions=[0, 1])],
            )
            for client in clients
        ]
    )
    answer = await peer.call(request, 5)
    assert [result.transactional_id for result in answer.results_by_transaction] == ["a", "b"]
    for result in answer.results_by_transaction:
        assert [p.partition_error_code for p in result.topic_results[0].results_by_partition] == [0, 0]
    assert await clients[0].state() == await clients[1].state() == "Ongoing"
    assert (await peer.call(AddPartitionsToTxnRequest(), 4)).results_by_transaction == []


async def test_the_list_knows_states_ids_ages_and_patterns(peer: Peer) -> None:
    await peer.create("t")
    for name in ("list-a", "list-b"):
        await Client(peer, name).init()

    async def listed(version: int, **filters: Any) -> tuple[ErrorCode, list[str]]:
        answer = await peer.call(ListTransactionsRequest(**filters), version)
        return ErrorCode(answer.error_code), sorted(state.transactional_id for state in answer.transaction_states)

    assert await listed(2) == (ErrorCode.NONE, ["list-a", "list-b"])
    assert await listed(2, transactional_id_pattern="list-[b-z]") == (ErrorCode.NONE, ["list-b"])
    assert await listed(2, transactional_id_pattern="list") == (ErrorCode.NONE, [])
    for pattern in ("(", "x" * 2000):
        assert await listed(2, transactional_id_pattern=pattern) == (ErrorCode.INVALID_REGULAR_EXPRESSION, [])
    assert await listed(0, state_filters=["Ongoing"]) == (ErrorCode.NONE, [])
    assert await listed(1, duration_filter=3_600_000) == (ErrorCode.NONE, ["list-a", "list-b"])  # none runs: as Kafka


async def test_markers_for_what_is_not_here(peer: Peer) -> None:
    await peer.create("t")
    topics = [
        TopicPartitionIndexes(name="t", partition_indexes=[0, 5]),
        TopicPartitionIndexes(name="nowhere", partition_indexes=[0]),
    ]
    marker = WritableTxnMarker(producer_id=7, producer_epoch=0, topics=topics, coordinator_epoch=0)
    answer = await peer.call(WriteTxnMarkersRequest(markers=[marker]), 1)
    codes = [p.error_code for topic in answer.markers[0].topics for p in topic.partitions]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_without_its_topic_there_is_no_coordinator(peer: Peer) -> None:
    request = InitProducerIdRequest(transactional_id="early", transaction_timeout_ms=1_000)
    assert (await peer.call(request, 4)).error_code == ErrorCode.NOT_COORDINATOR
    client = Client(peer, "early")
    assert await client.end() is ErrorCode.NOT_COORDINATOR


def aborting(producer_ids: Sequence[int], partitions: Sequence[int]) -> WriteTxnMarkersRequest:
    """Markers that abort a transaction of each producer in each partition of "t"."""
    topics = [TopicPartitionIndexes(name="t", partition_indexes=list(partitions))]
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(producer_id=producer_id, topics=topics, coordinator_epoch=0)
            for producer_id in producer_ids
        ]
    )


async def test_markers_of_a_wide_transaction_are_written_in_slices(nodes: Nodes) -> None:
    """Also those that the coordinator of this node sends to itself."""
    node = await nodes.start(**FEW)
    peer = await nodes.peer(node)
    await peer.create("t", 200)
    answers: list[Any] = []
    node.marker_writer.write(aborting([7], range(200)), answers.append)
    written = [node.replicas.leader("t", number).log.log_end_offset for number in range(200)]
    assert (max(written), sum(written)) == (1, 13), "one slice"
    await until(lambda: bool(answers))
    assert {one.error_code for one in answers[0].markers[0].topics[0].partitions} == {ErrorCode.NONE}
    assert {node.replicas.leader("t", number).log.log_end_offset for number in range(200)} == {1}


async def test_producers_of_one_partition_are_listed_in_slices(nodes: Nodes) -> None:
    node = await nodes.start(**FEW)
    peer = await nodes.peer(node)
    await peer.create("t")
    await peer.call(aborting(range(1_000), [0]), 1)
    request = DescribeProducersRequest(topics=[TopicPartitionIndexes(name="t", partition_indexes=[0])])
    steps = list(describe_producers(node, Call(request, 0, 61, None, Connection(), "")))
    assert len(steps) > 1_000 // 8
    answer = await peer.call(request, 0)
    assert [one.producer_id for one in answer.topics[0].partitions[0].active_producers] == list(range(1_000))


async def test_many_transactions_are_compared_with_a_pattern_in_the_worker_thread(nodes: Nodes) -> None:
    node = await nodes.start(**FEW)
    peer = await nodes.peer(node)
    ids = [f"tx{number:03}" for number in range(300)]
    for transactional_id in ids:
        assert await Client(peer, transactional_id).init() == 0
    for pattern in ("tx.*", None):
        request = ListTransactionsRequest(transactional_id_pattern=pattern)
        found = list_transactions(node, Call(request, 2, 66, None, Connection(), ""))
        assert found.takes_long == (pattern is not None)
        answer = await peer.call(request, 2)
        assert sorted(one.transactional_id for one in answer.transaction_states) == ids
