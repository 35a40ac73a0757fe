"""Group descriptions for DescribeGroups, ConsumerGroupDescribe and ListGroups.
KIP-518 (states), KIP-848 (types), KIP-1043 (unknown groups), KIP-1099 (member types).
"""

from __future__ import annotations

from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.state import GroupState
from barnabas.broker.coordinator.groups.consumer.assignors import Partitions
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup
from barnabas.broker.coordinator.groups.consumer.member import ConsumerMember, PartitionEpochs
from barnabas.broker.coordinator.groups.shard import GroupShard
from barnabas.broker.coordinator.groups.topics import Topics
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.consumer_groups import (
    ConsumerGroupDescribedGroup,
    ConsumerGroupMember,
    DescribedAssignment,
    DescribedTopicPartitions,
)
from barnabas.protocol.messages.groups import DescribedGroup, DescribedGroupMember, ListedGroup

CLASSIC_TYPE = "classic"
CONSUMER_TYPE = "consumer"


def describe_classic(shard: GroupShard, group_id: str) -> DescribedGroup:
    """Shows metadata of members only if the group is Stable. Raises BrokerError(GROUP_ID_NOT_FOUND)."""
    group = shard.tables.classic.get(group_id)
    if group_id in shard.tables.consumer:
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")
    if group is None:
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    stable = group.state is GroupState.STABLE
    members = [
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol_name) if stable else b"",
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    ]
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if stable else "",
        members=members,
    )


def describe_consumers(shard: GroupShard, group_id: str) -> ConsumerGroupDescribedGroup:
    tables = shard.tables
    group = tables.consumer.get(group_id)
    if group is None:
        reason = "is not a consumer group" if group_id in tables.classic else "not found"
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")
    topics, settings = tables.topics, tables.consumer_settings(group_id)
    return ConsumerGroupDescribedGroup(
        error_message=None,
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch.epoch,
        assignment_epoch=group.target_epoch.epoch,
        assignor_name=tables.consumer_protocol.assignor(group, settings),
        members=[_member(group, member, topics) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerMember, topics: Topics) -> ConsumerGroupMember:
    metadata, current = member.metadata, member.assignment
    held: PartitionEpochs = {topic_id: dict(numbers) for topic_id, numbers in current.assigned.items()}
    for topic_id, numbers in current.pending_revocation.items():
        held[topic_id] = dict(sorted({**held.get(topic_id, {}), **numbers}.items()))
    return ConsumerGroupMember(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=current.member_epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=list(metadata.topic_names),
        subscribed_topic_regex=metadata.topic_regex,
        assignment=_assignment(held, topics),
        target_assignment=_assignment(group.target.get(member.member_id, {}), topics),
        member_type=0 if member.is_classic else 1,
    )


def _assignment(partitions: PartitionEpochs | Partitions, topics: Topics) -> DescribedAssignment:
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopicPartitions(topic_id=topic_id, topic_name=name, partitions=list(numbers))
            for topic_id, numbers in partitions.items()
            if (name := topics.topic_name(topic_id)) is not None
        ]
    )


def list_groups(shard: GroupShard, states: frozenset[str], types: frozenset[str]) -> list[ListedGroup]:
    """States and types are in lower case; an empty set means all."""
    groups: list[ClassicGroup | ConsumerGroup] = []
    if not types or CLASSIC_TYPE in types:
        groups += shard.tables.classic.values()
    if not types or CONSUMER_TYPE in types:
        groups += shard.tables.consumer.values()
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "" if isinstance(group, ClassicGroup) else CONSUMER_TYPE,
            group_state=group.state.value,
            group_type=CLASSIC_TYPE if isinstance(group, ClassicGroup) else CONSUMER_TYPE,
        )
        for group in groups
        if not states or group.state.value.lower() in states
    ]
