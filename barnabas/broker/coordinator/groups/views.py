"""Groups of a shard as DescribeGroups, ConsumerGroupDescribe and ListGroups show them.

Driven by: handlers, through the group coordinator. Reads only.
Emits: the parts of their responses, or GROUP_ID_NOT_FOUND, also for a group of the other protocol.

Follows KIP-518 (states), KIP-848 (types), KIP-1043 (what is not there), KIP-1099 (member types).
"""

from __future__ import annotations

from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.state import GroupState
from barnabas.broker.coordinator.groups.consumer.assignors import Partitions
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup, Topics
from barnabas.broker.coordinator.groups.consumer.member import ConsumerMember, Epochs
from barnabas.broker.coordinator.groups.shard import GroupShard
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.consumer_groups import (
    ConsumerGroupDescribedGroup,
    ConsumerGroupMember,
    DescribedAssignment,
    DescribedTopicPartitions,
)
from barnabas.protocol.messages.groups import DescribedGroup, DescribedGroupMember, ListedGroup

__all__ = ["describe_classic", "describe_consumers", "list_groups"]

CLASSIC_TYPE = "classic"
CONSUMER_TYPE = "consumer"


def describe_classic(shard: GroupShard, group_id: str) -> DescribedGroup:
    """State and members; their metadata only where the group is Stable, their last assignments always. Raises GROUP_ID_NOT_FOUND."""
    if group_id in shard.consumer_groups:
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")
    group = shard.group(group_id)
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
    """State, epochs and members of a consumer group. Raises GROUP_ID_NOT_FOUND."""
    group = shard.consumer_groups.get(group_id)
    if group is None:
        shard.group(group_id)
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
    topics, settings = shard.topics, shard.consumer_settings(group_id)
    return ConsumerGroupDescribedGroup(
        error_message=None,
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch.epoch,
        assignment_epoch=group.target_epoch.epoch,
        assignor_name=shard.consumers.assignor(group, settings),
        members=[_member(group, member, topics) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerMember, topics: Topics) -> ConsumerGroupMember:
    profile, standing = member.profile, member.standing
    held: Epochs = {topic_id: dict(numbers) for topic_id, numbers in standing.assigned.items()}
    for topic_id, numbers in standing.pending_revocation.items():
        held[topic_id] = dict(sorted({**held.get(topic_id, {}), **numbers}.items()))
    return ConsumerGroupMember(
        member_id=member.member_id,
        instance_id=profile.instance_id,
        rack_id=profile.rack_id,
        member_epoch=standing.epoch,
        client_id=profile.client_id,
        client_host=profile.client_host,
        subscribed_topic_names=list(profile.topic_names),
        subscribed_topic_regex=profile.topic_regex,
        assignment=_assignment(held, topics),
        target_assignment=_assignment(group.target.get(member.member_id, {}), topics),
        member_type=0 if member.is_classic else 1,
    )


def _assignment(partitions: Epochs | Partitions, topics: Topics) -> DescribedAssignment:
    """Of topics that still exist."""
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopicPartitions(topic_id=topic_id, topic_name=name, partitions=list(numbers))
            for topic_id, numbers in partitions.items()
            if (name := topics.topic_name(topic_id)) is not None
        ]
    )


def list_groups(shard: GroupShard, states: frozenset[str], types: frozenset[str]) -> list[ListedGroup]:
    """Groups in these states and of these types, both in lower case; empty sets mean all."""
    groups: list[ClassicGroup | ConsumerGroup] = []
    if not types or CLASSIC_TYPE in types:
        groups += shard.groups.values()
    if not types or CONSUMER_TYPE in types:
        groups += shard.consumer_groups.values()
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
