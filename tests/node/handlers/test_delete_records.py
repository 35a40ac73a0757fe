"""DeleteRecords with followers: the answer waits until none of them could bring a record back."""

from __future__ import annotations

import pytest

from barnabas.broker.api.call import Call
from barnabas.broker.handlers import delete_records as handler
from barnabas.broker.node.node import Node
from barnabas.broker.replica.core.machine import Replica
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from barnabas.protocol.messages.groups import FindCoordinatorRequest
from barnabas.protocol.messages.metadata import ApiVersionsRequest
from barnabas.work import finished
from tests.support.broker.calls import Connection
from tests.support.broker.nodes import Peer, batch
from tests.support.waiting import until


def deleting(offset: int, timeout_ms: int = 5_000, topic: str = "a") -> DeleteRecordsRequest:
    wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])], timeout_ms=timeout_ms)


@pytest.fixture
async def replica(node: Node, peer: Peer) -> Replica:
    """Ten records, led here and followed by broker 2, who has them all."""
    await peer.create("a")
    found = node.replicas.leader("a", 0)
    found.lead(found.leader_epoch + 1, (1, 2), found.partition_epoch + 1, replicas=(1, 2))
    found.append(batch(*[b"x"] * 10))
    found.on_follower_fetch(2, 7, 10, 0)
    assert found.high_watermark == 10
    return found


async def test_the_answer_waits_for_followers(peer: Peer, replica: Replica) -> None:
    sent = peer.send(deleting(4), 2)
    await until(lambda: replica.log.log_start_offset == 4)
    replica.on_follower_fetch(2, 7, 10, 3)
    following = peer.send(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
    await until(lambda: replica.watchers)
    replica.on_follower_fetch(2, 7, 10, 4)
    (result,) = (await peer.receive(sent)).topics[0].partitions
    assert (result.error_code, result.low_watermark) == (0, 4)
    assert (await peer.receive(following)).error_code == 0, "answers keep their order"
    assert not replica.watchers


async def test_what_is_gone_everywhere_is_answered_at_once(peer: Peer, replica: Replica) -> None:
    replica.delete_records_before(6)
    replica.on_follower_fetch(2, 7, 10, 5)
    (result,) = (await peer.call(deleting(5), 2)).topics[0].partitions
    assert (result.error_code, result.low_watermark) == (0, 5)


async def test_records_of_internal_topics_are_not_deleted(peer: Peer) -> None:
    async def code() -> int:
        (result,) = (await peer.call(deleting(0, topic="__consumer_offsets"), 2)).topics[0].partitions
        assert result.low_watermark == -1
        return int(result.error_code)

    assert await code() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await peer.call(FindCoordinatorRequest(key="g"), 3)
    assert await code() == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_a_follower_that_does_not_follow(peer: Peer, replica: Replica) -> None:
    (result,) = (await peer.call(deleting(-1, timeout_ms=50), 2)).topics[0].partitions
    assert (result.error_code, result.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, 0)
    assert not replica.watchers


async def test_leadership_that_is_lost_meanwhile(peer: Peer, replica: Replica) -> None:
    sent = peer.send(deleting(4), 2)
    await until(lambda: replica.watchers)
    replica.follow(2, replica.leader_epoch + 1, (1, 2), replica.partition_epoch + 1)
    (result,) = (await peer.receive(sent)).topics[0].partitions
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not replica.watchers


async def test_a_connection_that_ends_leaves_nothing(peer: Peer, replica: Replica) -> None:
    peer.send(deleting(4), 2)
    await until(lambda: replica.watchers)
    peer.writer.close()
    await until(lambda: not replica.watchers)


async def test_of_a_partition_that_is_named_often_the_last_offset_counts(peer: Peer, replica: Replica) -> None:
    """As in Kafka. One answer, so that 99,000 repetitions wait as one."""
    request = deleting(4)
    request.topics[0].partitions += [DeleteRecordsPartition(partition_index=0, offset=offset) for offset in (7, 5)]
    request.topics += deleting(6).topics
    sent = peer.send(request, 2)
    await until(lambda: replica.watchers)
    assert replica.log.log_start_offset == 6
    replica.on_follower_fetch(2, 7, 10, 6)
    (topic,) = (await peer.receive(sent)).topics
    assert [(each.partition_index, each.low_watermark) for each in topic.partitions] == [(0, 6)]


async def test_a_connection_that_ends_while_the_late_partitions_are_counted_leaves_nothing(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "LOOKS_PER_TURN", 1)
    count = 100
    await peer.create("b", count)
    replicas = [node.replicas.leader("b", number) for number in range(count)]
    for found in replicas:
        found.lead(found.leader_epoch + 1, (1, 2), found.partition_epoch + 1, replicas=(1, 2))
    wanted = [DeleteRecordsPartition(partition_index=number, offset=-1) for number in range(count)]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="b", partitions=wanted)], timeout_ms=1)
    call: Call[DeleteRecordsRequest] = Call(request, 2, 21, None, Connection(), "")
    pending = finished(handler.delete_records(node, call))
    answers: list[object] = []
    pending.attach(answers.append, None)
    await until(lambda: answers or not all(found.watchers for found in replicas))
    assert any(found.watchers for found in replicas)
    pending.closed()
    assert not any(found.watchers for found in replicas)
