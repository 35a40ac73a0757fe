"""Producer snapshots of one log, and which of them are complete.
Kafka's format has no such flag: the offset `complete_to`, in a checkpoint that Kafka ignores, replaces it.
"""

from __future__ import annotations

from collections.abc import Container

from barnabas.ports import Disk
from barnabas.storage import recovery
from barnabas.storage.log_files import LogFiles
from barnabas.storage.producer_rebuild import LOST_PRODUCERS, SNAPSHOT_SUFFIX
from barnabas.storage.producers import PartitionProducers
from barnabas.storage.segment import file_name


class ProducerSnapshots:
    """Snapshot files of one log.

    Attributes:
        newest: offset of the newest snapshot on disk; 0 without one.
        complete_to: snapshots up to this offset, inclusive, have a complete state; -1: unknown. It may be too low (an
            old checkpoint, or later writes by Kafka): the state is then treated as incomplete, which is always safe.
        lost: committed records may be lost with their producers (file `lost-producers`): no state is complete.
    """

    __slots__ = ("_disk", "_files", "_kept", "complete_to", "lost", "newest")

    def __init__(self, disk: Disk, files: LogFiles) -> None:
        self._disk = disk
        self._files = files
        self.newest = 0
        self.complete_to = -1
        self.lost = False
        self._kept: list[int] = []  # found at the start

    def found(self, offsets: list[int], complete_to: int, *, lost: bool) -> None:
        self.lost = lost
        self._kept = offsets
        self.newest = max(offsets, default=0)
        self.complete_to = complete_to

    def take_superseded(self, bases: Container[int]) -> list[str]:
        """Paths of snapshots older than the newest, at no segment's base in `bases`. Remove them after it is synced."""
        # Not removed at a start, which would wait for the file system for each of many logs.
        kept, self._kept = self._kept, []
        return [
            f"{self._files.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
            for offset in kept
            if offset < self.newest and offset not in bases
        ]

    def store(self, offset: int, state: PartitionProducers) -> None:
        """Writes the state at `offset`, unless a snapshot of this or a higher offset exists."""
        if offset > self.newest:
            self._files.store(file_name(offset, SNAPSHOT_SUFFIX), state.to_snapshot())
            self.newest = offset
            if state.complete:
                self.complete_to = offset

    def clear(self, state: PartitionProducers) -> None:
        """`state` is that of a log that was just emptied."""
        self.newest = 0
        state.complete = state.complete and not self.lost
        self.complete_to = 0 if state.complete else -1

    def lose(self, state: PartitionProducers) -> None:
        """Committed records may be lost: no state of this log is complete any more."""
        if not self.lost:
            self._files.store(LOST_PRODUCERS, b"")
            self.lost = True
        state.complete = False
        self.complete_to = -1

    def cut(self, end_offset: int) -> None:
        for snapshot in recovery.snapshot_offsets(self._disk.listdir(self._files.directory)):
            if snapshot > end_offset:
                self._files.remove(file_name(snapshot, SNAPSHOT_SUFFIX))
        self.newest = min(self.newest, end_offset)
        self.complete_to = min(self.complete_to, end_offset)
