"""Who leads when brokers come, go, lose data or ask: a table of partitions, and Kafka's own records."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.controller.core.elections import ElectionKind, Elections
from barnabas.broker.image.assignment import Assignment
from barnabas.broker.image.image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from barnabas.broker.image.records import PartitionChangeRecord

TOPIC = bytes(15) + b"t"
CONFIG = BrokerConfig()


def partition(leader: int, isr: tuple[int, ...], **rest: object) -> PartitionImage:
    replicas = rest.pop("replicas", (1, 2, 3))
    return PartitionImage(leader, 5, 7, replicas, isr, rest.pop("directories", ()), **rest)  # type: ignore[arg-type]


def change(**fields: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=0, topic_id=TOPIC, **fields)  # type: ignore[arg-type]


def broker(broker_id: int, *, alive: bool, directories: tuple[bytes, ...] = ()) -> BrokerImage:
    return BrokerImage(broker_id, 1, b"", (), (), None, not alive, False, directories)


def image(
    before: PartitionImage,
    alive: Container[int],
    min_isr: int,
    *,
    elr: int = 1,
    unclean: bool = False,
    directories: tuple[bytes, ...] = (),
) -> tuple[MetadataImage, TopicImage]:
    topic = TopicImage("t", TOPIC, (before,))
    configs = {(BROKER_RESOURCE, ""): {"min.insync.replicas": str(min_isr)}}
    if unclean:
        configs[TOPIC_RESOURCE, "t"] = {"unclean.leader.election.enable": "true"}
    built = MetadataImage(
        features={"eligible.leader.replicas.version": elr} if elr else {},
        topics_by_name={"t": topic},
        topics_by_id={TOPIC: topic},
        brokers={each: broker(each, alive=each in alive, directories=directories) for each in (1, 2, 3)},
        configs=configs,
    )
    return built, topic


def only(changes: list[PartitionChangeRecord]) -> PartitionChangeRecord | None:
    assert len(changes) <= 1
    return changes[0] if changes else None


@pytest.mark.parametrize(
    ("before", "who", "alive", "min_isr", "clean", "expected"),
    [
        # One replica, shut down cleanly: what Kafka writes.
        (
            partition(1, (1,), replicas=(1,)), 1, set(), 1, True,
            change(isr=[], leader=-1, eligible_leader_replicas=[1], last_known_elr=[1]),
        ),
        # The same after an unclean stop: the broker may have lost what it had not synced.
        (partition(1, (1,), replicas=(1,)), 1, set(), 1, False, change(isr=[], leader=-1, last_known_elr=[1])),
        # Three replicas: the next of the ISR leads, in the order of the replicas.
        (partition(1, (1, 3, 2)), 1, {1, 2, 3}, 1, True, change(isr=[3, 2], leader=2)),
        (partition(1, (1, 3)), 1, {2, 3}, 1, True, change(isr=[3], leader=3)),
        # Below min ISR the one that left stays eligible, if it lost nothing.
        (partition(1, (1, 2)), 1, {2, 3}, 2, True, change(isr=[2], leader=2, eligible_leader_replicas=[1])),
        (partition(1, (1, 2)), 1, {2, 3}, 2, False, change(isr=[2], leader=2)),
        # A follower leaves: the leader and its epoch stay.
        (partition(1, (1, 2, 3)), 3, {1, 2}, 2, True, change(isr=[1, 2])),
        # A member of the ISR that is not alive cannot lead.
        (partition(1, (1, 2)), 1, {3}, 1, True, change(isr=[2], leader=-1)),
        # It was out of sync already, or never a replica.
        (partition(1, (1, 2)), 3, {1, 2}, 1, True, None),
        (partition(1, (1, 2)), 9, {1, 2}, 1, True, None),
        # An unclean stop takes a broker from the eligible leaders, too.
        (
            partition(2, (2,), eligible_leader_replicas=(1, 3)), 1, {2}, 3, False,
            change(eligible_leader_replicas=[3]),
        ),
        # The last of the ISR goes, and an eligible leader is there: it leads at once, alone in the ISR.
        (
            partition(1, (1,), eligible_leader_replicas=(2,)), 1, {2}, 2, True,
            change(isr=[2], leader=2, eligible_leader_replicas=[1]),
        ),
    ],
)  # fmt: skip
def test_departures(
    before: PartitionImage, who: int, alive: set[int], min_isr: int, clean: bool, expected: object
) -> None:
    built, _ = image(before, alive, min_isr)
    elections = Elections(built, CONFIG, departing=who) if clean else Elections(built, CONFIG, lost=who)
    assert only(elections.departures()) == expected


@pytest.mark.parametrize(
    ("before", "alive", "min_isr", "expected"),
    [
        # From the eligible leaders: what Kafka writes when a cleanly stopped broker is back.
        (
            partition(-1, (), replicas=(1,), eligible_leader_replicas=(1,), last_known_elr=(1,)), {1}, 1,
            change(isr=[1], leader=1, eligible_leader_replicas=[], last_known_elr=[]),
        ),
        # From the last known leader, as recovering: what Kafka writes after an unclean stop.
        (
            partition(-1, (), replicas=(1,), last_known_elr=(1,)), {1}, 1,
            change(isr=[1], leader=1, leader_recovery_state=1, last_known_elr=[]),
        ),
        # The ISR goes before the eligible leaders; the others stay eligible below min ISR.
        (partition(-1, (3,), eligible_leader_replicas=(1,)), {1, 3}, 2, change(leader=3)),
        (
            partition(-1, (), eligible_leader_replicas=(1, 2)), {2, 3}, 2,
            change(isr=[2], leader=2, eligible_leader_replicas=[1]),
        ),
        # Nobody who may lead is there.
        (partition(-1, (1,)), {2, 3}, 1, None),
        (partition(-1, (), eligible_leader_replicas=(1,), last_known_elr=(2,)), {2}, 1, None),
        # It has a leader.
        (partition(1, (1,)), {1, 2}, 1, None),
    ],
)  # fmt: skip
def test_arrivals(before: PartitionImage, alive: set[int], min_isr: int, expected: object) -> None:
    built, _ = image(before, alive - {1}, min_isr)
    assert only(Elections(built, CONFIG, arriving=1 if 1 in alive else None).arrivals()) == expected


@pytest.mark.parametrize(
    ("before", "who", "alive", "expected"),
    [
        # The last member stays in the ISR, and is the only one to wait for.
        (partition(1, (1,)), 1, {2, 3}, change(leader=-1)),
        (partition(-1, (1,)), None, {1, 2}, change(leader=1)),
        (partition(1, (1, 2)), 1, {2}, change(isr=[2], leader=2)),
    ],
)
def test_without_eligible_leaders(before: PartitionImage, who: int | None, alive: set[int], expected: object) -> None:
    built, topic = image(before, alive, 2, elr=0)
    assert Elections(built, CONFIG, departing=who).change(topic, 0) == expected


def test_an_unclean_election_is_the_last_resort_and_leaves_a_mark() -> None:
    before = partition(1, (1,))
    for unclean, expected in (
        (False, change(isr=[], leader=-1, eligible_leader_replicas=[1], last_known_elr=[1])),
        (True, change(isr=[2], leader=2, leader_recovery_state=1)),
    ):
        built, topic = image(before, {2, 3}, 1, unclean=unclean)
        assert Elections(built, CONFIG, departing=1).change(topic, 0) == expected
    built, topic = image(partition(1, (1, 3)), {2, 3}, 1, unclean=True)
    assert Elections(built, CONFIG, departing=1).change(topic, 0) == change(isr=[3], leader=3)


def test_the_preferred_replica_leads_only_from_the_isr() -> None:
    for before, expected in (
        (partition(2, (2, 1)), change(leader=1)),
        (partition(2, (2, 3)), None),
        (partition(2, (2, 1), replicas=(2, 1)), None),
    ):
        built, topic = image(before, {1, 2, 3}, 1)
        assert Elections(built, CONFIG).change(topic, 0, kind=ElectionKind.PREFERRED) == expected


@pytest.mark.parametrize(
    ("directory", "may_lead"),
    [
        (b"\xaa" * 16, True),
        (b"\xbb" * 16, False),  # not among those registered: it failed
        (bytes(16), True),  # not assigned yet
        ((1).to_bytes(16, "big"), False),  # lost
    ],
)
def test_a_replica_in_an_offline_directory_may_not_lead(directory: bytes, may_lead: bool) -> None:
    before: Any = partition(-1, (1, 2), directories=(directory,) * 3)
    built, topic = image(before, {1}, 1, directories=(b"\xaa" * 16,))
    expected = change(leader=1) if may_lead else None
    assert Elections(built, CONFIG).change(topic, 0) == expected


def test_a_leader_that_asks_for_fewer_keeps_its_epoch() -> None:
    built, topic = image(partition(1, (1, 2, 3)), {1, 2, 3}, 2)
    assert Elections(built, CONFIG).change(topic, 0, isr=[1]) == change(isr=[1], eligible_leader_replicas=[2, 3])
    built, topic = image(partition(1, (1,), eligible_leader_replicas=(2, 3)), {1, 2, 3}, 2)
    assert Elections(built, CONFIG).change(topic, 0, isr=[1, 2]) == change(isr=[1, 2], eligible_leader_replicas=[])


def test_each_partition_has_the_min_isr_of_its_own_replicas() -> None:
    alone, wide = partition(1, (1,), replicas=(1,)), partition(1, (1, 2))
    for partitions in ((alone, wide), (wide, alone)):
        built, _ = image(alone, {1}, 2)
        topic = TopicImage("t", TOPIC, partitions)
        elections = Elections(built, CONFIG)
        changes = [elections.change(topic, number, isr=[1]) for number in (0, 1)]
        assert [None if each is None else each.eligible_leader_replicas for each in changes] == [
            None if each is alone else [2] for each in partitions
        ]


def test_an_eligible_leader_is_forgotten_when_fewer_replicas_need_fewer_in_sync() -> None:
    """The leader then commits alone, without the eligible leader."""
    before = partition(
        1, (1,), replicas=(1, 2, 3), adding_replicas=(1,), removing_replicas=(3,), eligible_leader_replicas=(2, 3)
    )
    built, topic = image(before, {1, 2, 3}, 3)
    held = Assignment((1, 2))
    found = Elections(built, CONFIG).change(topic, 0, isr=[1], assignment=held)
    assert found is not None
    assert found.eligible_leader_replicas == [2], "of two replicas both must be in sync"
    found = Elections(built, CONFIG).change(topic, 0, isr=[1], assignment=Assignment((1,)))
    assert found is not None
    assert found.eligible_leader_replicas == []


def test_an_eligible_leader_beside_enough_in_sync_is_not_elected() -> None:
    """Kafka's controller counts the replicas of partition 0: it may keep an eligible leader that the leader no longer waits for."""
    built, _ = image(partition(1, (1,), eligible_leader_replicas=(2,)), {2, 3}, 1)
    assert only(Elections(built, CONFIG, departing=1).departures()) == change(
        isr=[], leader=-1, eligible_leader_replicas=[1], last_known_elr=[1]
    )
