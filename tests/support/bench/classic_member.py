"""Members of a classic group, as their core sees them."""

from __future__ import annotations

from barnabas.client.group.core.classic_member import ClassicMember, Next
from barnabas.protocol.messages.groups import ConsumerProtocolAssignment, JoinGroupResponse, SyncGroupResponse
from barnabas.protocol.messages.shared import TopicPartitions
from barnabas.protocol.schema import encode_versioned


def assignment(topic: str, *partitions: int) -> bytes:
    wire = TopicPartitions(topic=topic, partitions=list(partitions))
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=[wire]), 0)


def make(**settings: object) -> ClassicMember:
    member = ClassicMember("g", **settings)  # type: ignore[arg-type]
    member.subscribe(["t"])
    return member


def joined(member: ClassicMember, *, now: int = 0, generation: int = 1) -> ClassicMember:
    """A follower with partitions 0 and 1."""
    member.join_request()
    response = JoinGroupResponse(generation_id=generation, protocol_name="range", leader="other", member_id="me")
    assert member.on_join(response, now) is Next.GO_ON
    assert not member.leads
    assert member.sync_request({}).assignments == []
    assert member.on_sync(SyncGroupResponse(assignment=assignment("t", 0, 1)), now) is Next.GO_ON
    member.on_assignment_applied(member.take_assignment())
    member.on_poll(now)
    return member
