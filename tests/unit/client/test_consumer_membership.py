"""A member whose coordinator assigns: its table, what its heartbeats say, how partitions change hands, what each refusal leads to."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.client.errors import KafkaError, UnsupportedByBroker
from barnabas.client.group.core.classic_member import Next
from barnabas.client.group.core.consumer_member import VALID_PREVIOUS, ConsumerMember, ConsumerMemberState
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    TopicIdPartitions,
)
from tests.support.transitions import follows_the_table

T, U = b"t" * 16, b"u" * 16
NAMES = {T: "t", U: "u"}
S = ConsumerMemberState


def tps(*numbers: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


def answer(
    epoch: int = 1, *partitions: int, code: ErrorCode = ErrorCode.NONE, topic: bytes = T, told: bool = True
) -> ConsumerGroupHeartbeatResponse:
    """`told`: with an assignment."""
    assignment = HeartbeatAssignment(
        topic_partitions=[TopicIdPartitions(topic_id=topic, partitions=list(partitions))] if partitions else []
    )
    return ConsumerGroupHeartbeatResponse(
        error_code=code,
        member_id="me",
        member_epoch=epoch,
        heartbeat_interval_ms=1_000,
        assignment=assignment if told else None,
    )


def make(**settings: Any) -> ConsumerMember:
    member = ConsumerMember("g", "me", **settings)
    member.subscribe(["t"])
    return member


def beat(
    member: ConsumerMember, response: ConsumerGroupHeartbeatResponse, now: int = 0
) -> tuple[ConsumerGroupHeartbeatRequest, Next]:
    request = member.heartbeat_request(now)
    return request, member.on_heartbeat(request, response, now)


def settle(member: ConsumerMember) -> None:
    """What a poll does."""
    change = member.change(NAMES)
    assert change is not None
    member.on_revoked(change.revoked)
    member.on_assigned(change.assigned, NAMES)


def joined(member: ConsumerMember) -> ConsumerMember:
    """With partitions 0 and 1, and what it holds said."""
    member.on_poll(0)
    member.join()
    beat(member, answer(1, 0, 1))
    settle(member)
    beat(member, answer(1, told=False))
    assert member.state is S.STABLE
    return member


@pytest.mark.parametrize("state", list(S))
@pytest.mark.parametrize("previous", list(S))
def test_transitions_follow_the_table(previous: ConsumerMemberState, state: ConsumerMemberState) -> None:
    follows_the_table(make(), VALID_PREVIOUS, previous, state)


def test_the_heartbeat_that_joins_says_everything() -> None:
    member = make(group_instance_id="one", rack_id="r", server_assignor="range", rebalance_timeout_ms=9_000)
    assert member.heartbeat_at() is None
    member.join()
    assert member.heartbeat_at() == 0
    request, verdict = beat(member, answer())
    assert verdict is Next.GO_ON
    assert (request.group_id, request.member_id, request.member_epoch) == ("g", "me", 0)
    assert (request.instance_id, request.rack_id, request.server_assignor) == ("one", "r", "range")
    assert (request.rebalance_timeout_ms, request.topic_partitions) == (9_000, [])
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == (["t"], "")
    assert member.metadata == ("g", 1, "me", "one")


def test_the_heartbeats_that_follow_say_what_has_changed() -> None:
    member = make()
    member.join()
    beat(member, answer(1, 0, 1))
    assert member.state is S.RECONCILING
    assert member.heartbeat_at() == 1_000, "nothing to say until a poll has taken over"
    settle(member)
    assert member.heartbeat_at() == 0, "what is held is said at once"
    request, _ = beat(member, answer(1, told=False))
    assert request.topic_partitions == [TopicIdPartitions(topic_id=T, partitions=[0, 1])]
    assert (request.subscribed_topic_names, request.rebalance_timeout_ms, request.server_assignor) == (None, -1, None)
    request, _ = beat(member, answer(1, told=False), 1_000)
    assert (request.member_epoch, request.topic_partitions, request.subscribed_topic_names) == (1, None, None)
    assert member.heartbeat_at() == 2_000
    member.subscribe(["t", "u"])
    assert member.heartbeat_at() == 0
    assert beat(member, answer(1, told=False))[0].subscribed_topic_names == ["t", "u"]
    member.subscribe(pattern="u.*")
    request, _ = beat(member, answer(1, told=False))
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == ([], "u.*")


def test_partitions_are_given_up_then_taken_over() -> None:
    member = joined(make())
    beat(member, answer(1, 1))
    change = member.change(NAMES)
    assert change is not None
    assert (change.revoked, change.assigned) == (tps(0), [])
    assert list(member.owned) == tps(0, 1), "until a poll has given it up"
    member.on_revoked(change.revoked)
    assert member.state is S.STABLE
    request, _ = beat(member, answer(2, 1, 2))
    assert request.topic_partitions == [TopicIdPartitions(topic_id=T, partitions=[1])], "the acknowledgement"
    assert member.metadata.generation_id == 2
    assert member.change(NAMES) == ([], tps(2))


def test_an_assignment_that_changes_meanwhile_is_carried_out_as_it_is_then() -> None:
    member = joined(make())
    beat(member, answer(2, 0, 1, 2, 3))
    change = member.change(NAMES)
    assert change is not None
    beat(member, answer(2, 0, 1, 3))  # while the listener is told of what goes
    assert member.on_assigned(change.assigned, NAMES) == tps(3)
    assert list(member.owned) == tps(0, 1, 3)
    assert member.state is S.STABLE


def test_the_first_assignment_is_told_of_even_if_it_is_empty() -> None:
    member = make()
    member.join()
    beat(member, answer(1))
    assert member.change(NAMES) == ([], [])
    settle(member)
    assert member.state is S.STABLE
    assert member.change(NAMES) is None


def test_topics_without_a_name_wait_for_it() -> None:
    member = make()
    member.join()
    beat(member, answer(1, 0, topic=U))
    assert member.has_unknown_topics({T: "t"})
    change = member.change({T: "t"})
    assert change == ([], [])
    member.on_assigned([], {T: "t"})
    assert member.state is S.RECONCILING
    assert member.change({T: "t"}) is None
    assert member.change(NAMES) == ([], tps(0, topic="u"))


def test_a_topic_made_anew_is_given_up_and_taken_over() -> None:
    member = joined(make())
    beat(member, answer(2, 0, topic=U))
    assert member.change({U: "t"}) == (tps(0, 1), tps(0))


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH])
def test_a_fenced_member_loses_what_it_holds_and_joins_anew(code: ErrorCode) -> None:
    member = joined(make())
    assert beat(member, answer(code=code))[1] is Next.GO_ON
    assert (member.state, member.due, member.heartbeat_at()) == (S.FENCED, True, None)
    assert list(member.owned) == tps(0, 1), "for the listener to be told"
    assert member.metadata.generation_id == 1, "commits are refused until a poll has joined anew"
    tenure = member.membership_number
    member.forget()
    member.join()
    assert member.membership_number == tenure + 1
    request, _ = beat(member, answer(7, 0))
    assert (request.member_id, request.member_epoch, request.topic_partitions) == ("me", 0, [])
    assert member.metadata.generation_id == 7


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ErrorCode.NOT_COORDINATOR, Next.FIND_COORDINATOR),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, Next.FIND_COORDINATOR),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Next.WAIT),
    ],
)
def test_a_coordinator_that_is_not_there_is_told_everything_later(code: ErrorCode, verdict: Next) -> None:
    member = joined(make())
    assert beat(member, answer(code=code), 5_000)[1] is verdict
    assert member.heartbeat_at() == 0
    request, _ = beat(member, answer(1, 0, 1))
    assert request.subscribed_topic_names == ["t"]
    assert request.topic_partitions == [TopicIdPartitions(topic_id=T, partitions=[0, 1])]
    assert member.state is S.STABLE


def test_a_lost_answer_makes_the_next_heartbeat_say_everything() -> None:
    member = joined(make())
    beat(member, answer(1, 1))
    member.on_revoked(tps(0))
    member.on_unanswered(member.heartbeat_request(0))
    assert member.heartbeat_at() == 0
    request, _ = beat(member, answer(2, 1))
    assert (request.member_epoch, request.rebalance_timeout_ms) == (1, 300_000)
    assert request.topic_partitions == [TopicIdPartitions(topic_id=T, partitions=[1])]


def test_a_lost_answer_to_a_join_joins_under_the_same_id() -> None:
    member = make()
    member.join()
    member.on_unanswered(member.heartbeat_request(0))
    request = member.heartbeat_request(0)
    assert (request.member_id, request.member_epoch, request.topic_partitions) == ("me", 0, [])


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ],
)
def test_refusals_for_good_end_the_membership(code: ErrorCode) -> None:
    member = joined(make(group_instance_id="one"))
    with pytest.raises(KafkaError) as refused:
        beat(member, answer(code=code))
    assert refused.value.code is code
    assert member.state is S.FENCED


def test_a_broker_that_does_not_serve_the_protocol_is_named() -> None:
    member = make()
    member.join()
    with pytest.raises(UnsupportedByBroker, match="group_protocol='classic'"):
        beat(member, answer(code=ErrorCode.UNSUPPORTED_VERSION))


def test_answers_of_a_life_before_mean_nothing() -> None:
    member = joined(make())
    late = member.heartbeat_request(0)
    member.leave_request()
    member.forget()
    member.join()
    assert member.on_heartbeat(late, answer(9, 5), 0) is Next.GO_ON
    assert (member.state, member.epoch) == (S.JOINING, 0)
    member.on_unanswered(late)
    assert member.heartbeat_request(0).member_epoch == 0


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("one", -2)])
def test_leaving(instance: str | None, epoch: int) -> None:
    member = joined(make(group_instance_id=instance))
    request = member.leave_request()
    assert request is not None
    assert (request.member_id, request.member_epoch, request.instance_id) == ("me", epoch, instance)
    assert (member.state, member.owned, member.heartbeat_at()) == (S.LEFT, {}, None)
    assert member.leave_request() is None
    assert make().leave_request() is None, "never joined"


def test_who_joins_can_leave_before_the_answer() -> None:
    """KIP-1082: the id is the member's own."""
    member = make()
    member.join()
    member.heartbeat_request(0)
    request = member.leave_request()
    assert request is not None
    assert (request.member_id, request.member_epoch) == ("me", -1)


def test_who_does_not_poll_leaves_and_has_lost_what_it_held() -> None:
    member = joined(make(rebalance_timeout_ms=800))
    member.on_poll(100)
    assert member.overdue_at() == 900
    request = member.leave_request(for_good=False)
    assert request is not None
    assert request.member_epoch == -1
    assert (member.state, list(member.owned)) == (S.FENCED, tps(0, 1))


def test_a_member_fenced_in_the_middle_takes_nothing_over() -> None:
    member = joined(make())
    beat(member, answer(2, 0, 1, 2))
    change = member.change(NAMES)
    assert change is not None
    beat(member, answer(code=ErrorCode.FENCED_MEMBER_EPOCH))
    assert member.on_assigned(change.assigned, NAMES) == []
    assert list(member.owned) == tps(0, 1)
