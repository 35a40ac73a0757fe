"""Requests that make many files: of new partitions, which have no folders yet, and of new segments."""

from __future__ import annotations

import pytest

from barnabas.broker.replica import replicas
from barnabas.protocol.messages.admin import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from barnabas.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.protocol.schema import Message
from barnabas.storage.disk import MemoryDisk
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.segment import Segment
from tests.support.broker.nodes import Nodes
from tests.support.requests import codes_in


def _list_offsets(count: int) -> tuple[Message, int]:
    parts = [ListOffsetsPartition(partition_index=n, timestamp=-1) for n in range(count)]
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=parts)]), 5


def _epochs(count: int) -> tuple[Message, int]:
    parts = [OffsetForLeaderPartition(partition=n, leader_epoch=0) for n in range(count)]
    return OffsetForLeaderEpochRequest(replica_id=-2, topics=[OffsetForLeaderTopic(topic="t", partitions=parts)]), 3


def _delete_records(count: int) -> tuple[Message, int]:
    parts = [DeleteRecordsPartition(partition_index=n, offset=0) for n in range(count)]
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=parts)], timeout_ms=5_000), 2


def _produce(count: int) -> tuple[ProduceRequest, int]:
    parts = [PartitionProduceData(index=n, records=build_batch([NewRecord(None, b"x", 0)])) for n in range(count)]
    return ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[TopicProduceData(name="t", partition_data=parts)]), 9


MANY_PARTITIONS = {
    "ListOffsets": _list_offsets,
    "OffsetForLeaderEpoch": _epochs,
    "DeleteRecords": _delete_records,
    "Produce": _produce,
}


@pytest.mark.parametrize("api", ["ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords", "Produce"])
async def test_requests_open_new_partitions_a_few_in_each_turn(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    """Each takes half a millisecond of the loop; a request may name thousands of them."""
    monkeypatch.setattr(replicas, "OPENED_AT_ONCE", 0)
    monkeypatch.setattr(replicas, "OPENED_PER_TURN", 0)
    count = 60
    node = await nodes.start(MemoryDisk())
    peer = await nodes.peer(node)
    await peer.create("t", count)
    opened_in_turn: list[int] = [0]
    opened = node.replicas._open_now
    begin_turn = node.slices._begin_turn

    def open_now(keys: list[tuple[bytes, int]]) -> None:
        opened_in_turn[-1] += len(keys)
        opened(keys)

    def begin() -> None:
        opened_in_turn.append(0)
        begin_turn()

    monkeypatch.setattr(node.replicas, "_open_now", open_now)
    monkeypatch.setattr(node.slices, "_begin_turn", begin)
    answer = await peer.call(*MANY_PARTITIONS[api](count))
    assert codes_in(answer) == {0}
    assert sum(opened_in_turn) == count
    assert max(opened_in_turn) <= 8


async def test_a_request_begins_a_few_segments_in_each_turn(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is a week younger than the first one of its segment begins a new segment: a millisecond of the loop."""
    count = 60
    node = await nodes.start(MemoryDisk())
    peer = await nodes.peer(node)
    await peer.create("t", count)
    rolled_in_turn: list[int] = [0]
    begin_turn = node.slices._begin_turn
    roll = PartitionLog._roll

    def rolled(log: PartitionLog, base_offset: int, now_ms: int) -> Segment:
        rolled_in_turn[-1] += 1
        return roll(log, base_offset, now_ms)

    def begin() -> None:
        rolled_in_turn.append(0)
        begin_turn()

    monkeypatch.setattr(PartitionLog, "_roll", rolled)
    monkeypatch.setattr(node.slices, "_begin_turn", begin)
    request, version = _produce(count)
    assert codes_in(await peer.call(request, version)) == {0}
    assert sum(rolled_in_turn) == 0
    for topic in request.topic_data:
        for data in topic.partition_data:
            data.records = build_batch([NewRecord(None, b"x", 8 * 24 * 3_600_000)])
    assert codes_in(await peer.call(request, version)) == {0}
    assert sum(rolled_in_turn) == count
    assert max(rolled_in_turn) <= 8
