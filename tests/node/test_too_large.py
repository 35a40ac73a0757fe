"""Requests above the node's own limits are answered with an error, and the connection serves the next ones."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.errors import ErrorCode
from tests.support.broker.nodes import Nodes, Peer
from tests.support.requests import codes_in, request_of

NAMES = [{"name": f"t{number}"} for number in range(100_001)]
INDEXES = [{"partition_index": number} for number in range(120_000)]
LONG = [{"partition_index": number, "committed_metadata": "m" * 4_000} for number in range(2_200)]


def offset_commit(partitions: list[dict[str, Any]]) -> Any:
    return request_of(
        "OffsetCommit", group_id="g", generation_id_or_member_epoch=-1, topics=[{"name": "t", "partitions": partitions}]
    )


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (offset_commit(LONG), 2),
        (offset_commit(LONG), 8),
        (offset_commit(INDEXES), 8),
        (request_of("ListOffsets", replica_id=-1, topics=[{"name": "t", "partitions": INDEXES}]), 7),
        (request_of("Metadata", topics=NAMES), 9),
        (request_of("DescribeConfigs", resources=[{"resource_type": 2, "resource_name": "t" * 100}] * 99_000), 4),
        (request_of("SyncGroup", group_id="g", assignments=[{"member_id": "m", "assignment": bytes(9_000_000)}]), 5),
        (request_of("PushTelemetry", metrics=bytes(9_000_000)), 0),
        (request_of("DeleteGroups", groups_names=["g"] * 100_001), 2),
    ],
    ids=lambda value: getattr(value, "__class__", type(value)).__name__ if not isinstance(value, int) else str(value),
)
async def test_a_request_that_is_too_large_is_refused(peer: Peer, request_: Any, version: int) -> None:
    before, too_large = peer.send(request_of("ApiVersions"), 0), peer.send(request_, version)
    after = peer.send(request_of("ApiVersions"), 0)
    assert (await peer.receive(before)).error_code == 0
    codes = codes_in(await peer.receive(too_large)) - {0}
    assert codes == {ErrorCode.INVALID_REQUEST}
    assert (await peer.receive(after)).error_code == 0


async def test_the_refused_partitions_are_named(peer: Peer) -> None:
    """A client would take an answer without partitions for success."""
    answer = await peer.call(offset_commit(LONG), 8)
    assert [(topic.name, [each.partition_index for each in topic.partitions]) for topic in answer.topics] == [
        ("t", [0, 1, 2])
    ]


async def test_a_request_whose_error_cannot_be_named_closes_the_connection(peer: Peer) -> None:
    request = request_of(
        "OffsetCommit", group_id="g", member_id="m" * 30_000, topics=[{"name": "t", "partitions": LONG}]
    )
    peer.send(request, 2)
    assert await peer.is_closed()


async def test_the_operator_sets_the_limit(nodes: Nodes) -> None:
    node = await nodes.start(socket_request_max_bytes="20000000")
    peer = await nodes.peer(node)
    await peer.create("t")
    codes = codes_in(await peer.call(offset_commit(LONG), 8))
    assert ErrorCode.INVALID_REQUEST not in codes  # answered for each partition
    peer.send(request_of("PushTelemetry", metrics=bytes(20_000_001)), 0)
    assert await peer.is_closed(), "as in Kafka"
