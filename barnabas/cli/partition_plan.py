"""Replica placement: balances partitions over brokers and racks with few moves. Pure. Unlike Kafka's tool it keeps replicas that need not move and draws
nothing at random. Replica counts of two brokers differ by more than one only if racks demand it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from barnabas.client.types import TopicPartition

PASSES_MAX: Final = 20


def spread(
    present: Mapping[TopicPartition, Sequence[int]],
    brokers: Mapping[int, str | None],
    replication_factor: int | None = None,
) -> dict[TopicPartition, tuple[int, ...]]:
    """Returns the new replicas of each partition, the preferred leader first.

    Args:
        present: replicas by partition.
        brokers: racks by node id, of the brokers to use; None for all of them: racks do not count.
        replication_factor: of every partition; None keeps the present one of each.

    Raises ValueError: there are fewer brokers than replicas of a partition, or no broker.
    """
    plan = _Plan(brokers)
    for partition, replicas in sorted(present.items()):
        wanted = replication_factor or len(replicas)
        if wanted > len(brokers):
            raise ValueError(
                f"{partition.topic}-{partition.partition} needs {wanted} replicas, and there are {len(brokers)} brokers"
            )
        plan.keep(partition, replicas, wanted)
    plan.fill()
    plan.balance_replicas()
    plan.balance_leaders()
    return {partition: tuple(replicas) for partition, replicas in plan.replicas.items()}


class _Plan:
    def __init__(self, brokers: Mapping[int, str | None]) -> None:
        # Without racks each broker is a rack of its own: then racks do not count.
        self.rack = {node: str(node) if rack is None else f"rack {rack}" for node, rack in brokers.items()}
        self.rack_count = len(set(self.rack.values()))
        self.load = dict.fromkeys(sorted(brokers), 0)  # replicas of a broker
        self.replicas: dict[TopicPartition, list[int]] = {}
        self.missing: dict[TopicPartition, int] = {}

    def keep(self, partition: TopicPartition, replicas: Sequence[int], wanted: int) -> None:
        """Keeps the replicas that may stay."""
        per_rack = -(-wanted // self.rack_count)
        seconds = wanted - min(wanted, self.rack_count)  # replicas that may share a rack, if every rack is used
        kept: list[int] = []
        racks: Counter[str] = Counter()
        for node in replicas:
            rack = self.rack.get(node)
            if rack is not None and racks[rack] < per_rack and len(kept) < wanted:
                if racks[rack]:
                    if not seconds:
                        continue
                    seconds -= 1
                kept.append(node)
                racks[rack] += 1
                self.load[node] += 1
        self.replicas[partition] = kept
        self.missing[partition] = wanted - len(kept)

    def fill(self) -> None:
        """Adds the missing replicas, on the brokers with the fewest replicas."""
        for partition, count in self.missing.items():
            replicas = self.replicas[partition]
            for _ in range(count):
                racks = Counter(self.rack[node] for node in replicas)
                free = [node for node in self.load if node not in replicas]
                chosen = min(free, key=lambda node: (racks[self.rack[node]], self.load[node]))
                replicas.append(chosen)
                self.load[chosen] += 1

    def balance_replicas(self) -> None:
        """Moves replicas from brokers with many to brokers with few, until they differ by one at most."""
        for _ in range(PASSES_MAX):
            moved = False
            for replicas in self.replicas.values():
                for place, node in enumerate(replicas):
                    to = self._better(replicas, node)
                    if to is not None:
                        replicas[place] = to
                        self.load[node] -= 1
                        self.load[to] += 1
                        moved = True
            if not moved:
                return

    def _better(self, replicas: list[int], node: int) -> int | None:
        """The broker that should have the replica of `node` instead; None if it stays."""
        few = self.load[node] - 2
        if min(self.load.values()) > few:
            return None
        others = Counter(self.rack[each] for each in replicas if each != node)
        free = [
            each
            for each, load in self.load.items()
            if load <= few and each not in replicas and others[self.rack[each]] <= others[self.rack[node]]
        ]
        return min(free, key=lambda each: self.load[each], default=None)

    def balance_leaders(self) -> None:
        """Changes the order of replicas, until brokers are the preferred leaders of about as many partitions."""
        leads = Counter(replicas[0] for replicas in self.replicas.values())
        for _ in range(PASSES_MAX):
            changed = False
            for replicas in self.replicas.values():
                first, best = replicas[0], min(replicas, key=lambda node: leads[node])
                if leads[first] - leads[best] >= 2:
                    place = replicas.index(best)
                    replicas[0], replicas[place] = best, first
                    leads[first] -= 1
                    leads[best] += 1
                    changed = True
            if not changed:
                return
