"""Classic assignors, pure, by their names in JoinGroup. Members are ordered as in Kafka, so all leaders agree.
The sticky ones have the properties of Kafka's (KIP-54, KIP-341, KIP-429), but other steps. Racks are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from barnabas.client.errors import IllegalState
from barnabas.client.types import TopicPartition


class MemberSubscription(NamedTuple):
    """Subscription of one member."""

    member_id: str
    topics: tuple[str, ...]
    group_instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation_id: int = -1  # the generation in which `owned` was assigned


_Assignment = dict[str, list[TopicPartition]]  # member id → its partitions
Assignor = Callable[[list[MemberSubscription], Mapping[str, int]], _Assignment]


def _ordered(members: list[MemberSubscription]) -> list[MemberSubscription]:
    """Static members first, by instance id; then dynamic ones, by member id, as Kafka's MemberInfo compares."""

    def key(member: MemberSubscription) -> tuple[bool, str]:
        if member.group_instance_id is not None:
            return (False, member.group_instance_id)
        return (True, member.member_id)

    return sorted(members, key=key)


def assign_range(members: list[MemberSubscription], partition_counts: Mapping[str, int]) -> _Assignment:
    """By topic: consecutive partitions to each subscribed member. The first members get one more if it does not divide."""
    assignment: _Assignment = {m.member_id: [] for m in members}
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


def assign_roundrobin(members: list[MemberSubscription], partition_counts: Mapping[str, int]) -> _Assignment:
    """All partitions in order, each to the next member that subscribes to its topic."""
    assignment: _Assignment = {m.member_id: [] for m in members}
    ordered = _ordered(members)
    turn = 0
    for topic in sorted({t for m in members for t in m.topics}):
        for partition in range(partition_counts.get(topic, 0)):
            while topic not in ordered[turn % len(ordered)].topics:
                turn += 1
            assignment[ordered[turn % len(ordered)].member_id].append(TopicPartition(topic, partition))
            turn += 1
    return assignment


def assign_sticky(members: list[MemberSubscription], partition_counts: Mapping[str, int]) -> _Assignment:
    """As balanced as the subscriptions allow; as many partitions as possible stay with their owner."""
    ordered = _ordered(members)
    subscribers: dict[str, list[str]] = {}  # topic → members, in order
    for member in ordered:
        for topic in dict.fromkeys(member.topics):
            subscribers.setdefault(topic, []).append(member.member_id)
    former = _former_owners(ordered, subscribers, partition_counts)
    assignment: _Assignment = {m.member_id: [] for m in ordered}
    left = []
    for topic in sorted(subscribers, key=lambda topic: (len(subscribers[topic]), topic)):
        for number in range(partition_counts.get(topic, 0)):
            tp = TopicPartition(topic, number)
            if tp in former:
                assignment[former[tp]].append(tp)
            else:
                left.append(tp)
    for tp in left:  # topics with few subscribers come first
        _least(assignment, subscribers[tp.topic]).append(tp)
    while _level_out(assignment, subscribers, former):
        pass
    return {m.member_id: sorted(assignment[m.member_id]) for m in members}


def assign_cooperative_sticky(members: list[MemberSubscription], partition_counts: Mapping[str, int]) -> _Assignment:
    """As `assign_sticky` without moving partitions: their owner revokes them first, and all members join again."""
    assignment = assign_sticky(members, partition_counts)
    owned = {m.member_id: frozenset(m.owned) for m in members}
    owned_by_any = frozenset(tp for partitions in owned.values() for tp in partitions)
    return {
        member_id: [tp for tp in partitions if tp in owned[member_id] or tp not in owned_by_any]
        for member_id, partitions in assignment.items()
    }


def _former_owners(
    members: list[MemberSubscription], subscribers: Mapping[str, list[str]], partition_counts: Mapping[str, int]
) -> dict[TopicPartition, str]:
    """The former owner of each partition. If two members claim one, the later generation counts, or neither (KIP-341)."""
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


def _least(assignment: _Assignment, members: list[str]) -> list[TopicPartition]:
    return min((assignment[member_id] for member_id in members), key=len)


def _level_out(
    assignment: _Assignment, subscribers: Mapping[str, list[str]], former: Mapping[TopicPartition, str]
) -> bool:
    """Moves partitions to members with at least two fewer; returns whether any moved."""
    moved = False
    for member_id in sorted(assignment, key=lambda each: -len(assignment[each])):
        mine = assignment[member_id]
        # first those that the member did not own
        for tp in sorted(mine, key=lambda tp: (former.get(tp) == member_id, tp)):
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


def check_strategies(strategies: Sequence[str]) -> None:
    if not strategies or any(name not in ASSIGNORS for name in strategies):
        raise IllegalState(f"partition_assignment_strategy {list(strategies)!r}: known are {sorted(ASSIGNORS)}")
