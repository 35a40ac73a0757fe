"""A group member: its table, a rebalance as member and as leader, and what each refusal leads to."""

from __future__ import annotations

import pytest

from barnabas.client.errors import IllegalState, KafkaError
from barnabas.client.group.core.classic_member import VALID_PREVIOUS, ClassicMember, ClassicMemberState, Next
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.groups import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    HeartbeatResponse,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)
from barnabas.protocol.messages.shared import TopicPartitions
from barnabas.protocol.schema import decode_versioned, encode_versioned
from tests.support.bench.classic_member import assignment, joined, make
from tests.support.transitions import follows_the_table


def subscription(*topics: str, version: int = 0) -> bytes:
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), version)


@pytest.mark.parametrize("state", list(ClassicMemberState))
@pytest.mark.parametrize("previous", list(ClassicMemberState))
def test_transitions_follow_the_table(previous: ClassicMemberState, state: ClassicMemberState) -> None:
    follows_the_table(make(), VALID_PREVIOUS, previous, state)


def test_a_join_offers_every_strategy_and_tells_what_is_owned() -> None:
    member = joined(make(group_instance_id="static", session_timeout_ms=7_000, rebalance_timeout_ms=9_000))
    request = member.join_request()
    assert (request.group_id, request.session_timeout_ms, request.rebalance_timeout_ms) == ("g", 7_000, 9_000)
    assert (request.member_id, request.group_instance_id, request.protocol_type) == ("me", "static", "consumer")
    assert [p.name for p in request.protocols] == ["range", "roundrobin"]
    told = decode_versioned(ConsumerProtocolSubscription, request.protocols[0].metadata)
    assert told.topics == ["t"]
    assert told.owned_partitions == [TopicPartitions(topic="t", partitions=[0, 1])]


def test_the_leader_shares_out() -> None:
    member = make()
    member.join_request()
    response = JoinGroupResponse(
        generation_id=5,
        protocol_name="roundrobin",
        leader="me",
        member_id="me",
        members=[
            JoinGroupResponseMember(member_id="me", metadata=subscription("t")),
            JoinGroupResponseMember(member_id="you", metadata=subscription("t", "u", version=3)),
        ],
    )
    assert member.on_join(response, 0) is Next.GO_ON
    assert member.leads
    assert member.group_topics == ("t", "u")
    shares = {
        a.member_id: [
            (t.topic, p)
            for t in decode_versioned(ConsumerProtocolAssignment, a.assignment).assigned_partitions
            for p in t.partitions
        ]
        for a in member.sync_request({"t": 3, "u": 1}).assignments
    }
    assert shares == {"me": [("t", 0), ("t", 2)], "you": [("t", 1), ("u", 0)]}


def test_a_leader_told_to_keep_the_assignment_sends_none() -> None:
    """KIP-814: a static leader that came back."""
    member = make()
    member.join_request()
    members = [JoinGroupResponseMember(member_id="me", metadata=subscription("t"))]
    response = JoinGroupResponse(
        generation_id=5, protocol_name="range", leader="me", member_id="me", members=members, skip_assignment=True
    )
    assert member.on_join(response, 0) is Next.GO_ON
    assert member.sync_request({"t": 3}).assignments == []


def test_subscriptions_of_later_versions_are_read_as_far_as_they_are_known() -> None:
    member = make()
    member.join_request()
    later = (99).to_bytes(2, "big") + subscription("t", version=3)[2:] + b"what a later version appends"
    response = JoinGroupResponse(
        generation_id=1,
        protocol_name="range",
        leader="me",
        member_id="me",
        members=[JoinGroupResponseMember(member_id="new", metadata=later)],
    )
    assert member.on_join(response, 0) is Next.GO_ON
    assert member.group_topics == ("t",)


def test_unreadable_subscriptions_are_told() -> None:
    member = make()
    member.join_request()
    members = [JoinGroupResponseMember(member_id="odd", metadata=b"\x00")]
    with pytest.raises(KafkaError, match="'odd'"):
        member.on_join(JoinGroupResponse(protocol_name="range", leader="me", member_id="me", members=members), 0)


def test_the_first_join_is_answered_with_a_member_id() -> None:
    member = make()
    assert member.join_request().member_id == ""
    answer = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="given")
    assert member.on_join(answer, 0) is Next.AGAIN
    assert member.join_request().member_id == "given"


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, Next.AGAIN),
        (ErrorCode.NOT_COORDINATOR, Next.FIND_COORDINATOR),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, Next.FIND_COORDINATOR),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Next.WAIT),
        (ErrorCode.REBALANCE_IN_PROGRESS, Next.WAIT),
    ],
)
def test_joins_that_are_tried_again(code: ErrorCode, verdict: Next) -> None:
    member = joined(make())
    member.assignment = []  # given up, as range wants it
    member.join_request()
    assert member.on_join(JoinGroupResponse(error_code=code), 0) is verdict


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ],
)
def test_joins_that_are_refused_for_good(code: ErrorCode) -> None:
    member = make()
    member.join_request()
    with pytest.raises(KafkaError) as refused:
        member.on_join(JoinGroupResponse(error_code=code), 0)
    assert refused.value.code is code


def test_a_sync_that_is_overtaken_joins_again() -> None:
    member = make()
    for code, member_id in (
        (ErrorCode.REBALANCE_IN_PROGRESS, "me"),
        (ErrorCode.ILLEGAL_GENERATION, "me"),
        (ErrorCode.UNKNOWN_MEMBER_ID, ""),
    ):
        member.join_request()
        member.on_join(JoinGroupResponse(generation_id=1, protocol_name="range", leader="x", member_id="me"), 0)
        assert member.on_sync(SyncGroupResponse(error_code=code), 0) is Next.AGAIN
        assert member.join_request().member_id == member_id
        member.on_rebalance_failed()


def test_who_holds_on_and_is_not_known_any_more_has_lost_it() -> None:
    """A cooperative member keeps what it has while it joins: not, if the coordinator has removed it meanwhile."""
    for refuse in ("join", "sync"):
        member = joined(make(strategies=["cooperative-sticky"]))
        member.join_request()
        if refuse == "join":
            assert member.on_join(JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID), 0) is Next.LOST
        else:
            member.on_join(JoinGroupResponse(generation_id=2, leader="x", member_id="me"), 0)
            assert member.on_sync(SyncGroupResponse(error_code=ErrorCode.ILLEGAL_GENERATION), 0) is Next.LOST
        assert (member.lost, member.rejoin_wanted, member.state) == (True, True, ClassicMemberState.UNJOINED)
        assert member.metadata.generation_id == 1, "a commit is refused, not taken unfenced"


def test_a_cooperative_rebalance_changes_what_has_changed() -> None:
    member = joined(make(strategies=["cooperative-sticky"]))
    told = decode_versioned(ConsumerProtocolSubscription, member.join_request().protocols[0].metadata)
    assert (told.owned_partitions, told.generation_id) == ([TopicPartitions(topic="t", partitions=[0, 1])], 1)
    response = JoinGroupResponse(generation_id=2, protocol_name="cooperative-sticky", leader="other", member_id="me")
    assert member.on_join(response, 0) is Next.GO_ON
    assert member.on_sync(SyncGroupResponse(assignment=assignment("t", 1, 2)), 0) is Next.GO_ON
    t0, t1, t2 = (TopicPartition("t", number) for number in range(3))
    assert member.assignment == [t0, t1], "held until a poll gives it up"
    assert member.metadata.generation_id == 1
    change = member.take_assignment()
    assert (change.revoked, change.assigned) == ([t0], [t2])
    assert member.metadata.generation_id == 2, "commits while it is given up are of the new generation"
    member.on_assignment_applied(change)
    assert member.assignment == [t1, t2]
    assert member.rejoin_wanted, "whoever waits for what was given up gets it in another round"
    told = decode_versioned(ConsumerProtocolSubscription, member.join_request().protocols[0].metadata)
    assert (told.owned_partitions, told.generation_id) == ([TopicPartitions(topic="t", partitions=[1, 2])], 2)


def test_a_rebalance_that_changes_nothing_is_the_last() -> None:
    member = joined(make(strategies=["cooperative-sticky"]))
    member.join_request()
    member.on_join(JoinGroupResponse(generation_id=2, leader="other", member_id="me"), 0)
    member.on_sync(SyncGroupResponse(assignment=assignment("t", 0, 1)), 0)
    change = member.take_assignment()
    assert change is not None
    assert (change.revoked, change.assigned) == ([], [])
    member.on_assignment_applied(change)
    assert not member.rejoin_wanted


def test_a_membership_lost_before_its_assignment_came_into_force_has_none() -> None:
    member = joined(make(strategies=["cooperative-sticky"]))
    member.join_request()
    member.on_join(JoinGroupResponse(generation_id=2, leader="other", member_id="me"), 0)
    member.on_sync(SyncGroupResponse(assignment=assignment("t", 0, 1, 2)), 0)
    member.on_heartbeat(HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID), 2, 0)
    assert member.joined is None
    assert len(member.assignment) == 2, "a poll tells of their loss"


def test_one_eager_strategy_makes_rebalances_eager() -> None:
    assert make(strategies=["cooperative-sticky"]).cooperative
    assert not make(strategies=["cooperative-sticky", "range"]).cooperative
    assert not make().cooperative


def test_heartbeats_are_due_and_tell_of_a_rebalance() -> None:
    member = joined(make(heartbeat_interval_ms=1_000))
    assert member.heartbeat_at() == 1_000
    request = member.heartbeat_request(1_000)
    assert (request.generation_id, request.member_id) == (1, "me")
    assert member.heartbeat_at() == 2_000
    assert member.on_heartbeat(HeartbeatResponse(), 1, 1_000) is Next.GO_ON
    assert not member.rejoin_wanted
    member.on_heartbeat(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 1, 2_000)
    assert member.rejoin_wanted
    assert not member.lost, "the partitions are this member's until it joins"
    assert member.metadata.generation_id == 1


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_a_heartbeat_may_tell_that_the_membership_is_lost(code: ErrorCode) -> None:
    member = joined(make())
    member.on_heartbeat(HeartbeatResponse(error_code=code), 1, 0)
    assert (member.state, member.lost, member.rejoin_wanted) == (ClassicMemberState.UNJOINED, True, True)
    assert (member.metadata.generation_id, member.metadata.member_id) == (1, "me"), "commits are refused, not unfenced"
    assert member.heartbeat_at() is None


def test_a_late_answer_to_a_heartbeat_of_a_former_generation_means_nothing() -> None:
    member = joined(joined(make()), generation=2)
    member.on_heartbeat(HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION), 1, 0)
    assert member.state is ClassicMemberState.STABLE


def test_a_fenced_instance_is_told() -> None:
    member = joined(make(group_instance_id="one"))
    with pytest.raises(KafkaError):
        member.on_heartbeat(HeartbeatResponse(error_code=ErrorCode.FENCED_INSTANCE_ID), 1, 0)


def test_silence_ends_the_session_on_this_side_too() -> None:
    member = joined(make(session_timeout_ms=5_000))
    assert not member.session_expired(5_000)
    assert member.session_expired(5_001)


def test_who_does_not_poll_is_overdue() -> None:
    member = joined(make(rebalance_timeout_ms=800))
    assert member.overdue_at() == 800
    member.on_poll(700)
    assert member.overdue_at() == 1_500


def test_leaving() -> None:
    member = joined(make())
    request = member.leave_request("bye")
    assert request is not None
    assert (request.member_id, request.members[0].member_id, request.members[0].reason) == ("me", "me", "bye")
    assert member.metadata.member_id == "me", "what is still in hand cannot be committed any more"
    assert make().leave_request("never joined") is None
    assert joined(make(group_instance_id="one")).leave_request("static members keep their place") is None


def test_a_changed_subscription_wants_a_rebalance() -> None:
    member = joined(make())
    member.subscribe(["t"])
    assert not member.rejoin_wanted
    member.subscribe(["u", "t"])
    assert member.rejoin_wanted
    assert member.topics == ("t", "u")


def test_unknown_strategies_are_refused() -> None:
    for strategies in (["sticky-ish"], []):
        with pytest.raises(IllegalState, match="known are"):
            ClassicMember("g", strategies=strategies)


def test_an_empty_assignment_is_one() -> None:
    member = make()
    member.join_request()
    member.on_join(JoinGroupResponse(generation_id=1, protocol_name="range", leader="x", member_id="me"), 0)
    assert member.on_sync(SyncGroupResponse(assignment=b""), 0) is Next.GO_ON
    member.on_assignment_applied(member.take_assignment())
    assert member.assignment == []
    assert TopicPartition("t", 0) not in member.assignment


def test_the_tenure_changes_with_the_membership_that_metadata_names() -> None:
    member = joined(make())
    assert member.membership_number == 0
    joined(member, generation=2)
    assert member.membership_number == 0, "a rebalance is no other membership"
    member.on_lost(ErrorCode.UNKNOWN_MEMBER_ID)
    assert (member.membership_number, member.metadata.generation_id) == (0, 2)
    joined(member, generation=4)
    assert (member.membership_number, member.metadata.generation_id) == (1, 4)
    member.leave_request("test")
    member.rejoin()
    joined(member, generation=6)
    assert (member.membership_number, member.lost) == (2, False)
