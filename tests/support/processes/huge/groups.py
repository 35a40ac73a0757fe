"""Huge requests about groups: coordinators, offsets, members, descriptions."""

from __future__ import annotations

from itertools import islice, product
from typing import Any, Final

from tests.support.processes.huge.request import (
    ELEMENTS,
    GROUP,
    HALF,
    LARGE_BYTES,
    WIDE,
    Huge,
    commit_of,
    named,
    names,
    numbered,
)
from tests.support.requests import Fields

REGEX: Final = "(a*)*" * 6_000


def names_of_one_hash() -> list[str]:
    """ELEMENTS different groups with one coordinator shard: "Aa" and "BB" have the same hash in Java."""
    return ["".join(parts) for parts in islice(product(("Aa", "BB"), repeat=17), ELEMENTS)]


def find_coordinators(key_type: int) -> Fields:
    return {"key_type": key_type, "coordinator_keys": names(ELEMENTS)}


def offset_fetch(found: list[str], partitions: int | None) -> Fields:
    topics = None if partitions is None else named([WIDE], partition_indexes=list(range(partitions)))
    return {"groups": [{"group_id": name, "topics": topics} for name in found]}


def join_of(group: str, protocols: list[str], metadata: bytes = b"") -> Fields:
    times = {"session_timeout_ms": 6_000, "rebalance_timeout_ms": 6_000}
    protocol = {"protocol_type": "consumer", "protocols": named(protocols, metadata=metadata)}
    return {"group_id": group, **times, **protocol}


def sync_of(members: list[str], assignment: bytes = b"") -> Fields:
    assignments = [{"member_id": name, "assignment": assignment} for name in members]
    return {"group_id": GROUP, "generation_id": 1, "member_id": "nobody", "assignments": assignments}


def heartbeat(**fields: Any) -> Fields:
    defaults: Fields = {
        "group_id": "huge-consumers",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_names": [],
        "topic_partitions": [],
    }
    return defaults | fields


def subscribe(count: int) -> Fields:
    return heartbeat(member_id="names", subscribed_topic_names=names(count))


def owned(topic_id: bytes) -> Fields:
    return heartbeat(topic_partitions=[{"topic_id": topic_id, "partitions": list(range(ELEMENTS - 1))}])


GROUPS: Final = (
    Huge("FindCoordinator: many groups", 4, {0}, lambda w: find_coordinators(0)),
    Huge("FindCoordinator: many transactions", 4, {0}, lambda w: find_coordinators(1)),
    Huge("OffsetCommit: unknown partitions", 8, {3}, lambda w: commit_of(ELEMENTS - 1, "nowhere")),
    # Above 3,700 partitions the offsets need more than the largest batch of the offsets topic: 28, as from Kafka.
    Huge("OffsetCommit: every partition", 8, {0, -1}, lambda w: commit_of(w.partitions, text="m" * 200)),
    Huge("OffsetCommit: every partition, without metadata", 8, {0}, lambda w: commit_of(w.partitions)),
    # The group id is in the key of each offset: the request of 1.5 MB would write 3 GB.
    Huge("OffsetCommit: a long group id", 8, {3, -1}, lambda w: commit_of(ELEMENTS - 1, group="g" * 32_000)),
    Huge("OffsetCommit: long metadata", 8, {12, 3}, lambda w: commit_of(LARGE_BYTES // 8_000, text="m" * 7_900)),
    Huge("OffsetFetch: every partition", 8, {0}, lambda w: offset_fetch([GROUP], w.partitions)),
    Huge("OffsetFetch: partitions without an offset", 8, {0}, lambda w: offset_fetch([GROUP], ELEMENTS - 2)),
    Huge("OffsetFetch: many groups", 8, {0}, lambda w: offset_fetch(names(ELEMENTS), None)),
    Huge("OffsetFetch: all of one group, often", 8, {0, 42}, lambda w: offset_fetch([GROUP] * ELEMENTS, None)),
    Huge(
        "OffsetDelete: every partition",
        0,
        {0, 3},
        lambda w: {"group_id": GROUP, "topics": named([WIDE], partitions=numbered(ELEMENTS - 1))},
    ),
    Huge("JoinGroup: many protocols", 9, {42}, lambda w: join_of("huge-join", names(ELEMENTS))),
    Huge("JoinGroup: long metadata", 3, {0, 10, 42}, lambda w: join_of("huge-metadata", ["range"], bytes(LARGE_BYTES))),
    Huge("SyncGroup: many assignments", 5, {23, 25}, lambda w: sync_of(names(ELEMENTS))),
    Huge("SyncGroup: a long assignment", 5, {23, 25}, lambda w: sync_of(["m"], bytes(LARGE_BYTES))),
    Huge(
        "LeaveGroup: many members",
        5,
        {0, 25},
        lambda w: {"group_id": GROUP, "members": [{"member_id": name} for name in names(ELEMENTS)]},
    ),
    Huge("DescribeGroups: unknown groups", 6, {69}, lambda w: {"groups": names(ELEMENTS)}),
    Huge("DescribeGroups: one group, often", 6, {0}, lambda w: {"groups": [GROUP] * ELEMENTS}),
    Huge("ListGroups: many filters", 5, {0}, lambda w: {"states_filter": names(HALF), "types_filter": names(HALF)}),
    Huge("DeleteGroups: unknown groups", 2, {69}, lambda w: {"groups_names": names(ELEMENTS)}),
    Huge("DeleteGroups: unknown groups of one partition", 2, {69}, lambda w: {"groups_names": names_of_one_hash()}),
    Huge("ConsumerGroupDescribe: unknown groups", 1, {69}, lambda w: {"group_ids": names(ELEMENTS)}),
    Huge("ConsumerGroupHeartbeat: too many topics", 1, {42}, lambda w: subscribe(ELEMENTS)),
    Huge("ConsumerGroupHeartbeat: many topics", 1, {0}, lambda w: subscribe(10_000)),
    Huge("ConsumerGroupHeartbeat: many partitions", 1, {42}, lambda w: owned(w.wide_id)),
    Huge(
        "ConsumerGroupHeartbeat: a long regular expression",
        1,
        {0, 42, 128},
        lambda w: heartbeat(group_id="huge-regex", subscribed_topic_names=None, subscribed_topic_regex=REGEX),
    ),
)
