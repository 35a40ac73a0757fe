"""Records of classic groups. A record holds one finished generation: members with subscriptions and assignments."""

from __future__ import annotations

from collections.abc import Mapping

from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.state import GroupMember, GroupState
from barnabas.broker.coordinator.groups.records import GroupRecord
from barnabas.protocol.messages.internal import GroupMetadataValue, MemberMetadata


def group_record(group: ClassicGroup, assignment: Mapping[str, bytes] | None = None) -> GroupRecord:
    """The record of the current generation. `assignment` by member id, empty for missing members; None: the members' own assignments."""
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(group.protocol_name),
            assignment=member.assignment if assignment is None else assignment.get(member.member_id, b""),
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=group.state_timestamp_ms,
        members=members,
    )
    return GroupRecord(group.group_id, value)


def group_from_record(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    """Stable with the recorded members, or Empty without members."""
    group = ClassicGroup(group_id, state_timestamp_ms=value.current_state_timestamp)
    for recorded in value.members:
        timeout_ms = recorded.rebalance_timeout if recorded.rebalance_timeout >= 0 else recorded.session_timeout
        member = GroupMember(
            recorded.member_id,
            recorded.group_instance_id,
            client_id=recorded.client_id,
            client_host=recorded.client_host,
            rebalance_timeout_ms=timeout_ms,
            session_timeout_ms=recorded.session_timeout,
            protocols=[(value.protocol or "", recorded.subscription)],
            assignment=recorded.assignment,
        )
        group.add(member, value.protocol_type, None)
    group.generation = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    group.leader_id = value.leader if value.leader in group.members else next(iter(group.members), None)
    if group.members:
        group.state = GroupState.STABLE
    group.refresh_subscriptions()
    return group
