"""Assignment: the brokers that hold a partition, during and outside a reassignment.

A value without rules about leaders. A reassignment has two steps: first the old and the new brokers hold the partition together; once
all the new ones are in sync, the new ones hold it alone. The old brokers keep their replicas until then.

Invariants: `adding` and `removing` are parts of `replicas` and have no member in common; the target of a reassignment is `replicas`
without `removing`. Follows KIP-455 and Kafka's PartitionReassignmentReplicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from barnabas.broker.image.image import PartitionImage


class Assignment(NamedTuple):
    """Broker ids of the replicas, the preferred leader first, with those being added and removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @classmethod
    def of(cls, partition: PartitionImage) -> Assignment:
        """The assignment in the image."""
        return cls(partition.replicas, partition.adding_replicas, partition.removing_replicas)

    @property
    def moving(self) -> bool:
        """Whether a reassignment is in progress."""
        return bool(self.adding or self.removing)

    def towards(self, target: Sequence[int]) -> Assignment:
        """The assignment during a reassignment to `target`, from the present one."""
        removing = tuple(sorted(set(self.replicas) - set(target)))
        adding = tuple(sorted(set(target) - set(self.replicas)))
        return Assignment((*target, *removing), adding, removing)

    def cancelled(self) -> Assignment:
        """The assignment before the reassignment."""
        return Assignment(tuple(replica for replica in self.replicas if replica not in self.adding))

    def completed(self, isr: Sequence[int]) -> Assignment | None:
        """The assignment after the reassignment if all of its target are in `isr`; else None."""
        target = tuple(replica for replica in self.replicas if replica not in self.removing)
        return Assignment(target) if self.moving and target and set(target) <= set(isr) else None
