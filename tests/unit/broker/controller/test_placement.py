"""Where replicas go: in turn over the brokers, and over racks as far as they reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from barnabas.broker.controller.core import placement
from barnabas.broker.image.image import MetadataImage, PartitionImage
from barnabas.errors import BrokerError, ErrorCode
from barnabas.work import finished
from tests.support.broker.metadata_images import cluster


def racks(*of: str | None) -> MetadataImage:
    """Brokers 1, 2, …, in these racks."""
    image = cluster(range(1, len(of) + 1))
    brokers = {n: broker._replace(rack=of[n - 1]) for n, broker in image.brokers.items()}
    return replace(image, brokers=brokers)


def fenced(image: MetadataImage, ids: Iterable[int]) -> MetadataImage:
    """The image with these brokers fenced."""
    return replace(image, brokers={**image.brokers, **{n: image.brokers[n]._replace(fenced=True) for n in ids}})


def place_partitions(image: MetadataImage, count: int, replication_factor: int, start: int) -> list[PartitionImage]:
    return finished(placement.place_partitions(image, count, replication_factor, start))


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


def test_a_fenced_broker_is_the_last_replica_and_not_in_the_isr() -> None:
    """As Kafka 4.3.1 does with three brokers of which one is killed."""
    placed = place_partitions(fenced(racks(None, None, None), [3]), 4, 3, 0)
    assert [partition.replicas for partition in placed] == [(1, 2, 3), (2, 1, 3)] * 2
    assert [partition.isr for partition in placed] == [(1, 2), (2, 1)] * 2
    assert [partition.leader for partition in placed] == [1, 2, 1, 2]


def test_fenced_brokers_are_no_replicas_while_the_others_suffice() -> None:
    placed = place_partitions(fenced(racks("a", "a", "b"), [3]), 2, 2, 0)
    assert [partition.replicas for partition in placed] == [(1, 2), (2, 1)]


def test_fenced_brokers_share_the_replicas_that_the_others_cannot_take() -> None:
    placed = place_partitions(fenced(racks(None, None, None, None), [2, 3, 4]), 6, 2, 0)
    assert Counter(partition.replicas for partition in placed) == {(1, 2): 2, (1, 3): 2, (1, 4): 2}


def test_fenced_brokers_of_other_racks_come_first() -> None:
    for partition in place_partitions(fenced(racks("a", "a", "a", "b"), [2, 3, 4]), 3, 2, 0):
        assert partition.replicas == (1, 4)


@pytest.mark.parametrize(("gone", "replicas"), [([3], 4), ([1, 2, 3], 1)])
def test_more_replicas_than_registered_brokers_or_all_of_them_fenced_are_refused(
    gone: list[int], replicas: int
) -> None:
    with pytest.raises(BrokerError) as refusal:
        place_partitions(fenced(racks(None, None, None), gone), 1, replicas, 0)
    assert refusal.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
