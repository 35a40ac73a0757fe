"""Plans of replicas: what they promise for any brokers, racks and partitions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.cli.partition_plan import spread
from barnabas.client.types import TopicPartition


def partitions(*replicas: list[int]) -> dict[TopicPartition, list[int]]:
    return {TopicPartition("t", number): each for number, each in enumerate(replicas)}


def test_what_is_balanced_stays() -> None:
    present = partitions([1, 2], [2, 3], [3, 1])
    assert spread(present, dict.fromkeys((1, 2, 3))) == {each: tuple(nodes) for each, nodes in present.items()}


def test_replicas_leave_a_broker_that_is_not_used() -> None:
    plan = spread(partitions([1, 4], [4, 2], [3, 4]), dict.fromkeys((1, 2, 3)))
    assert Counter(node for nodes in plan.values() for node in nodes) == {1: 2, 2: 2, 3: 2}
    assert sorted(nodes[0] for nodes in plan.values()) == [1, 2, 3]


def test_a_new_broker_gets_its_share_by_few_moves() -> None:
    present = partitions(*[[1 + n % 3, 1 + (n + 1) % 3] for n in range(12)])
    plan = spread(present, dict.fromkeys((1, 2, 3, 4)))
    assert Counter(node for nodes in plan.values() for node in nodes) == {1: 6, 2: 6, 3: 6, 4: 6}
    assert sum(len(set(plan[each]) - set(nodes)) for each, nodes in present.items()) == 6, "no more than its share"


def test_the_replication_factor_changes() -> None:
    present = partitions([1], [2], [3])
    more = spread(present, dict.fromkeys((1, 2, 3)), 3)
    assert all(sorted(nodes) == [1, 2, 3] for nodes in more.values())
    assert {
        each: list(nodes)
        for each, nodes in spread(partitions([1, 2], [2, 3], [3, 1]), dict.fromkeys((1, 2, 3)), 1).items()
    } == present


def test_too_few_brokers() -> None:
    with pytest.raises(ValueError, match="t-0 needs 2 replicas, and there are 1 brokers"):
        spread(partitions([1, 2]), {1: None})


def test_replicas_go_to_different_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    plan = spread(partitions([1, 2], [1, 2], [3, 4], [3, 4]), racks)
    assert all({racks[node] for node in nodes} == {"a", "b"} for nodes in plan.values())


def test_a_rack_without_a_replica_gets_one() -> None:
    racks = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b"}
    ((_, nodes),) = spread(partitions([1, 4, 5, 2]), racks).items()
    assert {racks[node] for node in nodes} == {"a", "b", "c"}
    assert len(set(nodes) & {1, 2, 4, 5}) == 3


@given(
    st.lists(st.lists(st.integers(1, 12), unique=True, min_size=1, max_size=4), min_size=1, max_size=40),
    st.integers(4, 12),
    st.integers(0, 4),
)
def test_any_plan_keeps_its_promises(replicas: list[list[int]], broker_count: int, rack_count: int) -> None:
    brokers = {node: f"r{node % rack_count}" if rack_count else None for node in range(1, broker_count + 1)}
    plan = spread(partitions(*replicas), brokers)
    for (_, number), nodes in plan.items():
        assert len(set(nodes)) == len(nodes) == len(replicas[number])
        assert set(nodes) <= set(brokers)
        if rack_count:
            racks = {brokers[node] for node in nodes}
            assert len(racks) == min(len(nodes), len({*brokers.values()})), "as many racks as it can"
    load = Counter(dict.fromkeys(brokers, 0))
    load.update(node for nodes in plan.values() for node in nodes)
    if not rack_count:
        assert max(load.values()) - min(load.values()) <= 1
