"""DescribeProducers: who wrote into a partition, and whose transaction is open there."""

from __future__ import annotations

from barnabas.errors import ErrorCode
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.shared import TopicPartitionIndexes
from barnabas.protocol.messages.transactions import DescribeProducersPartitionResult, DescribeProducersRequest
from tests.support.broker.nodes import Nodes, Peer, batch
from tests.support.broker.transactional_client import FEW, Client


async def describe(peer: Peer, topic: str, partition: int) -> DescribeProducersPartitionResult:
    request = DescribeProducersRequest(topics=[TopicPartitionIndexes(name=topic, partition_indexes=[partition])])
    (answered,) = (await peer.call(request, 0)).topics
    assert answered.name == topic
    (result,) = answered.partitions
    assert isinstance(result, DescribeProducersPartitionResult)
    return result


async def test_idempotent_and_transactional_producers(nodes: Nodes) -> None:
    peer = await nodes.peer(await nodes.start(**FEW))
    await peer.create("t")
    client = Client(peer)
    assert await client.init() == 0
    assert await client.produce() == 0
    assert await client.end() == 0
    assert await client.produce() == 0
    plain = batch(b"x", b"y", producer_id=77, producer_epoch=3, base_sequence=0)
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=plain)])
    await peer.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), 9)
    bound, free = (await describe(peer, "t", 0)).active_producers
    assert (bound.producer_id, bound.producer_epoch, bound.last_sequence) == (client.producer_id, client.epoch, 0)
    assert (bound.coordinator_epoch, bound.current_txn_start_offset) == (0, 2)
    assert (free.producer_id, free.producer_epoch, free.last_sequence) == (77, 3, 1)
    assert (free.coordinator_epoch, free.current_txn_start_offset) == (-1, -1)
    assert free.last_timestamp > 0


async def test_partitions_that_are_not_here(peer: Peer) -> None:
    await peer.create("a")
    assert (await describe(peer, "a", 0)).active_producers == []
    unknown = await describe(peer, "a", 7)
    assert (unknown.error_code, unknown.error_message) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
    unknown = await describe(peer, "nope", 0)
    assert (unknown.error_code, unknown.error_message) == (3, "This server does not host this topic-partition.")
    assert (await describe(peer, "a/b", 0)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
