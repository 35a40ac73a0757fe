"""KIP-848 assignors `range` and `uniform`: pure, deterministic; each partition of a subscribed topic gets exactly one subscriber.
After Kafka 4.3 (RangeAssignor, UniformAssignor). Where Kafka uses the order of a hash table, the order here is that of joining, and a
surplus partition stays with a member that has one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from typing import Final, NamedTuple

Partitions = dict[bytes, tuple[int, ...]]
"""Topic id → partitions, ascending; only topics with partitions."""

BALANCING_ROUNDS_MAX = 16  # each round about halves the imbalance; the same limit as in Kafka


class SubscribedMember(NamedTuple):
    """A member as an assignor sees it."""

    instance_id: str | None  # None for a dynamic member
    topic_ids: frozenset[bytes]  # existing topics to which the member subscribes
    target: Partitions  # its current target assignment


Assignor = Callable[[Mapping[str, SubscribedMember], Mapping[bytes, int]], dict[str, Partitions]]
"""(Members by id, numbers of partitions by topic id) → target assignments by member id, also empty ones."""


# -- range -------------------------------------------------------------------------------------------------------------


def assign_range(
    members: Mapping[str, SubscribedMember], partition_counts: Mapping[bytes, int]
) -> dict[str, Partitions]:
    """Contiguous ranges of each topic: static members by instance id, then the others by member id; the first get one more."""
    ordered = sorted(members, key=lambda member_id: _range_order(member_id, members[member_id]))
    result: dict[str, Partitions] = {member_id: {} for member_id in members}
    alike = len({member.topic_ids for member in members.values()}) == 1
    for topic_id in _topics(members):
        subscribers = ordered
        if not alike:
            subscribers = [member_id for member_id in ordered if topic_id in members[member_id].topic_ids]
        count = partition_counts[topic_id]
        quota, extra = divmod(count, len(subscribers))
        start = 0
        for position, member_id in enumerate(subscribers[:count]):
            end = start + quota + (position < extra)
            result[member_id][topic_id] = tuple(range(start, end))
            start = end
    return result


def _range_order(member_id: str, member: SubscribedMember) -> tuple[bool, str]:
    return (False, member.instance_id) if member.instance_id is not None else (True, member_id)


def _topics(members: Mapping[str, SubscribedMember]) -> list[bytes]:
    return sorted(frozenset().union(*{member.topic_ids for member in members.values()}), key=_java_order)


def _java_order(topic_id: bytes) -> tuple[int, int]:
    """Kafka compares topic ids as two signed numbers."""
    return int.from_bytes(topic_id[:8], "big", signed=True), int.from_bytes(topic_id[8:], "big", signed=True)


# -- uniform -----------------------------------------------------------------------------------------------------------


def assign_uniform(
    members: Mapping[str, SubscribedMember], partition_counts: Mapping[bytes, int]
) -> dict[str, Partitions]:
    """Same number of partitions for all members, as far as subscriptions allow, with few moves."""
    if not members:
        return {}
    if len({member.topic_ids for member in members.values()}) == 1:
        return _by_quota(members, partition_counts)
    return _Balance(members, partition_counts).build()


def _by_quota(members: Mapping[str, SubscribedMember], partition_counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """All members subscribe to the same topics: a member loses what is above its quota; an unchanged member costs one look at its target."""
    topics = _topics(members)
    total = sum(partition_counts[topic_id] for topic_id in topics)
    minimum, extra = divmod(total, len(members))
    result: dict[str, Partitions] = {}
    sizes: dict[str, int] = {}
    for member_id, member in members.items():
        target = result[member_id] = _kept(member, partition_counts) if member.target else member.target
        sizes[member_id] = sum(map(len, target.values())) if target else 0
    # Members above the minimum come first.
    first = (member_id for member_id, size in sizes.items() if size > minimum)
    others = (member_id for member_id, size in sizes.items() if size <= minimum)
    with_extra = set(islice(chain(first, others), extra))
    taken = {topic_id: bytearray(partition_counts[topic_id]) for topic_id in topics}
    wanting: dict[str, int] = {}
    for member_id, target in result.items():
        missing = minimum + (member_id in with_extra) - sizes[member_id]
        if missing > 0:
            wanting[member_id] = missing
        elif missing < 0:
            target = result[member_id] = _first(target, sizes[member_id] + missing)
        for topic_id, numbers in target.items():
            found = taken[topic_id]
            for number in numbers:
                found[number] = 1
    free = ((topic_id, number) for topic_id in topics for number, used in enumerate(taken[topic_id]) if not used)
    for member_id, missing in wanting.items():
        result[member_id] = _with(result[member_id], islice(free, missing))
    return result


def _kept(member: SubscribedMember, partition_counts: Mapping[bytes, int]) -> Partitions:
    """The part of a member's target to which it still subscribes, the target itself if that is all."""
    target, topic_ids = member.target, member.topic_ids
    if all(
        topic_id in topic_ids and found and found[-1] < partition_counts[topic_id] for topic_id, found in target.items()
    ):
        return target
    kept = {
        topic_id: tuple(number for number in found if number < partition_counts[topic_id])
        for topic_id, found in target.items()
        if topic_id in topic_ids
    }
    return {topic_id: numbers for topic_id, numbers in kept.items() if numbers}


def _first(target: Partitions, count: int) -> Partitions:
    result: Partitions = {}
    for topic_id in sorted(target, key=_java_order):
        numbers = target[topic_id][:count]
        if not numbers:
            break
        result[topic_id] = numbers
        count -= len(numbers)
    return result


def _with(target: Partitions, added: Iterable[tuple[bytes, int]]) -> Partitions:
    grouped = {topic_id: list(target[topic_id]) for topic_id in sorted(target, key=_java_order)}
    for topic_id, number in added:
        grouped.setdefault(topic_id, []).append(number)
    return {topic_id: tuple(sorted(numbers)) for topic_id, numbers in grouped.items()}


class _Balance:
    """Assignment for different subscriptions: fills topics one by one, then moves partitions until the load is even."""

    def __init__(self, members: Mapping[str, SubscribedMember], partition_counts: Mapping[bytes, int]) -> None:
        self.member_ids = list(members)
        self.load = [0] * len(self.member_ids)
        self.subscribers: dict[bytes, list[int]] = {}
        for index, member in enumerate(members.values()):
            for topic_id in sorted(member.topic_ids, key=_java_order):
                self.subscribers.setdefault(topic_id, []).append(index)
        self.owners: dict[bytes, list[int]] = {t: [-1] * partition_counts[t] for t in self.subscribers}
        for index, member in enumerate(members.values()):
            for topic_id, numbers in _kept(member, partition_counts).items():
                owners = self.owners[topic_id]
                for partition in numbers:
                    if owners[partition] < 0:
                        owners[partition] = index
                        self.load[index] += 1

    def build(self) -> dict[str, Partitions]:
        ordered = sorted(self.subscribers, key=self._topic_order)
        for topic_id in ordered:
            self._fill(topic_id)
        self._even_out([topic_id for topic_id in ordered if len(self.subscribers[topic_id]) > 1])
        result: list[Partitions] = [{} for _ in self.member_ids]
        for topic_id, owners in self.owners.items():
            found: dict[int, list[int]] = {}
            for partition, index in enumerate(owners):
                found.setdefault(index, []).append(partition)
            for index, numbers in found.items():
                result[index][topic_id] = tuple(numbers)
        return dict(zip(self.member_ids, result, strict=True))

    def _topic_order(self, topic_id: bytes) -> tuple[float, int, tuple[int, int]]:
        """Most partitions for each subscriber first, then fewest subscribers."""
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
        """Assigns partitions without an owner to the member with least partitions."""
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
        """Moves partitions topic by topic, until a whole round moves none."""
        last_moved: bytes | None = None
        for _ in range(BALANCING_ROUNDS_MAX):
            for topic_id in topic_ids:
                if topic_id == last_moved:
                    return
                if self._move(topic_id) or last_moved is None:
                    last_moved = topic_id

    def _move(self, topic_id: bytes) -> bool:
        """From subscribers with most partitions to those with least; each partition at most once."""
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
            negative_load, position, donor = heapq.heappop(most)
            while self.load[least[0][2]] != least[0][0]:  # its load changed when it lost a partition
                _, at, index = heapq.heappop(least)
                heapq.heappush(least, (self.load[index], at, index))
            receiver = least[0][2]
            if -negative_load - self.load[receiver] <= 1:
                break
            self._give(topic_id, owned[donor].pop(), receiver)
            moved = True
            heapq.heapreplace(least, (self.load[receiver], least[0][1], receiver))
            if owned[donor]:
                heapq.heappush(most, (-self.load[donor], position, donor))
        return moved


ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""The assignors by name, as members and `group.consumer.assignors` name them."""
