"""The classic protocol as members see it: joining, syncing, leaving, dying, coming back."""

from __future__ import annotations

import pytest

from barnabas.broker.coordinator.groups.classic import protocol
from barnabas.broker.coordinator.groups.classic.group import subscribed_topics
from barnabas.broker.coordinator.groups.classic.state import VALID_PREVIOUS, GroupState
from barnabas.broker.coordinator.groups.settings import GroupSettings
from barnabas.broker.coordinator.groups.views import describe_classic, list_groups
from barnabas.errors import ErrorCode, InvariantViolated, LocalProtocolError
from barnabas.limits import SUBSCRIBED_NAMES_MAX
from tests.support.bench.group import GroupBench, Ticket, outcome

NONE = ErrorCode.NONE


def state(bench: GroupBench, group: str = "g") -> GroupState:
    return bench.shard.tables.classic[group].state


def test_new_member_is_asked_to_come_back_with_its_id() -> None:
    bench = GroupBench()
    response = bench.join(version=4).response
    assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert response.member_id == "client-1"
    assert bench.shard.tables.classic["g"].pending_joins
    ticket = bench.join(response.member_id, version=4)
    bench.advance(0)
    assert ticket.response.generation_id == 1
    assert ticket.response.leader == ticket.response.member_id == "client-1"
    assert [member.member_id for member in ticket.response.members] == ["client-1"]
    assert ticket.response.protocol_type == "consumer"
    assert ticket.response.protocol_name == "range"


def test_before_version_4_a_member_joins_at_once() -> None:
    bench = GroupBench()
    ticket = bench.join(version=3)
    bench.advance(0)
    assert outcome(ticket) is NONE


def test_group_that_is_not_there_knows_nobody() -> None:
    bench = GroupBench()
    refused = bench.join("ghost").response
    assert (refused.error_code, refused.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "ghost")
    assert "g" not in bench.shard.tables.classic
    assert outcome(bench.sync("ghost", 0)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.heartbeat("ghost", 0) is ErrorCode.UNKNOWN_MEMBER_ID


def test_first_join_makes_the_group_known_in_the_log() -> None:
    bench = GroupBench()
    bench.join()
    assert len(bench.log) == 1
    assert bench.replayed().tables.classic["g"].state is GroupState.EMPTY


def test_initial_rebalance_waits_and_waits_longer_while_members_come() -> None:
    bench = GroupBench(GroupSettings(initial_rebalance_delay_ms=3_000))
    _, first = bench.member()
    bench.advance(2_900)
    _, second = bench.member()
    bench.advance(200)
    assert not first.answered  # the second one came within the delay: it begins anew
    bench.advance(2_800)
    assert not first.answered
    bench.advance(100)
    assert first.response.generation_id == second.response.generation_id == 1
    assert len(first.response.members) == 2
    assert second.response.members == []


def test_initial_delay_ends_with_the_rebalance_timeout_however_many_come() -> None:
    bench = GroupBench(GroupSettings(initial_rebalance_delay_ms=3_000))
    _, first = bench.member(rebalance_ms=8_000)
    for _ in range(3):
        bench.advance(2_000)
        bench.member(rebalance_ms=8_000)
    bench.advance(1_999)
    assert not first.answered
    bench.advance(1)
    assert first.response.generation_id == 1


def test_a_member_that_joins_later_rebalances_the_group() -> None:
    bench = GroupBench()
    leader, follower = bench.stable(2)
    assert state(bench) is GroupState.STABLE
    _, third = bench.member()
    assert state(bench) is GroupState.PREPARING_REBALANCE
    assert not third.answered
    assert bench.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    again = [bench.join(leader), bench.join(follower)]
    for ticket in (*again, third):
        assert ticket.response.generation_id == 2
        assert ticket.response.leader == leader
    assert state(bench) is GroupState.COMPLETING_REBALANCE


def test_dynamic_members_that_do_not_rejoin_in_time_are_out() -> None:
    bench = GroupBench()
    leader, follower = bench.stable(2, session_ms=1_000_000, rebalance_ms=5_000)
    rejoined = bench.join(follower, session_ms=1_000_000, rebalance_ms=5_000, protocols=[("range", b"changed")])
    bench.advance(4_999)
    assert not rejoined.answered
    bench.advance(1)
    assert rejoined.response.generation_id == 2
    assert rejoined.response.leader == follower
    assert leader not in bench.shard.tables.classic["g"].members


def test_follower_that_rejoins_unchanged_gets_the_present_generation() -> None:
    bench = GroupBench()
    leader, follower = bench.stable(2)
    response = bench.join(follower).response
    assert (response.error_code, response.generation_id, response.members) == (NONE, 1, [])
    assert state(bench) is GroupState.STABLE
    assert not bench.join(leader).answered  # a leader asks for a rebalance by joining
    assert state(bench) is GroupState.PREPARING_REBALANCE


def test_member_that_lost_its_join_answer_gets_it_again() -> None:
    bench = GroupBench()
    member_id, ticket = bench.member()
    bench.advance(0)
    again = bench.join(member_id)
    assert again.response == ticket.response
    assert state(bench) is GroupState.COMPLETING_REBALANCE


def test_changed_metadata_while_completing_rebalances_and_cancels_syncs() -> None:
    bench = GroupBench()
    first, _ = bench.member()
    second, _ = bench.member()
    bench.advance(0)
    waiting = bench.sync(second, 1)
    assert not waiting.answered
    bench.join(first, protocols=[("range", b"new")])
    assert outcome(waiting) is ErrorCode.REBALANCE_IN_PROGRESS
    assert state(bench) is GroupState.PREPARING_REBALANCE


def test_protocols_must_have_one_in_common() -> None:
    bench = GroupBench()
    bench.stable(1, protocols=[("range", b""), ("roundrobin", b"")])
    assert outcome(bench.join(protocols=[("sticky", b"")])) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert outcome(bench.join(protocol_type="connect")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert outcome(bench.join(protocols=[("roundrobin", b"")])) is ErrorCode.MEMBER_ID_REQUIRED
    assert outcome(bench.join(group="new", protocols=[])) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert outcome(bench.join(group="other", protocol_type="")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_protocol_is_voted_for_among_those_that_all_support() -> None:
    bench = GroupBench()
    votes = [
        [("a", b""), ("b", b""), ("c", b"")],
        [("b", b""), ("c", b"")],
        [("c", b""), ("b", b""), ("a", b"")],
    ]
    tickets = [bench.member(protocols=protocols)[1] for protocols in votes]
    bench.advance(0)
    assert {ticket.response.protocol_name for ticket in tickets} == {"b"}  # b, b, c; nobody but two knows a


def test_a_protocol_named_twice_counts_once() -> None:
    bench = GroupBench()
    _, ticket = bench.member(protocols=[("a", b"1"), ("b", b""), ("a", b"2")])
    bench.advance(0)
    assert ticket.response.protocol_name == "a"
    bench.leave((ticket.response.member_id, None))
    assert bench.shard.tables.classic["g"].protocol_counts == {}


def test_group_is_full() -> None:
    bench = GroupBench(GroupSettings(initial_rebalance_delay_ms=0, size_max=2))
    leader, follower = bench.stable(2)
    refused = bench.join().response
    assert (refused.error_code, refused.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert outcome(bench.join(follower)) is NONE
    assert bench.leave((leader, None)).members[0].error_code == NONE
    assert outcome(bench.join()) is ErrorCode.MEMBER_ID_REQUIRED


def test_the_metadata_of_all_members_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of the group could not hold it, and the leader would get all of it in one answer."""
    monkeypatch.setattr(protocol, "GROUP_METADATA_BYTES_MAX", 300)
    bench = GroupBench()
    first, _ = bench.member(protocols=[("range", b"x" * 100)])
    second, _ = bench.member(protocols=[("range", b"x" * 100)])
    _, refused = bench.member(protocols=[("range", b"x" * 150)])
    assert outcome(refused) is ErrorCode.GROUP_MAX_SIZE_REACHED
    bench.advance(0)
    assert bench.shard.tables.classic["g"].metadata_bytes == 200
    grown = bench.join(first, protocols=[("range", b"x" * 200)])
    assert outcome(bench.join(second, protocols=[("range", b"x" * 100)])) is NONE
    assert outcome(grown) is NONE
    assert bench.shard.tables.classic["g"].metadata_bytes == 300


def test_a_member_that_is_refused_for_its_metadata_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves or its session ends: nobody else reads its partitions before a rebalance."""
    monkeypatch.setattr(protocol, "GROUP_METADATA_BYTES_MAX", 300)
    bench = GroupBench()
    leader, parked = bench.member(protocols=[("range", b"x" * 100)])
    too_much = [("range", b"x" * 301)]
    assert outcome(bench.join(leader, protocols=too_much)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    bench.advance(0)
    assert outcome(parked) is NONE
    follower, parked = bench.member(protocols=[("range", b"x" * 100)])
    assert outcome(bench.join(leader, protocols=[("range", b"x" * 100)])) is NONE
    assert outcome(parked) is NONE
    waiting = bench.sync(follower, 2)
    assert outcome(bench.join(follower, protocols=too_much)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    bench.sync(leader, 2, {leader: b"A", follower: b"B"})
    assert waiting.response.assignment == b"B"
    assert outcome(bench.join(follower, protocols=too_much)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert state(bench) is GroupState.STABLE
    assert bench.heartbeat(follower, 2) is NONE
    assert bench.leave((follower, None)).members[0].error_code == NONE
    assert bench.heartbeat(leader, 2) is ErrorCode.REBALANCE_IN_PROGRESS


def test_leader_assigns_and_followers_wait_for_it() -> None:
    bench = GroupBench()
    leader, _ = bench.member()
    follower, _ = bench.member()
    bench.advance(0)
    waiting = bench.sync(follower, 1)
    assert not waiting.answered
    answered = bench.sync(leader, 1, {leader: b"L", follower: b"F"})
    assert (answered.response.assignment, waiting.response.assignment) == (b"L", b"F")
    assert waiting.response.protocol_name == "range"
    assert state(bench) is GroupState.STABLE
    assert bench.sync(follower, 1).response.assignment == b"F"  # once more, from a Stable group


def test_members_the_leader_forgot_get_an_empty_assignment() -> None:
    bench = GroupBench()
    leader, _ = bench.member()
    follower, _ = bench.member()
    bench.advance(0)
    bench.sync(leader, 1, {leader: b"L"})
    response = bench.sync(follower, 1).response
    assert (response.error_code, response.assignment) == (NONE, b"")


def test_sync_is_refused() -> None:
    bench = GroupBench()
    leader, follower = bench.stable(2)
    assert outcome(bench.sync(follower, 2)) is ErrorCode.ILLEGAL_GENERATION
    assert outcome(bench.sync("ghost", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert outcome(bench.sync(follower, 1, protocol_name="sticky")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert outcome(bench.sync(follower, 1, protocol_type="connect")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert outcome(bench.sync(follower, 1, protocol_type="consumer", protocol_name="range")) is NONE
    bench.join(leader)
    assert outcome(bench.sync(follower, 1)) is ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_never_sync_are_out() -> None:
    bench = GroupBench()
    first, _ = bench.member(session_ms=1_000_000, rebalance_ms=7_000)
    lazy, _ = bench.member(session_ms=1_000_000, rebalance_ms=7_000)
    bench.advance(0)
    bench.sync(first, 1, {})
    bench.advance(7_000)
    assert list(bench.shard.tables.classic["g"].members) == [first]
    assert state(bench) is GroupState.PREPARING_REBALANCE
    assert bench.heartbeat(lazy, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_assignment_that_cannot_be_stored_leaves_the_group_rebalancing() -> None:
    bench = GroupBench()
    leader, follower = bench.stable(2)
    bench.join(leader)
    bench.join(follower)
    bench.append_fails = True
    with pytest.raises(Exception, match="MESSAGE_TOO_LARGE"):
        bench.sync(leader, 2, {leader: b"too large"})
    assert state(bench) is GroupState.COMPLETING_REBALANCE  # as if it had never come
    bench.append_fails = False
    bench.release(bench.commit(bench.shard.rebalance(["g"], bench.at)))
    assert state(bench) is GroupState.PREPARING_REBALANCE


def test_group_whose_first_record_fails_is_not_there() -> None:
    bench = GroupBench()
    bench.append_fails = True
    with pytest.raises(Exception, match="MESSAGE_TOO_LARGE"):
        bench.join()
    assert bench.shard.tables.classic == {}
    bench.advance(1_000_000)


def test_heartbeats_keep_members_alive() -> None:
    bench = GroupBench()
    leader, follower = bench.stable(2, session_ms=10_000)
    for _ in range(5):
        bench.advance(9_000)
        assert bench.heartbeat(leader, 1) is NONE
        assert bench.heartbeat(follower, 1) is NONE
    bench.advance(9_999)
    assert bench.heartbeat(leader, 1) is NONE
    bench.advance(1)
    assert bench.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.heartbeat(follower, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeat_is_refused() -> None:
    bench = GroupBench()
    (leader,) = bench.stable(1)
    assert bench.heartbeat(leader, 0) is ErrorCode.ILLEGAL_GENERATION
    assert bench.heartbeat("ghost", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.heartbeat(leader, 1, instance="i") is ErrorCode.UNKNOWN_MEMBER_ID


def test_pending_member_that_never_comes_back_is_forgotten() -> None:
    bench = GroupBench()
    leader, follower = bench.stable(2, session_ms=1_000_000)
    bench.join(session_ms=6_000)
    again = [bench.join(leader, session_ms=1_000_000), bench.join(follower, session_ms=1_000_000)]
    assert not again[0].answered  # the pending one is waited for
    bench.advance(6_000)
    assert [ticket.response.generation_id for ticket in again] == [2, 2]


def test_last_member_leaves_an_empty_group_in_the_log() -> None:
    bench = GroupBench()
    (leader,) = bench.stable(1)
    assert bench.leave((leader, None)).members[0].error_code == NONE
    group = bench.shard.tables.classic["g"]
    assert (group.state, group.generation, group.leader_id, group.protocol_type) == (
        GroupState.EMPTY,
        2,
        None,
        "consumer",
    )
    loaded = bench.replayed().tables.classic["g"]
    assert (loaded.state, loaded.generation, loaded.protocol_type) == (GroupState.EMPTY, 2, "consumer")


def test_leaving_answers_each_member() -> None:
    bench = GroupBench()
    leader, follower = bench.stable(2)
    bench.join(instance="static")
    response = bench.leave(("ghost", None), (follower, None), ("", "static"), ("", "nobody"), ("", None))
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert [member.error_code for member in response.members] == [unknown, NONE, NONE, unknown, unknown]
    assert list(bench.shard.tables.classic["g"].members) == [leader]


def test_leaving_answers_a_parked_join() -> None:
    bench = GroupBench()
    bench.stable(1)
    newcomer, ticket = bench.member()
    bench.leave((newcomer, None))
    assert outcome(ticket) is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_that_waits_needs_no_heartbeat_but_a_new_one_is_not_kept_forever() -> None:
    bench = GroupBench()
    leader, follower = bench.stable(2, session_ms=6_000, rebalance_ms=400_000)
    rejoined = bench.join(leader, session_ms=6_000, rebalance_ms=400_000)
    newcomer, ticket = bench.member(session_ms=6_000, rebalance_ms=400_000)
    for _ in range(59):
        bench.advance(5_000)
        assert bench.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert not rejoined.answered
    assert not ticket.answered
    bench.advance(5_000)  # five minutes: the newcomer's client has long given up
    assert outcome(ticket) is ErrorCode.UNKNOWN_MEMBER_ID
    assert newcomer not in bench.shard.tables.classic["g"].members
    assert not rejoined.answered


def test_stable_group_goes_on_under_another_coordinator() -> None:
    bench = GroupBench()
    leader, follower = bench.stable(2)
    bench.fail_over()
    assert state(bench) is GroupState.STABLE
    assert bench.heartbeat(leader, 1) is NONE
    assert bench.sync(follower, 1).response.assignment == follower.encode()
    bench.advance(10_000)  # nobody showed up after that: sessions run there too
    assert state(bench) is GroupState.EMPTY


def test_rebalance_in_flight_is_refused_and_begins_anew() -> None:
    bench = GroupBench()
    leader, follower = bench.stable(2)
    parked = bench.join(leader)
    bench.fail_over()
    assert bench.refused == [parked]
    assert not parked.answered
    tickets: list[Ticket] = [bench.join(leader)]
    tickets.append(bench.join(follower))
    assert [ticket.response.generation_id for ticket in tickets] == [2, 2]


def test_group_over_the_limit_after_loading_rebalances() -> None:
    bench = GroupBench()
    members = bench.stable(3)
    bench.settings = GroupSettings(initial_rebalance_delay_ms=0, size_max=2)
    bench.fail_over()
    assert state(bench) is GroupState.PREPARING_REBALANCE
    tickets = [bench.join(member) for member in members]
    assert outcome(tickets[2]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [ticket.response.generation_id for ticket in tickets[:2]] == [2, 2]


def test_describe_tells_metadata_only_of_stable_groups() -> None:
    bench = GroupBench()
    leader, _ = bench.stable(2, protocols=[("range", b"meta")])
    stable = describe_classic(bench.shard, "g")
    assert (stable.group_state, stable.protocol_type, stable.protocol_data) == ("Stable", "consumer", "range")
    assert {m.member_metadata for m in stable.members} == {b"meta"}
    assert {m.member_assignment for m in stable.members} == {m.member_id.encode() for m in stable.members}
    assert stable.members[0].client_host == "/127.0.0.1"
    bench.join(leader, protocols=[("range", b"meta")])
    preparing = describe_classic(bench.shard, "g")
    assert (preparing.group_state, preparing.protocol_data) == ("PreparingRebalance", "")
    assert {m.member_metadata for m in preparing.members} == {b""}
    assert {m.member_assignment for m in preparing.members} == {m.member_id.encode() for m in preparing.members}


def test_list_filters_by_state_and_type() -> None:
    bench = GroupBench()
    bench.stable(1)
    bench.join(group="other")
    everything: frozenset[str] = frozenset()

    def listed(states: frozenset[str], types: frozenset[str]) -> list[tuple[str, str, str]]:
        return [(g.group_id, g.group_state, g.group_type) for g in list_groups(bench.shard, states, types)]

    both = [("g", "Stable", "classic"), ("other", "Empty", "classic")]
    assert listed(everything, everything) == both
    assert listed(frozenset({"stable"}), everything) == both[:1]
    assert listed(everything, frozenset({"consumer"})) == []
    assert listed(frozenset({"empty"}), frozenset({"classic"})) == both[1:]


def test_states_follow_the_table() -> None:
    bench = GroupBench()
    bench.stable(1)
    group = bench.shard.tables.classic["g"]
    with pytest.raises(InvariantViolated, match="from Stable to CompletingRebalance"):
        group.transition(GroupState.COMPLETING_REBALANCE, 0)
    assert set(VALID_PREVIOUS) == set(GroupState)


def test_member_is_not_removed_with_an_answer_parked() -> None:
    bench = GroupBench()
    member_id, _ = bench.member()
    with pytest.raises(LocalProtocolError, match="parked"):
        bench.shard.tables.classic["g"].remove(member_id)


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (b"\0\0\0\0\0\1\0\1a", {"a"}),
        (b"\0\3\0\0\0\2\0\1a\0\2bc\xff\xff\xff\xffrest of a later version", {"a", "bc"}),
        (b"\0\0\0\0\0\0", set()),
        (b"\0\0\0\0\0\1\0\5a", None),
        (b"\0\0\0\0\0\1\xff\xff", None),
        (b"\0\0", None),
        (b"\0\0\0\0\0\1\0\1\xff", None),
        (b"\0\0\x7f\xff\xff\xff\0\1a", None),
    ],
)
def test_subscriptions_are_read_from_their_common_prefix(metadata: bytes, topics: set[str] | None) -> None:
    assert subscribed_topics([metadata]) == topics


def subscription(names: list[str], rest: bytes = b"") -> bytes:
    encoded = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in names)
    return b"\0\1" + len(names).to_bytes(4, "big") + encoded + rest


def test_equal_subscriptions_are_read_once_and_differing_ones_up_to_a_bound() -> None:
    many = [f"topic-{number}" for number in range(SUBSCRIBED_NAMES_MAX // 2)]
    alike = [subscription(many, b"owned by %d" % number) for number in range(50)]
    assert subscribed_topics([*alike, subscription(["other"]), *alike]) == frozenset({*many, "other"})
    assert subscribed_topics([subscription([f"{name}-{number}" for name in many]) for number in range(3)]) is None
    assert subscribed_topics([subscription(many), b"\0\1" + alike[0][2:100]]) is None
    few = [subscription([f"{number % 40}", "all"]) for number in range(200)]
    assert subscribed_topics(few) == frozenset({*map(str, range(40)), "all"})
