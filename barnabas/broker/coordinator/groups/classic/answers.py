"""Responses to JoinGroup and SyncGroup of classic members."""

from __future__ import annotations

from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.state import GroupMember
from barnabas.protocol.messages.groups import JoinGroupResponse, JoinGroupResponseMember, SyncGroupResponse


def joined(group: ClassicGroup, member: GroupMember) -> JoinGroupResponse:
    """The leader gets all members with their metadata."""
    response = JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        member_id=member.member_id,
    )
    if member.member_id == group.leader_id:
        response.members = [
            JoinGroupResponseMember(
                member_id=other.member_id,
                group_instance_id=other.group_instance_id,
                metadata=other.metadata(group.protocol_name),
            )
            for other in group.members.values()
        ]
    return response


def synced(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=assignment
    )
