"""How a group's leader shares partitions out: pure functions by the names that go into JoinGroup.

Driven by: each member's subscription, what it owned in which generation, and the number of partitions of each topic.
Emits: each member's partitions.

Members are ordered by group instance id where they have one, else by member id, as in Kafka, so that every leader (Java,
librdkafka or this one) computes the same by "range" and "roundrobin". The sticky assignors keep Kafka's promises, not its steps:
every partition goes to one subscribed member; no member could take a partition over from one that has two more; as many as
that allows stay where they were. Follows Kafka's RangeAssignor, RoundRobinAssignor, StickyAssignor (KIP-54, KIP-341) and
CooperativeStickyAssignor (KIP-429), without racks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from barnabas.client.types import TopicPartition

__all__ = [
    "ASSIGNORS",
    "COOPERATIVE",
    "Assignor",
    "MemberSubscription",
    "assign_cooperative_sticky",
    "assign_range",
    "assign_roundrobin",
    "assign_sticky",
]


class MemberSubscription(NamedTuple):
    """What a member of the group asked for."""

    member_id: str
    topics: tuple[str, ...]
    group_instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation_id: int = -1  # in which `owned` was assigned


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


def assign_sticky(members: list[MemberSubscription], partition_counts: Mapping[str, int]) -> Assignment:
    """As balanced as subscriptions allow, and as much as that allows stays where it was."""
    ordered = _ordered(members)
    subscribers: dict[str, list[str]] = {}  # topic → members, in order
    for member in ordered:
        for topic in dict.fromkeys(member.topics):
            subscribers.setdefault(topic, []).append(member.member_id)
    former = _former_owners(ordered, subscribers, partition_counts)
    assignment: Assignment = {m.member_id: [] for m in ordered}
    left = []
    for topic in sorted(subscribers, key=lambda topic: (len(subscribers[topic]), topic)):
        for number in range(partition_counts.get(topic, 0)):
            tp = TopicPartition(topic, number)
            if tp in former:
                assignment[former[tp]].append(tp)
            else:
                left.append(tp)
    for tp in left:  # those that few could take come first
        _least(assignment, subscribers[tp.topic]).append(tp)
    while _level_out(assignment, subscribers, former):
        pass
    return {m.member_id: sorted(assignment[m.member_id]) for m in members}


def assign_cooperative_sticky(members: list[MemberSubscription], partition_counts: Mapping[str, int]) -> Assignment:
    """`assign_sticky`, but a partition that another member still owns goes to nobody: that one gives it up, and all join again."""
    assignment = assign_sticky(members, partition_counts)
    owned = {m.member_id: frozenset(m.owned) for m in members}
    anybodys = frozenset(tp for mine in owned.values() for tp in mine)
    return {
        member_id: [tp for tp in mine if tp in owned[member_id] or tp not in anybodys]
        for member_id, mine in assignment.items()
    }


def _former_owners(
    members: list[MemberSubscription], subscribers: Mapping[str, list[str]], partition_counts: Mapping[str, int]
) -> dict[TopicPartition, str]:
    """Who had what, of what may stay. Of two that claim a partition the one of the later generation had it (KIP-341), or neither."""
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        for tp in member.owned:
            if tp.partition >= partition_counts.get(tp.topic, 0) or member.member_id not in subscribers.get(
                tp.topic, ()
            ):
                continue
            generation_id, _ = claims.get(tp, (-2, None))
            if member.generation_id > generation_id:
                claims[tp] = (member.generation_id, member.member_id)
            elif member.generation_id == generation_id:
                claims[tp] = (generation_id, None)
    return {tp: owner for tp, (_, owner) in claims.items() if owner is not None}


def _least(assignment: Assignment, members: list[str]) -> list[TopicPartition]:
    """The share of whoever has the fewest."""
    return min((assignment[member_id] for member_id in members), key=len)


def _level_out(
    assignment: Assignment, subscribers: Mapping[str, list[str]], former: Mapping[TopicPartition, str]
) -> bool:
    """Moves partitions from those with more to those with at least two fewer; whether any was moved.

    Each move makes the sum of squares of the shares smaller, so this comes to an end.
    """
    moved = False
    for member_id in sorted(assignment, key=lambda each: -len(assignment[each])):
        mine = assignment[member_id]
        for tp in sorted(mine, key=lambda tp: (former.get(tp) == member_id, tp)):  # first what was not here before
            share = _least(assignment, subscribers[tp.topic])
            if len(mine) - len(share) > 1:
                mine.remove(tp)
                share.append(tp)
                moved = True
    return moved


ASSIGNORS: dict[str, Assignor] = {
    "range": assign_range,
    "roundrobin": assign_roundrobin,
    "sticky": assign_sticky,
    "cooperative-sticky": assign_cooperative_sticky,
}
COOPERATIVE = frozenset({"cooperative-sticky"})
