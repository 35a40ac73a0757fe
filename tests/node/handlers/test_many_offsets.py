"""Commits and deletions of many offsets: each is one batch, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from barnabas.protocol.messages.shared import PartitionIndex
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from barnabas.protocol.records import iter_batches
from tests.support.broker.nodes import Nodes, Peer

COUNT = 600
STATE_TOPICS = {"offsets_topic_num_partitions": "1", "transaction_state_log_num_partitions": "1"}


@pytest.fixture
async def node(nodes: Nodes) -> Node:
    return await nodes.start(None, **STATE_TOPICS)


async def prepare(peer: Peer) -> None:
    await peer.create("t", COUNT)
    answer = await peer.call(FindCoordinatorRequest(key="g"), 3)
    assert answer.error_code == 0


def commit_request(group: str = "g", metadata: str = "") -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(partition_index=n, committed_offset=n + 1, committed_metadata=metadata)
        for n in range(COUNT)
    ]
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)])


async def commit(peer: Peer, request: OffsetCommitRequest) -> set[int]:
    answer = await peer.call(request, 9)
    assert len(answer.topics[0].partitions) == COUNT
    return {partition.error_code for partition in answer.topics[0].partitions}


async def committed(peer: Peer) -> dict[int, int]:
    answer = await peer.call(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]), 8)
    return {
        partition.partition_index: partition.committed_offset
        for topic in answer.groups[0].topics
        for partition in topic.partitions
    }


def batch_sizes(node: Node) -> list[int]:
    """How many records each batch of __consumer_offsets has."""
    log = node.replicas.leader("__consumer_offsets", 0).log
    data = log.read(0, 1 << 24, end_offset=log.log_end_offset).records
    return [header.record_count for _, header in iter_batches(bytes(data)) if not header.is_control]


ALL = {n: n + 1 for n in range(COUNT)}


async def test_a_commit_is_one_batch(peer: Peer, node: Node) -> None:
    await prepare(peer)
    assert await commit(peer, commit_request()) == {0}
    assert await committed(peer) == ALL
    assert batch_sizes(node) == [COUNT]


async def test_a_commit_in_a_transaction_is_one_batch_and_takes_effect_with_the_marker(peer: Peer, node: Node) -> None:
    await prepare(peer)
    await peer.call(FindCoordinatorRequest(key="x", key_type=1), 3)
    identity = await peer.call(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 4)
    ids = {"producer_id": identity.producer_id, "producer_epoch": identity.producer_epoch}
    added = await peer.call(AddOffsetsToTxnRequest(transactional_id="x", group_id="g", **ids), 3)
    assert added.error_code == 0
    partitions = [TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=n + 1) for n in range(COUNT)]
    request = TxnOffsetCommitRequest(
        transactional_id="x", group_id="g", topics=[TxnOffsetCommitRequestTopic(name="t", partitions=partitions)], **ids
    )
    answer = await peer.call(request, 3)
    assert {partition.error_code for partition in answer.topics[0].partitions} == {0}
    assert batch_sizes(node) == [COUNT]
    assert set((await committed(peer)).values()) <= {-1}, "pending until the marker"
    assert (await peer.call(EndTxnRequest(transactional_id="x", committed=True, **ids), 3)).error_code == 0
    while await committed(peer) != ALL:  # the marker follows the answer
        pass


async def test_a_deletion_of_offsets_is_one_batch(peer: Peer, node: Node) -> None:
    await prepare(peer)
    assert await commit(peer, commit_request()) == {0}
    first = [OffsetDeleteRequestTopic(name="t", partitions=[PartitionIndex(partition_index=7)])]
    assert (await peer.call(OffsetDeleteRequest(group_id="g", topics=first), 0)).error_code == 0
    assert await committed(peer) == {n: offset for n, offset in ALL.items() if n != 7}
    partitions = [PartitionIndex(partition_index=n) for n in range(COUNT + 1)]
    other = [PartitionIndex(partition_index=0)]
    answer = await peer.call(
        OffsetDeleteRequest(
            group_id="g",
            topics=[
                OffsetDeleteRequestTopic(name="nope", partitions=other),
                OffsetDeleteRequestTopic(name="t", partitions=partitions),
            ],
        ),
        0,
    )
    codes = [[each.error_code for each in topic.partitions] for topic in answer.topics]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [[unknown], [0] * COUNT + [unknown]]
    assert await committed(peer) == {}
    assert batch_sizes(node) == [COUNT, 1, COUNT - 1], "a tombstone for each partition that has an offset"


async def test_a_group_is_deleted_in_one_batch(peer: Peer, node: Node) -> None:
    await prepare(peer)
    assert await commit(peer, commit_request()) == {0}
    answer = await peer.call(DeleteGroupsRequest(groups_names=["g", "g", "nope"]), 2)
    assert [(each.group_id, each.error_code) for each in answer.results] == [
        ("g", 0),
        ("nope", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    assert await committed(peer) == {}
    assert batch_sizes(node) == [COUNT, COUNT + 1]
    described = await peer.call(DescribeGroupsRequest(groups=["g"]), 6)
    assert described.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_groups_of_one_shard_are_deleted_in_one_batch_without_the_one_that_has_a_member(
    peer: Peer, node: Node
) -> None:
    await prepare(peer)
    joined = await peer.call(
        JoinGroupRequest(
            group_id="busy",
            session_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        3,
    )
    assert joined.error_code == 0
    for group in ("g", "h"):
        assert await commit(peer, commit_request(group)) == {0}
    answer = await peer.call(DeleteGroupsRequest(groups_names=["g", "busy", "h"]), 2)
    assert [each.error_code for each in answer.results] == [0, ErrorCode.NON_EMPTY_GROUP, 0]
    assert await committed(peer) == {}
    assert batch_sizes(node)[-1] == 2 * (COUNT + 1), "the offsets and the two groups"


async def test_a_commit_that_no_batch_can_hold_is_refused_as_a_whole(peer: Peer, node: Node) -> None:
    """The group id is in the key of each offset: megabytes in the log for a short request."""
    await prepare(peer)
    before = node.replicas.leader("__consumer_offsets", 0).log.log_end_offset
    assert await commit(peer, commit_request("g" * 32_000)) == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert node.replicas.leader("__consumer_offsets", 0).log.log_end_offset == before
    shard = node.groups.host.shard(0)
    assert not shard.offsets.has_any("g" * 32_000)


async def test_a_deletion_that_no_batch_can_hold_is_refused_as_a_whole(peer: Peer, node: Node) -> None:
    await prepare(peer)
    assert await commit(peer, commit_request()) == {0}
    replica = node.replicas.leader("__consumer_offsets", 0)
    replica.log.config = replace(replica.log.config, max_message_bytes=COUNT)
    answer = await peer.call(DeleteGroupsRequest(groups_names=["g", "nope"]), 2)
    codes = {each.group_id: each.error_code for each in answer.results}
    assert codes == {"g": ErrorCode.UNKNOWN_SERVER_ERROR, "nope": ErrorCode.UNKNOWN_SERVER_ERROR}
    partitions = [PartitionIndex(partition_index=n) for n in range(COUNT)]
    topics = [OffsetDeleteRequestTopic(name="t", partitions=partitions)]
    refused = await peer.call(OffsetDeleteRequest(group_id="g", topics=topics), 0)
    assert refused.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert await committed(peer) == ALL
