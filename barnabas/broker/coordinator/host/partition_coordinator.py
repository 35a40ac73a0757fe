"""PartitionCoordinator: what the node tells the coordinator of an internal topic."""

from __future__ import annotations

from typing import Protocol


class PartitionCoordinator(Protocol):
    """The coordinator of an internal topic."""

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        """This node leads the partition in that leader epoch."""
        ...

    def on_resigned(self, partition: int) -> None:
        """This node no longer leads the partition."""
        ...
