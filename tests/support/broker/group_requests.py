"""Requests about groups and offsets, by a raw connection to a node."""

from __future__ import annotations

from typing import Any

from barnabas.errors import ErrorCode
from tests.support.broker.nodes import Peer
from tests.support.requests import request_of

NONE = ErrorCode.NONE
PATIENT = {"group_initial_rebalance_delay_ms": "0", "offsets_topic_num_partitions": "1"}


async def prepare(peer: Peer) -> None:
    """A topic, and a coordinator."""
    await peer.create("t", 2)
    await find(peer)


async def find(peer: Peer) -> None:
    answer = await peer.call(request_of("FindCoordinator", key="g"), 3)
    assert answer.error_code == NONE, answer


def join_request(group: str = "g", member_id: str = "") -> Any:
    return request_of(
        "JoinGroup",
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[{"name": "range"}],
    )


def commit_request(offset: int, *, group: str = "g", topic: str = "t", **fields: Any) -> Any:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "note"}
    topics = [{"name": topic, "topic_id": fields.pop("topic_id", bytes(16)), "partitions": [partition]}]
    return request_of("OffsetCommit", group_id=group, topics=topics, **fields)


async def commit(peer: Peer, offset: int, version: int = 9, **fields: Any) -> ErrorCode:
    answer = await peer.call(commit_request(offset, **fields), version)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def fetch_request(group: str = "g", *, topic_id: bytes = bytes(16)) -> Any:
    topic = {"name": "t", "topic_id": topic_id, "partition_indexes": [0]}
    return request_of(
        "OffsetFetch",
        group_id=group,
        topics=[{"name": "t", "partition_indexes": [0]}],
        groups=[{"group_id": group, "topics": [topic]}],
    )


async def committed(peer: Peer, version: int = 8, **fields: Any) -> int:
    answer = await peer.call(fetch_request(**fields), version)
    topics = answer.groups[0].topics if version >= 8 else answer.topics
    (partition,) = topics[0].partitions
    assert partition.error_code == NONE
    assert isinstance(partition.committed_offset, int)
    return partition.committed_offset


async def member(peer: Peer, group: str = "g") -> str:
    """A group of one, Stable."""
    member_id = (await peer.call(join_request(group), 9)).member_id
    joined = await peer.call(join_request(group, member_id), 9)
    assert joined.error_code == NONE
    synced = await peer.call(
        request_of(
            "SyncGroup",
            group_id=group,
            generation_id=joined.generation_id,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
        ),
        5,
    )
    assert synced.error_code == NONE
    assert isinstance(member_id, str)
    return member_id


async def heartbeat(peer: Peer, member_id: str, generation: int = 1) -> ErrorCode:
    answer = await peer.call(request_of("Heartbeat", group_id="g", member_id=member_id, generation_id=generation), 4)
    return ErrorCode(answer.error_code)
