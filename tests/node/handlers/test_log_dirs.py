"""DescribeLogDirs: what lies where, and how much."""

from __future__ import annotations

import pytest

from barnabas.broker.node.node import Node
from barnabas.protocol.messages.admin import DescribeLogDirsRequest
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.shared import TopicPartitions
from tests.support.broker.nodes import Peer, batch


def asked(*topics: tuple[str, list[int]]) -> DescribeLogDirsRequest:
    return DescribeLogDirsRequest(topics=[TopicPartitions(topic=name, partitions=each) for name, each in topics])


@pytest.mark.parametrize("version", range(1, 6))
async def test_every_replica_with_its_size(peer: Peer, node: Node, version: int) -> None:
    await peer.create("a", 2)
    await peer.create("b")
    data = PartitionProduceData(index=1, records=batch(b"x" * 100))
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="a", partition_data=[data])])
    await peer.call(request, 9)
    answer = await peer.call(DescribeLogDirsRequest(topics=None), version)
    (result,) = answer.results
    assert (answer.error_code, result.error_code, result.log_dir, result.is_cordoned) == (
        0,
        0,
        node.log_dirs.main.disk.root,
        False,
    )
    sizes = {
        (topic.name, one.partition_index): one.partition_size for topic in result.topics for one in topic.partitions
    }
    assert sizes == {("a", 0): 0, ("a", 1): node.replicas.leader("a", 1).log.size_bytes, ("b", 0): 0}
    assert sizes["a", 1] > 100
    total, usable = (
        (node.log_dirs.main.disk.total_bytes(), node.log_dirs.main.disk.available_bytes()) if version >= 4 else (-1, -1)
    )
    assert (result.total_bytes, result.usable_bytes) == (total, usable)


async def test_only_what_was_asked_for_and_is_here(peer: Peer) -> None:
    await peer.create("a", 3)
    await peer.create("b")

    async def found(request: DescribeLogDirsRequest) -> list[tuple[str, list[int]]]:
        (result,) = (await peer.call(request, 5)).results
        return [(topic.name, [one.partition_index for one in topic.partitions]) for topic in result.topics]

    assert await found(asked(("a", [2, 0, 7]), ("nope", [0]))) == [("a", [0, 2])]
    assert await found(asked(("a", [1]), ("b", [0]), ("a", [1]))) == [("a", [1]), ("b", [0])]
    assert await found(asked(("a", []))) == []
    assert await found(asked()) == []
