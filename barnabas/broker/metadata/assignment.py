"""Assignment: the brokers that hold a partition, while it moves from some to others.

A value without rules about leaders. A move has two steps: first the partition is held by the old and the new brokers together; once
all the new ones are in sync, by the new ones alone. Whoever is asked to give a partition up keeps it until then.

Invariants: `adding` and `removing` are parts of `replicas` and have no member in common; the target of a move is `replicas`
without `removing`. Follows KIP-455 and Kafka's PartitionReassignmentReplicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from barnabas.broker.metadata.image import PartitionImage

__all__ = ["Assignment"]


class Assignment(NamedTuple):
    """Who holds a partition, the preferred leader first; ids of brokers that come and that go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @classmethod
    def of(cls, partition: PartitionImage) -> Assignment:
        """As the image has it."""
        return cls(partition.replicas, partition.adding_replicas, partition.removing_replicas)

    @property
    def moving(self) -> bool:
        """Whether a move goes on."""
        return bool(self.adding or self.removing)

    def towards(self, target: Sequence[int]) -> Assignment:
        """The first step of a move to `target`, from whatever is held now."""
        removing = tuple(sorted(set(self.replicas) - set(target)))
        adding = tuple(sorted(set(target) - set(self.replicas)))
        return Assignment((*target, *removing), adding, removing)

    def cancelled(self) -> Assignment:
        """Before the move."""
        return Assignment(tuple(replica for replica in self.replicas if replica not in self.adding))

    def completed(self, isr: Sequence[int]) -> Assignment | None:
        """After the move, where all of its target are in `isr`; else None."""
        target = tuple(replica for replica in self.replicas if replica not in self.removing)
        return Assignment(target) if self.moving and target and set(target) <= set(isr) else None
