"""Produce: acks, what is refused and how, topic ids, transactions verified or added, and waits of acks=all."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.groups import FindCoordinatorRequest
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.produce import PartitionProduceData, TopicProduceData
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
)
from tests.support.broker.nodes import Nodes, Peer, batch
from tests.support.broker.produces import produce, request
from tests.support.storage.gated_disk import GatedDisk
from tests.support.waiting import elapsed, turns, until


@pytest.mark.parametrize("version", range(3, 13))
async def test_every_version_by_name(peer: Peer, version: int) -> None:
    await peer.create("t")
    for n in range(2):
        answer = await produce(peer, version, request(batch(b"x", b"y")))
        assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 2 * n, -1)
        assert answer.log_start_offset == (0 if version >= 5 else -1)


async def test_version_13_goes_by_id(peer: Peer) -> None:
    await peer.create("t")
    described = await peer.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12)
    answer = await peer.call(request(batch(b"x"), topic_id=described.topics[0].topic_id), 13)
    assert answer.responses[0].topic_id == described.topics[0].topic_id
    assert answer.responses[0].partition_responses[0].error_code == 0
    unknown = await produce(peer, 13, request(batch(b"x"), topic_id=bytes(range(16))))
    assert (unknown.error_code, unknown.base_offset) == (ErrorCode.UNKNOWN_TOPIC_ID, -1)


async def test_acks_0_is_never_answered(peer: Peer) -> None:
    await peer.create("t")
    for _ in range(3):
        peer.send(request(batch(b"x"), acks=0), 9)
    answer = await produce(peer, 9, request(batch(b"y"), acks=1))
    assert answer.base_offset == 3


@pytest.mark.parametrize("silent", [False, True])
async def test_acks_0_without_a_quorum_is_written_unless_another_broker_can_be_elected(
    peer: Peer, nodes: Nodes, node: Node, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    await peer.create("t")
    replica = node.replicas.leader("t", 0)
    monkeypatch.setattr(replica, "_followed_since_ms", lambda: 0)  # the session with the controllers has ended
    if silent:
        replica.in_sync.on_metadata((1, 2), 1)
    peer.send(request(batch(b"x"), acks=0), 9)
    if silent:
        assert await peer.is_closed()
    else:
        await until(lambda: replica.log.log_end_offset == 1)
    assert replica.log.log_end_offset == (0 if silent else 1)


async def test_parts_of_a_request_stand_for_themselves(peer: Peer) -> None:
    await peer.create("t", 2)
    sent = request(batch(b"x"))
    sent.topic_data[0].partition_data += [
        PartitionProduceData(index=1, records=b"rubbish"),
        PartitionProduceData(index=2, records=batch(b"x")),
    ]
    sent.topic_data.append(
        TopicProduceData(name="none", partition_data=[PartitionProduceData(index=0, records=batch(b"x"))])
    )
    topics = (await peer.call(sent, 9)).responses
    assert [(one.index, one.error_code) for topic in topics for one in topic.partition_responses] == [
        (0, ErrorCode.NONE),
        (1, ErrorCode.INVALID_RECORD),
        (2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


async def test_record_errors_name_the_record(peer: Peer) -> None:
    """KIP-467: a compacted topic takes no record without a key."""
    await peer.create("t", cleanup_policy="compact")
    answer = await produce(peer, 8, request(batch(b"x", b"y")))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [one.batch_index for one in answer.record_errors] == [0, 1]
    assert answer.error_message


async def test_internal_topics_are_closed_to_clients(peer: Peer) -> None:
    await peer.call(FindCoordinatorRequest(key="g", key_type=0), 3)
    answer = await produce(peer, 9, request(batch(b"x"), topic="__consumer_offsets"))
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_too_few_in_sync_refuses_before_the_append(peer: Peer, node: Node) -> None:
    await peer.create("t")
    replica = node.replicas.leader("t", 0)
    replica.min_insync_replicas = 2
    assert (await produce(peer, 9, request(batch(b"x")))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert replica.log.log_end_offset == 0
    assert (await produce(peer, 9, request(batch(b"x"), acks=1))).error_code == 0


async def test_an_acknowledgement_waits_for_the_sync_whatever_acks_is(nodes: Nodes) -> None:
    disk = GatedDisk()
    node = await nodes.start(disk)
    peer, second, other = await nodes.peer(node), await nodes.peer(node), await nodes.peer(node)
    await peer.create("t", flush_messages="1")
    await peer.create("fast")
    disk.gate.clear()
    waiting = peer.send(request(batch(b"x")), 9)
    by_itself = asyncio.create_task(produce(second, 9, request(batch(b"y"), acks=1)))
    assert (await produce(other, 9, request(batch(b"z"), topic="fast", acks=1))).base_offset == 0
    await until(lambda: node.replicas.leader("t", 0).log.log_end_offset == 2)
    fetched = await other.call(
        FetchRequest(
            max_bytes=1000,
            topics=[
                FetchTopic(
                    topic="t", partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
                )
            ],
        ),
        11,
    )
    assert fetched.responses[0].partitions[0].high_watermark == 0, "unsynced is unseen"
    assert not by_itself.done()
    disk.gate.set()
    assert (await peer.receive(waiting)).responses[0].partition_responses[0].base_offset == 0
    assert (await by_itself).base_offset == 1
    assert node.replicas.leader("t", 0).high_watermark == 2


async def test_one_sync_for_many_partitions(nodes: Nodes) -> None:
    disk = GatedDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create("t", 8, flush_messages="1")
    disk.rounds.clear()
    sent = request(batch(b"x"))
    sent.topic_data[0].partition_data = [PartitionProduceData(index=n, records=batch(b"x")) for n in range(8)]
    answer = await peer.call(sent, 9)
    assert [one.error_code for one in answer.responses[0].partition_responses] == [0] * 8
    assert len(disk.rounds) == 1


def follow_by_nobody(node: Node, topic: str) -> None:
    """Gives the topic's first partition a follower in the ISR that never fetches."""
    replica = node.replicas.leader(topic, 0)
    replica.lead(replica.leader_epoch, [1, 2], replica.in_sync.partition_epoch + 1, replicas=[1, 2])


async def test_acks_all_times_out_by_partition(peer: Peer, node: Node) -> None:
    await peer.create("fast")
    await peer.create("slow")
    follow_by_nobody(node, "slow")
    sent = request(batch(b"x"), topic="slow", timeout_ms=50)
    sent.topic_data.append(
        TopicProduceData(name="fast", partition_data=[PartitionProduceData(index=0, records=batch(b"x"))])
    )
    slow, fast = (await peer.call(sent, 9)).responses
    assert slow.partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert fast.partition_responses[0].error_code == 0


async def test_the_timeout_counts_from_the_sync_that_the_append_needs(nodes: Nodes) -> None:
    disk = GatedDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create("t", flush_messages="1")
    disk.gate.clear()
    both = [peer.send(request(batch(b"x"), timeout_ms=0), 9), peer.send(request(batch(b"y"), timeout_ms=-1), 9)]
    await until(lambda: node.replicas.leader("t", 0).log.log_end_offset == 2)
    await elapsed(node.reactor.clock, 20)
    disk.gate.set()
    for base_offset, sent in enumerate(both):
        answered = (await peer.receive(sent)).responses[0].partition_responses[0]
        assert (answered.error_code, answered.base_offset) == (0, base_offset)


async def test_a_closed_connection_leaves_nothing_behind(nodes: Nodes) -> None:
    node = await nodes.start()
    peer = await nodes.peer(node)
    await peer.create("t")
    follow_by_nobody(node, "t")
    before = len(node.reactor.timers)
    peer.send(request(batch(b"x"), timeout_ms=600_000), 9)
    await until(lambda: len(node.reactor.timers) == before + 1)
    peer.writer.close()
    await until(lambda: not node.server.connections)
    await until(lambda: len(node.reactor.timers) == before)  # its deadline is gone


# -- transactions ------------------------------------------------------------------------------------------------------


async def init_producer(peer: Peer, transactional_id: str) -> tuple[int, int]:
    await peer.call(FindCoordinatorRequest(key=transactional_id, key_type=1), 3)
    while True:
        answer = await peer.call(
            InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000), 4
        )
        if answer.error_code == 0:
            return answer.producer_id, answer.producer_epoch
        assert answer.error_code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
        await turns()


async def test_version_12_adds_the_partition_and_later_requests_wait_for_it(peer: Peer, node: Node) -> None:
    await peer.create("t")
    producer_id, epoch = await init_producer(peer, "tx")
    sent = []
    for n in range(5):  # in one write: the first must not be overtaken
        records = batch(b"%d" % n, producer_id=producer_id, producer_epoch=epoch, base_sequence=n, transactional=True)
        sent.append(peer.send(request(records, transactional_id="tx"), 12))
    answers = [(await peer.receive(one)).responses[0].partition_responses[0] for one in sent]
    assert [(one.error_code, one.base_offset) for one in answers] == [(0, n) for n in range(5)]
    assert node.replicas.leader("t", 0).last_stable_offset == 0
    ended = await peer.call(
        EndTxnRequest(transactional_id="tx", producer_id=producer_id, producer_epoch=epoch, committed=True), 5
    )
    assert (ended.error_code, ended.producer_epoch) == (0, epoch + 1)


async def test_before_version_12_the_partition_must_have_been_added(peer: Peer) -> None:
    await peer.create("t")
    producer_id, epoch = await init_producer(peer, "tx")
    records = batch(b"x", producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True)
    for version, code in ((9, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)):
        refused = await produce(peer, version, request(records, transactional_id="tx"))
        assert (refused.error_code, refused.base_offset) == (code, -1)
    added = await peer.call(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
        ),
        3,
    )
    assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    assert (await produce(peer, 11, request(records, transactional_id="tx"))).error_code == 0


async def test_two_producers_in_one_request_are_refused(peer: Peer) -> None:
    await peer.create("t", 2)
    producer_id, epoch = await init_producer(peer, "tx")

    def part(number: int, producer: int) -> PartitionProduceData:
        records = batch(b"x", producer_id=producer, producer_epoch=epoch, base_sequence=0, transactional=True)
        return PartitionProduceData(index=number, records=records)

    sent = request(None, transactional_id="tx")
    sent.topic_data[0].partition_data = [part(0, producer_id), part(1, producer_id + 1)]
    answer = await peer.call(sent, 11)
    assert {one.error_code for one in answer.responses[0].partition_responses} == {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    }


async def test_naming_a_partition_twice_does_not_pass_by_the_verification(peer: Peer, node: Node) -> None:
    await peer.create("t")
    producer_id, epoch = await init_producer(peer, "tx")
    sent = request(None, transactional_id="tx")
    sent.topic_data[0].partition_data = [
        PartitionProduceData(
            index=0,
            records=batch(
                b"x", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
            ),
        )
        for sequence in range(2)
    ]
    answer = await peer.call(sent, 11)
    codes = [one.error_code for one in answer.responses[0].partition_responses]
    assert codes == [ErrorCode.TRANSACTION_ABORTABLE] * 2
    assert node.replicas.leader("t", 0).log.log_end_offset == 0
