"""Static members of classic groups (KIP-345)."""

from __future__ import annotations

import pytest

from barnabas.broker.coordinator.groups.classic import protocol
from barnabas.broker.coordinator.groups.classic.state import GroupState
from barnabas.errors import ErrorCode
from tests.support.bench.group import GroupBench, outcome

NONE = ErrorCode.NONE


def state(bench: GroupBench, group: str = "g") -> GroupState:
    return bench.shard.tables.classic[group].state


def test_static_member_comes_back_under_a_new_id_without_a_rebalance() -> None:
    bench = GroupBench()
    first = bench.join(instance="a")
    second = bench.join(instance="b")
    bench.advance(0)
    a, b = first.response.member_id, second.response.member_id
    bench.sync(a, 1, {a: b"A", b: b"B"}, instance="a")
    response = bench.join(instance="b").response
    assert (response.error_code, response.generation_id, response.leader) == (NONE, 1, a)
    assert response.member_id not in (a, b)
    assert state(bench) is GroupState.STABLE
    assert bench.sync(response.member_id, 1, instance="b").response.assignment == b"B"
    # the former holder of the name is fenced
    assert bench.heartbeat(b, 1, instance="b") is ErrorCode.FENCED_INSTANCE_ID
    assert outcome(bench.sync(b, 1, instance="b")) is ErrorCode.FENCED_INSTANCE_ID
    assert outcome(bench.join(b, instance="b")) is ErrorCode.FENCED_INSTANCE_ID
    # and the new one is in the log
    assert list(bench.replayed().tables.classic["g"].members) == [a, response.member_id]


def test_metadata_of_a_static_member_that_comes_back_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "GROUP_METADATA_BYTES_MAX", 300)
    bench = GroupBench()
    bench.join(instance="a", protocols=[("range", b"x" * 150)])
    bench.join(instance="b", protocols=[("range", b"x" * 150)])
    bench.advance(0)
    assert outcome(bench.join(instance="c", protocols=[("range", b"x")])) is ErrorCode.GROUP_MAX_SIZE_REACHED
    back = bench.join(instance="b", protocols=[("range", b"x" * 150)])
    assert not back.answered or outcome(back) is NONE
    assert bench.shard.tables.classic["g"].metadata_bytes == 300


def test_static_leader_that_comes_back_skips_the_assignment() -> None:
    bench = GroupBench()
    (leader,) = (bench.join(instance="a"),)
    bench.advance(0)
    old_id = leader.response.member_id
    bench.sync(old_id, 1, {old_id: b"A"}, instance="a")
    skipping = bench.join(instance="a", version=9).response
    assert skipping.skip_assignment
    assert skipping.leader == skipping.member_id
    assert [member.member_id for member in skipping.members] == [skipping.member_id]
    older = bench.join(instance="a", version=8).response
    assert not older.skip_assignment
    assert older.leader == skipping.member_id != older.member_id  # it must not think that it leads
    assert older.members == []
    assert bench.shard.tables.classic["g"].leader_id == older.member_id


def test_static_member_with_another_protocol_rebalances() -> None:
    bench = GroupBench()
    ticket = bench.join(instance="a", protocols=[("range", b""), ("sticky", b"")])
    bench.advance(0)
    member_id = ticket.response.member_id
    bench.sync(member_id, 1, {}, instance="a")
    back = bench.join(instance="a", protocols=[("sticky", b"")])
    assert back.response.generation_id == 2
    assert back.response.protocol_name == "sticky"


def test_duplicate_of_a_waiting_static_member_fences_it() -> None:
    bench = GroupBench()
    bench.stable(1)
    parked = bench.join(instance="a")
    bench.join(instance="a")
    assert outcome(parked) is ErrorCode.FENCED_INSTANCE_ID


def test_static_members_outlive_a_missed_rejoin_but_not_their_session() -> None:
    bench = GroupBench()
    first = bench.join(instance="a", rebalance_ms=6_000, session_ms=20_000)
    second = bench.join(instance="b", rebalance_ms=6_000, session_ms=20_000)
    bench.advance(0)
    a, b = first.response.member_id, second.response.member_id
    bench.sync(a, 1, {a: b"A", b: b"B"}, instance="a")
    bench.sync(b, 1, instance="b")
    rejoined = bench.join(a, instance="a", rebalance_ms=6_000, session_ms=20_000)
    bench.advance(6_000)
    assert rejoined.response.generation_id == 2
    assert len(rejoined.response.members) == 2  # b is still counted on
    bench.sync(a, 2, {a: b"A"}, instance="a")
    bench.sync(b, 2, instance="b")
    for _ in range(4):
        bench.advance(5_000)
        bench.heartbeat(a, 2, instance="a")
    assert b not in bench.shard.tables.classic["g"].members


def test_operator_removes_a_static_member_by_its_name() -> None:
    bench = GroupBench()
    bench.join(instance="a")
    bench.advance(0)
    response = bench.leave(("", "a"))
    assert response.members[0].error_code == NONE
    assert state(bench) is GroupState.EMPTY


def test_leaving_with_a_stale_member_id_is_fenced() -> None:
    bench = GroupBench()
    ticket = bench.join(instance="a")
    bench.advance(0)
    bench.sync(ticket.response.member_id, 1, {}, instance="a")
    bench.join(instance="a")
    response = bench.leave((ticket.response.member_id, "a"))
    assert response.members[0].error_code == ErrorCode.FENCED_INSTANCE_ID
