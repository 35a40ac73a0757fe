"""Server-side assignors: they compute the target assignment of a consumer group.

Driven by: `ConsumerProtocol`, with the subscription and the current target of every member.
Emits: the new target of every member.

`range` gives each topic out in contiguous ranges over the members in order (static ones by instance id, then the others by member
id), so that topics of equal size are partitioned alike. `uniform` balances the number of partitions over members and, as far as
that leaves a choice, keeps partitions where they are: over members that all subscribe to the same topics by quotas, over others
topic by topic, the ones with most partitions a subscriber first, then evened out between the most and the least loaded.

Pure and deterministic: the same members in the same order give the same result.
Invariants: every partition of a subscribed topic is given to exactly one of the topic's subscribers; nobody gets another's topic.
Follows KIP-848 and the assignors of Kafka 4.3 (RangeAssignor, UniformAssignor); where Kafka's order is that of a hash table, the
order here is that of joining, and a surplus partition stays with a member that has one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

__all__ = ["ASSIGNORS", "Assignor", "Partitions", "Subscriber", "assign_range", "assign_uniform"]

Partitions = dict[bytes, tuple[int, ...]]
"""Partitions by topic id, ascending; topics without any are left out."""

BALANCING_ROUNDS_MAX = 16  # each about halves the imbalance; Kafka's bound


class Subscriber(NamedTuple):
    """A member as an assignor sees it.

    Attributes:
        instance_id: of a static member.
        topic_ids: topics it subscribes to that exist.
        target: its present target.
    """

    instance_id: str | None
    topic_ids: frozenset[bytes]
    target: Partitions


Assignor = Callable[[Mapping[str, Subscriber], Mapping[bytes, int]], dict[str, Partitions]]
"""(members by id, partition counts by topic id) → target by member id; members without partitions have an empty one."""


# -- range -------------------------------------------------------------------------------------------------------------


def assign_range(members: Mapping[str, Subscriber], partition_counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """Contiguous ranges of each topic over its subscribers; the first ones get one more where it does not come out even."""
    ordered = sorted(members, key=lambda member_id: _range_order(member_id, members[member_id]))
    result: dict[str, Partitions] = {member_id: {} for member_id in members}
    for topic_id in _topics(members):
        subscribers = [member_id for member_id in ordered if topic_id in members[member_id].topic_ids]
        quota, extra = divmod(partition_counts[topic_id], len(subscribers))
        start = 0
        for position, member_id in enumerate(subscribers):
            end = start + quota + (position < extra)
            if end > start:
                result[member_id][topic_id] = tuple(range(start, end))
            start = end
    return result


def _range_order(member_id: str, member: Subscriber) -> tuple[bool, str]:
    return (False, member.instance_id) if member.instance_id is not None else (True, member_id)


def _topics(members: Mapping[str, Subscriber]) -> list[bytes]:
    """Every subscribed topic, in the order of ids."""
    return sorted({topic_id for member in members.values() for topic_id in member.topic_ids}, key=_java_order)


def _java_order(topic_id: bytes) -> tuple[int, int]:
    """Kafka compares topic ids as two signed numbers."""
    return int.from_bytes(topic_id[:8], "big", signed=True), int.from_bytes(topic_id[8:], "big", signed=True)


# -- uniform -----------------------------------------------------------------------------------------------------------


def assign_uniform(members: Mapping[str, Subscriber], partition_counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """The same number of partitions for everyone, as far as subscriptions allow; what may stay stays."""
    if not members:
        return {}
    if len({member.topic_ids for member in members.values()}) == 1:
        return _by_quota(members, partition_counts)
    return _Balance(members, partition_counts).build()


def _by_quota(members: Mapping[str, Subscriber], partition_counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """All members subscribe to the same topics: everyone has a quota, and gives up what is above it."""
    topics = _topics(members)
    total = sum(partition_counts[topic_id] for topic_id in topics)
    minimum, extra = divmod(total, len(members))
    held = {member_id: _kept(member, partition_counts) for member_id, member in members.items()}
    quotas = dict.fromkeys(members, minimum)
    # Stable: who has more first.
    for member_id in sorted(members, key=lambda member_id: len(held[member_id]) <= minimum):
        if extra:
            quotas[member_id] += 1
            extra -= 1
    result = {member_id: partitions[: quotas[member_id]] for member_id, partitions in held.items()}
    taken = {partition for partitions in result.values() for partition in partitions}
    free = [(t, number) for t in topics for number in range(partition_counts[t]) if (t, number) not in taken]
    following = iter(free)
    for member_id, partitions in result.items():
        for _ in range(quotas[member_id] - len(partitions)):
            partitions.append(next(following))
    return {member_id: _grouped(partitions) for member_id, partitions in result.items()}


def _kept(member: Subscriber, partition_counts: Mapping[bytes, int]) -> list[tuple[bytes, int]]:
    """What the member has and still subscribes to, in a fixed order."""
    return [
        (topic_id, partition)
        for topic_id in sorted(member.target, key=_java_order)
        if topic_id in member.topic_ids
        for partition in member.target[topic_id]
        if partition < partition_counts[topic_id]
    ]


def _grouped(partitions: list[tuple[bytes, int]]) -> Partitions:
    grouped: dict[bytes, list[int]] = {}
    for topic_id, partition in partitions:
        grouped.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(sorted(found)) for topic_id, found in grouped.items()}


class _Balance:
    """Members subscribe to different topics: owners of partitions, moved until the load is even."""

    def __init__(self, members: Mapping[str, Subscriber], partition_counts: Mapping[bytes, int]) -> None:
        self.member_ids = list(members)
        self.load = [0] * len(self.member_ids)
        self.subscribers: dict[bytes, list[int]] = {}
        for index, member in enumerate(members.values()):
            for topic_id in sorted(member.topic_ids, key=_java_order):
                self.subscribers.setdefault(topic_id, []).append(index)
        self.owners: dict[bytes, list[int]] = {t: [-1] * partition_counts[t] for t in self.subscribers}
        for index, member in enumerate(members.values()):
            for topic_id, partition in _kept(member, partition_counts):
                if self.owners[topic_id][partition] < 0:
                    self._give(topic_id, partition, index)

    def build(self) -> dict[str, Partitions]:
        ordered = sorted(self.subscribers, key=self._topic_order)
        for topic_id in ordered:
            self._fill(topic_id)
        self._even_out([topic_id for topic_id in ordered if len(self.subscribers[topic_id]) > 1])
        result: dict[str, list[tuple[bytes, int]]] = {member_id: [] for member_id in self.member_ids}
        for topic_id, owners in self.owners.items():
            for partition, index in enumerate(owners):
                result[self.member_ids[index]].append((topic_id, partition))
        return {member_id: _grouped(partitions) for member_id, partitions in result.items()}

    def _topic_order(self, topic_id: bytes) -> tuple[float, int, tuple[int, int]]:
        """Most partitions a subscriber first, then fewest subscribers."""
        subscribers = len(self.subscribers[topic_id])
        return -len(self.owners[topic_id]) / subscribers, subscribers, _java_order(topic_id)

    def _give(self, topic_id: bytes, partition: int, index: int) -> None:
        former = self.owners[topic_id][partition]
        if former >= 0:
            self.load[former] -= 1
        self.owners[topic_id][partition] = index
        self.load[index] += 1

    def _by_load(self, topic_id: bytes) -> list[int]:
        return sorted(self.subscribers[topic_id], key=lambda index: (self.load[index], index))

    def _fill(self, topic_id: bytes) -> None:
        """Gives partitions without an owner to whoever has least."""
        free = [partition for partition, index in enumerate(self.owners[topic_id]) if index < 0]
        if not free:
            return
        least = [(self.load[index], position, index) for position, index in enumerate(self._by_load(topic_id))]
        heapq.heapify(least)
        for partition in free:
            load, position, index = least[0]
            self._give(topic_id, partition, index)
            heapq.heapreplace(least, (load + 1, position, index))

    def _even_out(self, topic_ids: list[bytes]) -> None:
        """Rounds over the topics, until one goes by without a move."""
        last_moved: bytes | None = None
        for _ in range(BALANCING_ROUNDS_MAX):
            for topic_id in topic_ids:
                if topic_id == last_moved:
                    return
                if self._move(topic_id) or last_moved is None:
                    last_moved = topic_id

    def _move(self, topic_id: bytes) -> bool:
        """Moves partitions of one topic from its most to its least loaded subscribers, each at most once."""
        ordered = self._by_load(topic_id)
        if self.load[ordered[-1]] - self.load[ordered[0]] <= 1:
            return False
        owned: dict[int, list[int]] = {}
        for partition, index in enumerate(self.owners[topic_id]):
            owned.setdefault(index, []).append(partition)
        least = [(self.load[index], position, index) for position, index in enumerate(ordered)]
        most = [(-self.load[index], -position, index) for position, index in enumerate(ordered) if index in owned]
        heapq.heapify(least)
        heapq.heapify(most)
        moved = False
        while most:
            negative_load, position, giver = heapq.heappop(most)
            while self.load[least[0][2]] != least[0][0]:  # changed since as a giver
                _, at, index = heapq.heappop(least)
                heapq.heappush(least, (self.load[index], at, index))
            taker = least[0][2]
            if -negative_load - self.load[taker] <= 1:
                break
            self._give(topic_id, owned[giver].pop(), taker)
            moved = True
            heapq.heapreplace(least, (self.load[taker], least[0][1], taker))
            if owned[giver]:
                heapq.heappush(most, (-self.load[giver], position, giver))
        return moved


ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By the name that members and `group.consumer.assignors` use."""
