"""Where replicas go: in turn over the brokers, and over racks as far as they reach."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from barnabas.broker.metadata.image import MetadataImage
from barnabas.broker.metadata.placement import place_partitions
from tests.support.broker.metadata_images import cluster


def racks(*of: str | None) -> MetadataImage:
    """Brokers 1, 2, …, in these racks."""
    image = cluster(range(1, len(of) + 1))
    brokers = {n: broker._replace(rack=of[n - 1]) for n, broker in image.brokers.items()}
    return replace(image, brokers=brokers)


@pytest.mark.parametrize("of", [("a", "a", "b", "b", "c", "c"), ("a", "a", "a", "b", "c"), ("a", "b", "c")])
@pytest.mark.parametrize("start", range(6))
def test_the_replicas_of_a_partition_are_in_different_racks(of: tuple[str, ...], start: int) -> None:
    for partition in place_partitions(racks(*of), 12, 3, start):
        assert {of[broker_id - 1] for broker_id in partition.replicas} == {"a", "b", "c"}
        assert partition.leader == partition.replicas[0]


def test_more_replicas_than_racks_are_shared_out_evenly() -> None:
    of = ("a", "a", "a", "b", "b")
    for partition in place_partitions(racks(*of), 10, 4, 0):
        assert Counter(of[broker_id - 1] for broker_id in partition.replicas) == {"a": 2, "b": 2}


@pytest.mark.parametrize("of", [(None, None, None), ("a", "a", "b"), ("a", None, "b")])
def test_every_broker_leads_its_share(of: tuple[str | None, ...]) -> None:
    leaders = Counter(partition.leader for partition in place_partitions(racks(*of), 9, 2, 1))
    assert leaders == {1: 3, 2: 3, 3: 3}


def test_without_racks_the_replicas_are_neighbours() -> None:
    placed = place_partitions(racks(None, None, None, None), 3, 2, 1)
    assert [partition.replicas for partition in placed] == [(2, 3), (3, 4), (4, 1)]
