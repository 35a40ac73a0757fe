"""Who leads when brokers come and go: a table of partitions, and Kafka's own records."""

from __future__ import annotations

import pytest

from barnabas.broker.metadata.elections import after_arrival, after_departure
from barnabas.broker.metadata.image import PartitionImage
from barnabas.broker.metadata.records import PartitionChangeRecord

TOPIC = bytes(15) + b"t"


def partition(leader: int, isr: tuple[int, ...], **rest: object) -> PartitionImage:
    replicas = rest.pop("replicas", (1, 2, 3))
    return PartitionImage(leader, 5, 7, replicas, isr, (), **rest)  # type: ignore[arg-type]


def change(**fields: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=0, topic_id=TOPIC, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "broker", "alive", "min_isr", "clean", "expected"),
    [
        # One replica, shut down cleanly: what Kafka writes.
        (
            partition(1, (1,), replicas=(1,)), 1, set(), 1, True,
            change(isr=[], leader=-1, eligible_leader_replicas=[1], last_known_elr=[1]),
        ),
        # The same after an unclean stop: the broker may have lost what it had not synced.
        (partition(1, (1,), replicas=(1,)), 1, set(), 1, False, change(isr=[], leader=-1, last_known_elr=[1])),
        # Three replicas: the next of the ISR leads, in the order of the replicas.
        (partition(1, (1, 3, 2)), 1, {2, 3}, 1, True, change(isr=[3, 2], leader=2)),
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
    ],
)  # fmt: skip
def test_departures(
    before: PartitionImage, broker: int, alive: set[int], min_isr: int, clean: bool, expected: object
) -> None:
    assert after_departure(TOPIC, 0, before, broker, alive=alive, min_isr=min_isr, clean=clean) == expected


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
        # A clean election ends the recovery.
        (
            partition(-1, (), replicas=(1,), eligible_leader_replicas=(1,), leader_recovery_state=1), {1}, 1,
            change(isr=[1], leader=1, leader_recovery_state=0, eligible_leader_replicas=[]),
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
    assert after_arrival(TOPIC, 0, before, alive=alive, min_isr=min_isr) == expected
