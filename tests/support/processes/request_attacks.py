"""Requests that many clients, or one connection, send at once to the broker at an address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tests.support.oracle.wire import Wire
from tests.support.processes.huge.request import ELEMENTS, named, names
from tests.support.requests import frame_of, request_of

AT_ONCE: Final = 100  # requests in one write


def _heartbeats(group: str, epoch: int, members: range, version: int = 1) -> bytes:
    """Frames of members that join or leave."""
    joins: dict[str, Any] = {"rebalance_timeout_ms": 5_000, "topic_partitions": [], "subscribed_topic_names": ["quiet"]}
    fields = {"group_id": group, "member_epoch": epoch, **(joins if epoch == 0 else {})}
    requests = (request_of("ConsumerGroupHeartbeat", member_id=f"member-{number}", **fields) for number in members)
    return b"".join(frame_of(request, version, number, "attack") for number, request in enumerate(requests))


def _chunks(count: int) -> Iterator[range]:
    return (range(start, min(start + AT_ONCE, count)) for start in range(0, count, AT_ONCE))


def join_and_leave(address: str, members: int) -> None:
    """Members join a group of KIP-848 in bursts, and leave it in bursts."""
    with Wire(address, timeout_s=120) as wire:
        wire.find_coordinator("large-group", 0)
        for epoch in (0, -1):
            for chunk in _chunks(members):
                wire.socket.sendall(_heartbeats("large-group", epoch, chunk))
                for _ in chunk:
                    wire.next_frame()


def leave_reads(address: str, connections: int) -> None:
    """Clients send huge Metadata requests, some with more behind them, and leave. Then the next client's large request is answered."""
    huge = frame_of(request_of("Metadata", topics=named(names(ELEMENTS))), 12, 1, "attack")
    small = frame_of(request_of("Metadata", topics=None), 12, 2, "attack")
    peers = [Wire(address, timeout_s=120) for _ in range(connections)]
    for number, peer in enumerate(peers):
        peer.socket.sendall(huge + small * 100 * (number % 2))
    for peer in peers:
        peer.close()
    with Wire(address, timeout_s=120) as wire:
        wire.call(request_of("Metadata", topics=named(names(2_500))), 12)


# API, version, list of topics, name of a topic, list of partitions, other fields
_BY_TOPIC: Final[tuple[tuple[str, int, str, str, str, dict[str, Any]], ...]] = (
    ("DeleteRecords", 2, "topics", "name", "partitions", {"timeout_ms": 1_000}),
    ("ListOffsets", 7, "topics", "name", "partitions", {}),
    ("OffsetForLeaderEpoch", 4, "topics", "topic", "partitions", {}),
    ("DescribeProducers", 0, "topics", "name", "partition_indexes", {}),
    ("OffsetCommit", 8, "topics", "name", "partitions", {"group_id": "g", "generation_id_or_member_epoch": -1}),
    ("OffsetFetch", 7, "topics", "name", "partition_indexes", {"group_id": "g"}),
    ("OffsetDelete", 0, "topics", "name", "partitions", {"group_id": "g"}),
    ("TxnOffsetCommit", 3, "topics", "name", "partitions", {"transactional_id": "t", "group_id": "g"}),
    ("AddPartitionsToTxn", 3, "v3_and_below_topics", "name", "partitions", {"v3_and_below_transactional_id": "t"}),
    ("ElectLeaders", 2, "topic_partitions", "topic", "partitions", {"timeout_ms": 1_000}),
    ("AlterPartitionReassignments", 1, "topics", "name", "partitions", {"timeout_ms": 1_000}),
    ("ListPartitionReassignments", 0, "topics", "name", "partition_indexes", {"timeout_ms": 1_000}),
    ("DescribeLogDirs", 4, "topics", "topic", "partitions", {}),
    ("Fetch", 12, "topics", "topic", "partitions", {"max_wait_ms": 0}),
)


def without_partitions(address: str, topics: int) -> None:
    """Requests of every API that groups partitions by topic: with this number of topics, which a broker serves, and with too many."""
    for api, version, listed, name, partitions, fields in _BY_TOPIC:
        for count in (topics, 2 * topics):
            empty = [{name: f"topic-{number}", partitions: []} for number in range(count)]
            with Wire(address, timeout_s=120) as wire:
                wire.find_coordinator("g", 0)
                wire.find_coordinator("t", 1)
                try:  # too many are refused for the first elements, or by closing: without partitions there is no place for a code
                    wire.call(request_of(api, **{listed: empty}, **fields), version)
                except ConnectionError:
                    assert count > topics, (api, count)
