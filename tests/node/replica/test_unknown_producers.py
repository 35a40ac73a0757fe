"""A producer that a partition does not know, over restarts of the node and over a topic that is made anew."""

from __future__ import annotations

import errno

import pytest

from barnabas.broker.replica import recovery
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.transactions import InitProducerIdRequest
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.runtime.clock import SystemClock
from barnabas.storage.checkpoints import PRODUCER_STATE_CHECKPOINT
from barnabas.testing.world.disks import FaultyMemoryDisk
from tests.support.broker.nodes import Nodes, Peer
from tests.support.broker.some_access import SomeAccess
from tests.support.waiting import until

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def produce(peer: Peer, producer_id: int, sequence: int, topic: str = "t") -> ErrorCode:
    records = build_batch(
        [NewRecord(None, b"v", SystemClock().now_ms())],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=bytes(records))])
    answer = await peer.call(ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[data]), 9)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


async def test_a_restart_keeps_the_rule(nodes: Nodes) -> None:
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create("t")
    assert await produce(peer, 1, 0) == ErrorCode.NONE
    assert await produce(peer, 2, 5) == OUT_OF_ORDER
    await node.stop()
    peer = await nodes.peer(await nodes.start(disk))
    assert await produce(peer, 2, 5) == OUT_OF_ORDER
    assert await produce(peer, 1, 1) == ErrorCode.NONE


async def test_a_gap_after_a_refusal_while_the_log_was_not_open(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch 1 comes before the log is open, 2 right after: the producer sends both again, in order."""
    monkeypatch.setattr(recovery, "RETRY_MS", 20)
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create("t")
    assert await produce(peer, 1, 0) == ErrorCode.NONE
    await node.stop()
    disk.fail("open", path="*t-0*", times=None, number=errno.EMFILE)
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    assert await produce(peer, 1, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    disk.heal()
    await until(lambda: node.replicas.get("t", 0) is not None)
    assert await produce(peer, 1, 2) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await produce(peer, 1, 1) == ErrorCode.NONE
    assert await produce(peer, 1, 2) == ErrorCode.NONE


async def test_without_the_checkpoint_any_sequence_is_accepted(nodes: Nodes) -> None:
    """A directory that Kafka, or an earlier version, has written to."""
    disk = FaultyMemoryDisk()
    node = await nodes.start(disk)
    peer = await nodes.peer(node)
    await peer.create("t")
    assert await produce(peer, 1, 0) == ErrorCode.NONE
    await node.stop()
    disk.remove(PRODUCER_STATE_CHECKPOINT)
    peer = await nodes.peer(await nodes.start(disk))
    assert await produce(peer, 2, 5) == ErrorCode.NONE


async def new_producer_id(peer: Peer) -> int:
    answer = await peer.call(InitProducerIdRequest(transactional_id=None), 4)
    assert answer.error_code == 0
    return int(answer.producer_id)


async def test_a_producer_goes_on_after_first_batches_that_it_was_not_allowed_to_write(nodes: Nodes) -> None:
    """aiokafka counts their sequences, and begins no new epoch."""
    node = await nodes.start()
    peer = await nodes.peer(node)
    await peer.create("t")
    producer_id = await new_producer_id(peer)
    (connection,) = node.server.connections
    access = connection.access
    connection.access = SomeAccess()
    for sequence in range(2):
        assert await produce(peer, producer_id, sequence) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    connection.access = access
    assert await produce(peer, producer_id, 3) == OUT_OF_ORDER
    assert await produce(peer, producer_id, 2) == ErrorCode.NONE
    assert await produce(peer, producer_id, 3) == ErrorCode.NONE
