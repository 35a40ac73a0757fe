"""What goes into a decision about a group and what comes out of it.

Driven by: handlers make JoinCalls, the coordinator's shell gives the time; `Rebalancing` fills Effects.
Emits: values, and the responses to members in the form that all versions share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.state import GroupMember, Reply
from barnabas.broker.coordinator.groups.records import AnyRecord
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from barnabas.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)

__all__ = [
    "Answer",
    "At",
    "Effects",
    "GroupSettings",
    "JoinCall",
    "joined",
    "rebalance_timeout_ms",
    "refuse_join",
    "synced",
]


class At(NamedTuple):
    """The time of a decision: wall clock for what is written, monotonic for deadlines; milliseconds."""

    now_ms: int
    monotonic_ms: int


class Answer(NamedTuple):
    """A response and where it goes, to be sent once everything decided before it is committed."""

    reply: Reply
    response: JoinGroupResponse | SyncGroupResponse | ConsumerGroupHeartbeatResponse


class JoinCall(NamedTuple):
    """A JoinGroup with what the connection knows about its sender.

    `fresh_id` is a random UUID's text, used if the member needs an id.
    """

    request: JoinGroupRequest
    version: int
    client_id: str
    client_host: str
    fresh_id: str
    reply: Reply


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The broker's `group.*` and `offset*` configuration as the shards use it; times in ms."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    size_max: int = 2**31 - 1
    initial_rebalance_delay_ms: int = 3_000
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000


@dataclass(slots=True)
class Effects:
    """What a decision gives out."""

    answers: list[Answer] = field(default_factory=list)
    records: list[AnyRecord] = field(default_factory=list)


def rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """JoinGroup v0 has no rebalance timeout: the session timeout stands for it."""
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms


def refuse_join(reply: Reply, code: ErrorCode, member_id: str, effects: Effects) -> None:
    """Answers a JoinGroup with an error."""
    effects.answers.append(Answer(reply, JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=None)))


def joined(group: ClassicGroup, member: GroupMember) -> JoinGroupResponse:
    """The present generation, as one member is told of it: the leader with all members and their metadata."""
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
    """A member's assignment."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=assignment
    )
