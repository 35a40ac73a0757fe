"""Huge requests about groups: coordinators, offsets, members, descriptions."""

from __future__ import annotations

from typing import Any, Final

from barnabas.protocol.messages import consumer_groups, groups
from tests.support.processes.huge.request import (
    ELEMENTS,
    GROUP,
    HALF,
    LARGE_BYTES,
    WIDE,
    BrokerObjects,
    Huge,
    commit_of,
    names,
)

__all__ = ["GROUPS"]


def find_coordinators(key_type: int) -> groups.FindCoordinatorRequest:
    return groups.FindCoordinatorRequest(key_type=key_type, coordinator_keys=names(ELEMENTS))


def offset_fetch(found: list[str], partitions: int | None) -> groups.OffsetFetchRequest:
    indexes = None if partitions is None else list(range(partitions))
    topics = None if indexes is None else [groups.OffsetFetchRequestTopics(name=WIDE, partition_indexes=indexes)]
    return groups.OffsetFetchRequest(
        groups=[groups.OffsetFetchRequestGroup(group_id=name, topics=topics) for name in found]
    )


def offset_delete(_world: BrokerObjects) -> groups.OffsetDeleteRequest:
    parts = [groups.OffsetDeleteRequestPartition(partition_index=n) for n in range(ELEMENTS - 1)]
    return groups.OffsetDeleteRequest(
        group_id=GROUP, topics=[groups.OffsetDeleteRequestTopic(name=WIDE, partitions=parts)]
    )


def join_of(group: str, protocols: list[str], metadata: bytes = b"") -> groups.JoinGroupRequest:
    return groups.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=6_000,
        rebalance_timeout_ms=6_000,
        protocol_type="consumer",
        protocols=[groups.JoinGroupRequestProtocol(name=name, metadata=metadata) for name in protocols],
    )


def sync_of(members: list[str], assignment: bytes = b"") -> groups.SyncGroupRequest:
    assignments = [groups.SyncGroupRequestAssignment(member_id=name, assignment=assignment) for name in members]
    return groups.SyncGroupRequest(group_id=GROUP, generation_id=1, member_id="nobody", assignments=assignments)


def leave_of(members: list[str]) -> groups.LeaveGroupRequest:
    return groups.LeaveGroupRequest(group_id=GROUP, members=[groups.MemberIdentity(member_id=name) for name in members])


def list_groups(_world: BrokerObjects) -> groups.ListGroupsRequest:
    return groups.ListGroupsRequest(states_filter=names(HALF), types_filter=names(HALF))


def describe_consumers(_world: BrokerObjects) -> consumer_groups.ConsumerGroupDescribeRequest:
    return consumer_groups.ConsumerGroupDescribeRequest(group_ids=names(ELEMENTS))


def heartbeat(**fields: Any) -> consumer_groups.ConsumerGroupHeartbeatRequest:
    defaults: dict[str, Any] = {
        "group_id": "huge-consumers",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_names": [],
        "topic_partitions": [],
    }
    return consumer_groups.ConsumerGroupHeartbeatRequest(**(defaults | fields))


def heartbeat_with_partitions(world: BrokerObjects) -> consumer_groups.ConsumerGroupHeartbeatRequest:
    owned = consumer_groups.TopicIdPartitions(topic_id=world.wide_id, partitions=list(range(ELEMENTS - 1)))
    return heartbeat(topic_partitions=[owned])


def heartbeat_with_regex(_world: BrokerObjects) -> consumer_groups.ConsumerGroupHeartbeatRequest:
    return heartbeat(group_id="huge-regex", subscribed_topic_names=None, subscribed_topic_regex="(a*)*" * 6_000)


def subscribe(count: int) -> consumer_groups.ConsumerGroupHeartbeatRequest:
    return heartbeat(member_id="names", subscribed_topic_names=names(count))


GROUPS: Final = (
    Huge("FindCoordinator: many groups", 4, {0}, lambda w: find_coordinators(0)),
    Huge("FindCoordinator: many transactions", 4, {0}, lambda w: find_coordinators(1)),
    Huge("OffsetCommit: unknown partitions", 8, {3}, lambda w: commit_of(ELEMENTS - 1, "nowhere")),
    # Above 3,700 partitions the offsets need more than the largest batch of the offsets topic: 28, as from Kafka.
    Huge("OffsetCommit: every partition", 8, {0, 28}, lambda w: commit_of(w.partitions, text="m" * 200)),
    Huge("OffsetCommit: every partition, without metadata", 8, {0}, lambda w: commit_of(w.partitions)),
    # The group id is in the key of each offset: the request of 1.5 MB would write 3 GB.
    Huge("OffsetCommit: a long group id", 8, {3, 28}, lambda w: commit_of(ELEMENTS - 1, group="g" * 32_000)),
    Huge("OffsetCommit: long metadata", 8, {12, 3}, lambda w: commit_of(LARGE_BYTES // 8_000, text="m" * 7_900)),
    Huge("OffsetFetch: every partition", 8, {0}, lambda w: offset_fetch([GROUP], w.partitions)),
    Huge("OffsetFetch: partitions without an offset", 8, {0}, lambda w: offset_fetch([GROUP], ELEMENTS - 2)),
    Huge("OffsetFetch: many groups", 8, {0}, lambda w: offset_fetch(names(ELEMENTS), None)),
    Huge("OffsetFetch: all of one group, often", 8, {0, 42}, lambda w: offset_fetch([GROUP] * ELEMENTS, None)),
    Huge("OffsetDelete: every partition", 0, {0, 3}, offset_delete),
    Huge("JoinGroup: many protocols", 9, {42}, lambda w: join_of("huge-join", names(ELEMENTS))),
    Huge("JoinGroup: long metadata", 3, {0, 10, 42}, lambda w: join_of("huge-metadata", ["range"], bytes(LARGE_BYTES))),
    Huge("SyncGroup: many assignments", 5, {23, 25}, lambda w: sync_of(names(ELEMENTS))),
    Huge("SyncGroup: a long assignment", 5, {23, 25}, lambda w: sync_of(["m"], bytes(LARGE_BYTES))),
    Huge("LeaveGroup: many members", 5, {0, 25}, lambda w: leave_of(names(ELEMENTS))),
    Huge("DescribeGroups: unknown groups", 6, {69}, lambda w: groups.DescribeGroupsRequest(groups=names(ELEMENTS))),
    Huge("DescribeGroups: one group, often", 6, {0}, lambda w: groups.DescribeGroupsRequest(groups=[GROUP] * ELEMENTS)),
    Huge("ListGroups: many filters", 5, {0}, list_groups),
    Huge("DeleteGroups: unknown groups", 2, {69}, lambda w: groups.DeleteGroupsRequest(groups_names=names(ELEMENTS))),
    Huge("ConsumerGroupDescribe: unknown groups", 1, {69}, describe_consumers),
    Huge("ConsumerGroupHeartbeat: too many topics", 1, {42}, lambda w: subscribe(ELEMENTS)),
    Huge("ConsumerGroupHeartbeat: many topics", 1, {0}, lambda w: subscribe(10_000)),
    Huge("ConsumerGroupHeartbeat: many partitions", 1, {42}, heartbeat_with_partitions),
    Huge("ConsumerGroupHeartbeat: a long regular expression", 1, {0, 42, 128}, heartbeat_with_regex),
)
