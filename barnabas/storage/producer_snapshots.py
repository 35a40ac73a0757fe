"""ProducerSnapshots: the producer snapshot files of one log, and which of them have a complete state.

Kafka's format has no field for whether a state was complete (`PartitionProducers.complete`). The offset `complete_to` replaces it: each
snapshot of this log up to this offset has a complete state, and so has a state that is rebuilt from the log up to it. Each log directory
keeps these offsets in a checkpoint file that Kafka ignores. If the checkpoint is old or missing, or Kafka has written to the log since,
the offset is too low. A state from a snapshot is then treated as incomplete, which is always safe.

If committed records may have been lost, the state may lack producers, and no file of Kafka records this. The empty file
`lost-producers` does: without it a log that begins at offset 0 would count as complete after a full read.
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
    """The snapshot files of one log. See the module.

    Attributes:
        newest: offset of the newest snapshot on disk; 0 if there is none.
        complete_to: snapshots up to this offset, inclusive, have a complete state; -1: unknown.
        lost: committed records may have been lost, with the state of their producers.
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
        """Sets what a start found on disk."""
        self.lost = lost
        self._kept = offsets
        self.newest = max(offsets, default=0)
        self.complete_to = complete_to

    def take_superseded(self, bases: Container[int]) -> list[str]:
        """Paths of obsolete snapshots of earlier stops: older than the newest one, and without a segment that begins at their offset.

        Remove them after the newest one is synced. A start does not remove them: it would wait for the file system for each of many
        logs.

        Args:
            bases: base offsets of the segments.
        """
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
        """Handles an emptied log: none of its records is on disk, and `state` is the state of an empty log."""
        self.newest = 0
        state.complete = state.complete and not self.lost
        self.complete_to = 0 if state.complete else -1

    def lose(self, state: PartitionProducers) -> None:
        """Notes that committed records may be lost: neither `state` nor a later state is complete. This also holds after a restart,
        unless a power loss happens before the next sync of the log."""
        if not self.lost:
            self._files.store(LOST_PRODUCERS, b"")
            self.lost = True
        state.complete = False
        self.complete_to = -1

    def cut(self, end_offset: int) -> None:
        """Removes the snapshots above the new end of the log."""
        for snapshot in recovery.snapshot_offsets(self._disk.listdir(self._files.directory)):
            if snapshot > end_offset:
                self._files.remove(file_name(snapshot, SNAPSHOT_SUFFIX))
        self.newest = min(self.newest, end_offset)
        self.complete_to = min(self.complete_to, end_offset)
