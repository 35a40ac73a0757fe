"""Range and round robin, on the examples of Kafka's documentation and a property: everything is given out once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from barnabas.client.assignors import ASSIGNORS, MemberSubscription, assign_range, assign_roundrobin


def shares(assignment: dict[str, list[tuple[str, int]]]) -> dict[str, list[str]]:
    return {member: [f"{topic}-{partition}" for topic, partition in tps] for member, tps in assignment.items()}


def member(name: str, *topics: str, instance: str | None = None) -> MemberSubscription:
    return MemberSubscription(name, topics, instance)


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
