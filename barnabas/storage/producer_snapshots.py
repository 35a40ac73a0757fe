"""ProducerSnapshots: the producer snapshot files of one log, and which of them hold a complete state.

Driven by: the partition log: at a roll, at a clean stop, at a cut. Emits: `.snapshot` files in Kafka's format.

Kafka's format cannot say whether a state was complete (`ProducerState.complete`). The offset `complete_to` says it: every snapshot
of this log up to this offset holds a complete state, and so does a state that is rebuilt from the log up to it. Each log directory
keeps these offsets in a checkpoint file that Kafka ignores. If the checkpoint is old or missing, or Kafka has written to the log since,
the offset is too low. A state from a snapshot is then treated as one that has forgotten a producer, which is always safe.

Where committed records may have been lost, producers may be missing that no file of Kafka's tells of. An empty file, `lost-producers`,
says so from then on; without it a log that begins at offset 0 would count as complete after it is read whole.
"""

from __future__ import annotations

from collections.abc import Container

from barnabas.ports import Disk
from barnabas.storage import recovery
from barnabas.storage.log_files import LogFiles
from barnabas.storage.producer_rebuild import LOST_PRODUCERS, SNAPSHOT_SUFFIX
from barnabas.storage.producers import ProducerState
from barnabas.storage.segment import file_name

__all__ = ["ProducerSnapshots"]


class ProducerSnapshots:
    """See the module.

    Attributes:
        newest: offset of the newest snapshot on disk; 0 if there is none.
        complete_to: snapshots up to this offset, inclusive, are of a complete state; -1: none is known to be.
        lost: committed records may have been lost, with all that was known of their producers.
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
        """What a start found on disk."""
        self.lost = lost
        self._kept = offsets
        self.newest = max(offsets, default=0)
        self.complete_to = complete_to

    def take_superseded(self, bases: Container[int]) -> list[str]:
        """Paths of what earlier stops left: of no segment that begins at one of `bases`, and older than the newest one. To be removed
        when that is synced, not by a start, which would wait for the file system with each of many logs."""
        kept, self._kept = self._kept, []
        return [
            f"{self._files.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
            for offset in kept
            if offset < self.newest and offset not in bases
        ]

    def store(self, offset: int, state: ProducerState) -> None:
        """Writes the state at `offset`, unless there is a snapshot of it or a newer one."""
        if offset > self.newest:
            self._files.store(file_name(offset, SNAPSHOT_SUFFIX), state.to_snapshot())
            self.newest = offset
            if state.complete:
                self.complete_to = offset

    def clear(self, state: ProducerState) -> None:
        """The log is empty: nothing of it is on disk, and `state` is that of an empty log."""
        self.newest = 0
        state.complete = state.complete and not self.lost
        self.complete_to = 0 if state.complete else -1

    def lose(self, state: ProducerState) -> None:
        """Committed records may be lost: neither `state` nor a later one is complete. Over restarts, too, of which a power loss before
        the next sync of the log is not one."""
        if not self.lost:
            self._files.store(LOST_PRODUCERS, b"")
            self.lost = True
        state.complete = False
        self.complete_to = -1

    def cut(self, end_offset: int) -> None:
        """Removes the snapshots above the log's new end."""
        for snapshot in recovery.snapshot_offsets(self._disk.listdir(self._files.directory)):
            if snapshot > end_offset:
                self._files.remove(file_name(snapshot, SNAPSHOT_SUFFIX))
        self.newest = min(self.newest, end_offset)
        self.complete_to = min(self.complete_to, end_offset)
