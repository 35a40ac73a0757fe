"""PartitionCoordinator: leadership events of an internal topic."""

from __future__ import annotations

from typing import Protocol


class PartitionCoordinator(Protocol):
    """The coordinator of an internal topic."""

    def on_elected(self, partition: int, leader_epoch: int) -> None: ...

    def on_resigned(self, partition: int) -> None: ...
