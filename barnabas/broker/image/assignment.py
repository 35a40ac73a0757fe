"""Assignment: the brokers of a partition, during and outside a reassignment (KIP-455, Kafka's PartitionReassignmentReplicas)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from barnabas.broker.image.image import PartitionImage


class Assignment(NamedTuple):
    """Broker ids of the replicas, the preferred leader first. The target of a reassignment is `replicas` without `removing`.

    Old and new brokers hold the partition together until all new ones are in sync; then the new ones hold it alone.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @classmethod
    def of(cls, partition: PartitionImage) -> Assignment:
        return cls(partition.replicas, partition.adding_replicas, partition.removing_replicas)

    @property
    def moving(self) -> bool:
        return bool(self.adding or self.removing)

    def towards(self, target: Sequence[int]) -> Assignment:
        """The assignment during a reassignment to `target`, from the present one."""
        removing = tuple(sorted(set(self.replicas) - set(target)))
        adding = tuple(sorted(set(target) - set(self.replicas)))
        return Assignment((*target, *removing), adding, removing)

    def cancelled(self) -> Assignment:
        return Assignment(tuple(replica for replica in self.replicas if replica not in self.adding))

    def completed(self, isr: Sequence[int]) -> Assignment | None:
        """The assignment after the reassignment if all of its target are in `isr`; else None."""
        target = tuple(replica for replica in self.replicas if replica not in self.removing)
        return Assignment(target) if self.moving and target and set(target) <= set(isr) else None
