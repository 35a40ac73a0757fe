"""The assignors on the examples of Kafka's documentation, and by their properties: everything is given out once; sticky ones keep
what they can, and are balanced; a cooperative one takes nothing that another still has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from barnabas.client.group.core.assignors import (
    ASSIGNORS,
    MemberSubscription,
    assign_cooperative_sticky,
    assign_range,
    assign_roundrobin,
    assign_sticky,
)
from barnabas.client.types import TopicPartition


def shares(assignment: Mapping[str, Iterable[tuple[str, int]]]) -> dict[str, list[str]]:
    return {member: [f"{topic}-{partition}" for topic, partition in tps] for member, tps in assignment.items()}


def member(
    name: str, *topics: str, instance: str | None = None, owned: str = "", generation: int = 1
) -> MemberSubscription:
    """`owned`: "t-0 t-1"."""
    mine = [each.rpartition("-") for each in owned.split()]
    return MemberSubscription(
        name, topics, instance, tuple(TopicPartition(topic, int(number)) for topic, _, number in mine), generation
    )


def test_range_shares_each_topic_by_itself() -> None:
    members = [member("c1", "t0", "t1"), member("c0", "t0", "t1")]
    assert shares(assign_range(members, {"t0": 3, "t1": 3})) == {
        "c0": ["t0-0", "t0-1", "t1-0", "t1-1"],
        "c1": ["t0-2", "t1-2"],
    }


def test_range_leaves_members_over_without_partitions() -> None:
    members = [member(name, "t") for name in ("a", "b", "c")]
    assert shares(assign_range(members, {"t": 2})) == {"a": ["t-0"], "b": ["t-1"], "c": []}


def test_roundrobin_goes_over_all_topics() -> None:
    members = [member("c0", "t0", "t1"), member("c1", "t0", "t1")]
    assert shares(assign_roundrobin(members, {"t0": 3, "t1": 3})) == {
        "c0": ["t0-0", "t0-2", "t1-1"],
        "c1": ["t0-1", "t1-0", "t1-2"],
    }


def test_roundrobin_with_unequal_subscriptions() -> None:
    members = [member("c0", "t0"), member("c1", "t0", "t1"), member("c2", "t0", "t1", "t2")]
    assert shares(assign_roundrobin(members, {"t0": 1, "t1": 2, "t2": 3})) == {
        "c0": ["t0-0"],
        "c1": ["t1-0"],
        "c2": ["t1-1", "t2-0", "t2-1", "t2-2"],
    }


def test_static_members_are_ordered_by_instance_and_come_first() -> None:
    members = [member("a", "t"), member("z", "t", instance="1"), member("y", "t", instance="2")]
    assert shares(assign_range(members, {"t": 3})) == {"z": ["t-0"], "y": ["t-1"], "a": ["t-2"]}


def test_sticky_moves_only_what_balance_asks_for() -> None:
    members = [
        member("a", "t", owned="t-0 t-1 t-2"),
        member("b", "t", owned="t-3 t-4 t-5"),
        member("c", "t", generation=-1),
    ]
    assert shares(assign_sticky(members, {"t": 6})) == {"a": ["t-1", "t-2"], "b": ["t-4", "t-5"], "c": ["t-0", "t-3"]}


def test_sticky_gives_the_share_of_who_is_gone_to_the_others() -> None:
    """KIP-54's first example: C1 of C0, C1, C2 dies; round robin would move four, this moves what was C1's."""
    members = [
        member("c0", "t0", "t1", "t2", "t3", owned="t0-0 t1-1 t3-0"),
        member("c2", "t0", "t1", "t2", "t3", owned="t1-0 t2-1 t3-1"),
    ]
    found = shares(assign_sticky(members, {"t0": 2, "t1": 2, "t2": 2, "t3": 2}))
    assert {"t0-0", "t1-1", "t3-0"} < set(found["c0"])
    assert {"t1-0", "t2-1", "t3-1"} < set(found["c2"])
    assert [len(each) for each in found.values()] == [4, 4]


def test_sticky_with_unequal_subscriptions() -> None:
    """KIP-54's second example: C0 of C0, C1, C2 dies."""
    members = [
        member("c1", "t0", "t1", owned="t1-0 t1-1"),
        member("c2", "t0", "t1", "t2", owned="t2-0 t2-1 t2-2"),
    ]
    assert shares(assign_sticky(members, {"t0": 1, "t1": 2, "t2": 3})) == {
        "c1": ["t0-0", "t1-0", "t1-1"],
        "c2": ["t2-0", "t2-1", "t2-2"],
    }


def test_of_two_claims_the_later_generation_counts() -> None:
    """KIP-341: a member that missed a rebalance says what it had before."""
    members = [
        member("a", "t", owned="t-0 t-1", generation=3),
        member("b", "t", owned="t-0 t-1", generation=2),
    ]
    assert shares(assign_sticky(members, {"t": 4})) == {"a": ["t-0", "t-1"], "b": ["t-2", "t-3"]}


def test_claims_of_what_is_not_there_or_not_wanted_any_more_count_nothing() -> None:
    members = [member("a", "t", owned="t-0 t-7 gone-0 u-0"), member("b", "t", "u")]
    assert shares(assign_sticky(members, {"t": 2, "u": 1})) == {"a": ["t-0", "t-1"], "b": ["u-0"]}


def test_a_cooperative_assignment_takes_what_others_have_in_a_second_round() -> None:
    first = [member("a", "t", owned="t-0 t-1 t-2 t-3"), member("b", "t", generation=-1)]
    assert shares(assign_cooperative_sticky(first, {"t": 4})) == {"a": ["t-2", "t-3"], "b": []}
    second = [member("a", "t", owned="t-2 t-3", generation=2), member("b", "t", generation=2)]
    assert shares(assign_cooperative_sticky(second, {"t": 4})) == {"a": ["t-2", "t-3"], "b": ["t-0", "t-1"]}


Histories = st.dictionaries(
    st.sampled_from("abcde"),
    st.tuples(
        st.sets(st.sampled_from(["t0", "t1", "t2"]), min_size=1),
        st.sets(st.tuples(st.sampled_from(["t0", "t1", "t2"]), st.integers(0, 9)), max_size=8),
        st.integers(-1, 3),
    ),
    min_size=1,
)
Counts = st.fixed_dictionaries({"t0": st.integers(0, 9), "t1": st.integers(0, 9), "t2": st.integers(0, 9)})


def remembering(history: dict[str, tuple[set[str], set[tuple[str, int]], int]]) -> list[MemberSubscription]:
    return [
        MemberSubscription(
            name, tuple(sorted(topics)), None, tuple(TopicPartition(*tp) for tp in sorted(owned)), generation
        )
        for name, (topics, owned, generation) in history.items()
    ]


@given(Histories, Counts)
def test_sticky_assignments_are_balanced_and_settle(
    history: dict[str, tuple[set[str], set[tuple[str, int]], int]], counts: dict[str, int]
) -> None:
    members = remembering(history)
    assignment = assign_sticky(members, counts)
    topics = {m.member_id: m.topics for m in members}
    given_out = [tp for mine in assignment.values() for tp in mine]
    assert sorted(given_out) == sorted(
        TopicPartition(t, p) for t, n in counts.items() if any(t in ts for ts in topics.values()) for p in range(n)
    )
    for name, mine in assignment.items():
        for tp in mine:
            assert tp.topic in topics[name]
            assert all(len(mine) - len(assignment[m]) <= 1 for m in topics if tp.topic in topics[m]), "balanced"
    again = [m._replace(owned=tuple(assignment[m.member_id]), generation_id=9) for m in members]
    assert assign_sticky(again, counts) == assignment, "nothing moves without a reason"


@given(Histories, Counts)
def test_cooperative_rounds_end_where_sticky_does(
    history: dict[str, tuple[set[str], set[tuple[str, int]], int]], counts: dict[str, int]
) -> None:
    """Each round nothing is given to a member that another has; after a few everything is given out."""
    members = remembering(history)
    for generation in range(4, 8):
        assignment = assign_cooperative_sticky(members, counts)
        for m in members:
            others = {tp for other in members if other is not m for tp in other.owned}
            assert not (set(assignment[m.member_id]) - set(m.owned)) & others
        members = [m._replace(owned=tuple(assignment[m.member_id]), generation_id=generation) for m in members]
    assert assign_sticky(members, counts) == {name: sorted(mine) for name, mine in assignment.items()}


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from(["t0", "t1", "t2"]), min_size=1), min_size=1),
    st.fixed_dictionaries({"t0": st.integers(0, 9), "t1": st.integers(0, 9), "t2": st.integers(0, 9)}),
)
def test_every_partition_goes_to_one_subscribed_member(wanted: dict[str, set[str]], counts: dict[str, int]) -> None:
    members = [member(name, *sorted(topics)) for name, topics in wanted.items()]
    expected = sorted((t, p) for t, n in counts.items() if any(t in ts for ts in wanted.values()) for p in range(n))
    for assign in ASSIGNORS.values():
        assignment = assign(members, counts)
        assert sorted(tp for tps in assignment.values() for tp in tps) == expected
        assert all(topic in wanted[name] for name, tps in assignment.items() for topic, _ in tps)
