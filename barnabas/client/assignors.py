"""How a group's leader shares partitions out: pure functions by the names that go into JoinGroup.

Driven by: each member's subscription and the number of partitions of each topic.
Emits: each member's partitions.

Members are ordered by group instance id where they have one, else by member id, as in Kafka, so that every leader (Java,
librdkafka or this one) computes the same. Follows Kafka's RangeAssignor and RoundRobinAssignor, without racks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from barnabas.client.types import TopicPartition

__all__ = ["ASSIGNORS", "Assignor", "MemberSubscription", "assign_range", "assign_roundrobin"]


class MemberSubscription(NamedTuple):
    """What a member of the group asked for."""

    member_id: str
    topics: tuple[str, ...]
    group_instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()


Assignment = dict[str, list[TopicPartition]]  # member id → its partitions
Assignor = Callable[[list[MemberSubscription], Mapping[str, int]], Assignment]


def _ordered(members: list[MemberSubscription]) -> list[MemberSubscription]:
    """Static members first among each other by instance id, as Kafka's MemberInfo compares."""

    def key(member: MemberSubscription) -> tuple[bool, str]:
        if member.group_instance_id is not None:
            return (False, member.group_instance_id)
        return (True, member.member_id)

    return sorted(members, key=key)


def assign_range(members: list[MemberSubscription], partition_counts: Mapping[str, int]) -> Assignment:
    """Topic by topic: neighbouring partitions to each subscribed member, the first members get one more where it does not divide."""
    assignment: Assignment = {m.member_id: [] for m in members}
    for topic in sorted({t for m in members for t in m.topics}):
        count = partition_counts.get(topic, 0)
        subscribed = _ordered([m for m in members if topic in m.topics])
        if not count or not subscribed:
            continue
        share, extra = divmod(count, len(subscribed))
        start = 0
        for i, member in enumerate(subscribed):
            stop = start + share + (1 if i < extra else 0)
            assignment[member.member_id] += [TopicPartition(topic, p) for p in range(start, stop)]
            start = stop
    return assignment


def assign_roundrobin(members: list[MemberSubscription], partition_counts: Mapping[str, int]) -> Assignment:
    """All partitions of all topics one after the other, each to the next member that subscribes to its topic."""
    assignment: Assignment = {m.member_id: [] for m in members}
    ordered = _ordered(members)
    turn = 0
    for topic in sorted({t for m in members for t in m.topics}):
        for partition in range(partition_counts.get(topic, 0)):
            while topic not in ordered[turn % len(ordered)].topics:
                turn += 1
            assignment[ordered[turn % len(ordered)].member_id].append(TopicPartition(topic, partition))
            turn += 1
    return assignment


ASSIGNORS: dict[str, Assignor] = {"range": assign_range, "roundrobin": assign_roundrobin}
