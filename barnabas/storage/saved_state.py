"""Saved state of a log: the state at an offset, so that a start need not read the log below it.

Driven by: the partition log, which saves its state from time to time; recovery, which reads it. Emits: two files of ours in the
partition's folder, which Kafka ignores, and the entries that .index and .timeindex lack.

`log-state-checkpoint` is written often and never synced. It counts only on the boot that it names: after a kill the page cache still
holds everything that was written, so only the last write may be torn. `synced-state-checkpoint` is written after a sync
of everything that it describes, so it counts after a power loss too.

Each file holds the end offset, the position in the segment, the epochs, the segment's aborted transactions and the producers. It is
believed only if its checksum holds, the index files begin with the bytes that it names, and the batch that ended there is still
the same one: equal offset and leader epoch mean an equal log before it.

Invariants: a cut of the log empties both files before anything is appended behind the cut. Beyond Kafka, which reads the segment
of the recovery point whole.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from typing import Final, NamedTuple

from crc32c import crc32c

from barnabas.ports import Disk
from barnabas.storage.aborted import AbortedTransaction, decode_aborted, encode_aborted
from barnabas.storage.epochs import EpochCache
from barnabas.storage.producers import ProducerState
from barnabas.storage.segment import Segment, StoredIndexes

__all__ = ["LATEST_STATE", "SYNCED_STATE", "SavedState", "StateFiles", "read_states"]

LATEST_STATE: Final = "log-state-checkpoint"
SYNCED_STATE: Final = "synced-state-checkpoint"
_MAGIC: Final = b"BLS1"
# magic, checksum of the rest, length of the rest
_HEAD = struct.Struct(">4sII")
# base offset, end offset, size, position of the last batch, complete, stored indexes; lengths of boot id, header, epochs, aborted, producers
_FIXED = struct.Struct(">qqqq?IIIIHHIII")
_EPOCH = struct.Struct(">iq")


class SavedState(NamedTuple):
    """A log as it was when it ended at `end_offset`.

    Attributes:
        boot_id: of the disk then; "" where everything was synced before this was written.
        base_offset: of the active segment.
        size: its bytes.
        last_position: where its last batch began; `last_header` is that batch's header, empty if there was none.
        indexes: what its index files held.
        aborted: its .txnindex; `producers`: the contents of a .snapshot file; `complete`: as of ProducerState.
    """

    boot_id: str
    base_offset: int
    end_offset: int
    size: int
    last_position: int
    last_header: bytes
    indexes: StoredIndexes
    epochs: list[tuple[int, int]]
    aborted: bytes
    producers: bytes
    complete: bool

    @property
    def synced(self) -> bool:
        """Whether it and what it describes outlast a power loss."""
        return not self.boot_id

    def counts(self, boot_id: str) -> bool:
        """Whether what it describes is still on a disk that names its boot so."""
        return self.synced or self.boot_id == boot_id

    def to_bytes(self) -> bytes:
        """The contents of a file."""
        boot_id = self.boot_id.encode()
        epochs = b"".join(_EPOCH.pack(*entry) for entry in self.epochs)
        rest = b"".join(
            (
                _FIXED.pack(
                    self.base_offset,
                    self.end_offset,
                    self.size,
                    self.last_position,
                    self.complete,
                    *self.indexes,
                    len(boot_id),
                    len(self.last_header),
                    len(epochs),
                    len(self.aborted),
                    len(self.producers),
                ),
                boot_id,
                self.last_header,
                epochs,
                self.aborted,
                self.producers,
            )
        )
        return _HEAD.pack(_MAGIC, crc32c(rest), len(rest)) + rest

    @classmethod
    def from_bytes(cls, data: bytes) -> SavedState | None:
        """Reads a file; None if it is torn or damaged. What follows its end is of an earlier, longer one."""
        if len(data) < _HEAD.size:
            return None
        magic, checksum, length = _HEAD.unpack_from(data)
        rest = memoryview(data)[_HEAD.size : _HEAD.size + length]
        if magic != _MAGIC or len(rest) != length or length < _FIXED.size or crc32c(rest) != checksum:
            return None
        base_offset, end_offset, size, position, complete, *numbers = _FIXED.unpack_from(rest)
        lengths = numbers[4:]
        if _FIXED.size + sum(lengths) != length:
            return None
        parts = []
        start = _FIXED.size
        for part in lengths:
            parts.append(bytes(rest[start : start + part]))
            start += part
        boot_id, header, epochs, aborted, producers = parts
        if len(epochs) % _EPOCH.size:
            return None
        return cls(
            boot_id.decode(errors="replace"),
            base_offset,
            end_offset,
            size,
            position,
            header,
            StoredIndexes(*numbers[:4]),
            list(_EPOCH.iter_unpack(epochs)),
            aborted,
            producers,
            complete,
        )

    def restore(self, segment: Segment) -> bool:
        """Brings a segment, found with all the bytes of its file, to where this state ends. False if it is another log's."""
        if segment.base_offset != self.base_offset or segment.size < self.size:
            return False
        if self.last_header and segment.file.pread(len(self.last_header), self.last_position) != self.last_header:
            return False
        aborted: list[AbortedTransaction] | None = decode_aborted(self.aborted, self.base_offset)
        return aborted is not None and segment.restore(self.size, self.last_position, self.indexes, aborted)


def read_states(disk: Disk, directory: str, names: Container[str]) -> list[SavedState]:
    """The states that are whole, the newest first; only `SavedState.counts` says which may be believed.

    Args:
        names: of the files in the folder.
    """
    found = []
    for name in (LATEST_STATE, SYNCED_STATE):
        state = SavedState.from_bytes(disk.read(f"{directory}/{name}")) if name in names else None
        if state is not None:
            found.append(state)
    return sorted(found, key=lambda state: state.end_offset, reverse=True)


class StateFiles:
    """The two files of one log.

    Attributes:
        end_offset: where the log ended when a state was last saved.
        synced_end_offset: where it ended in the newest synced state.
        size_bytes: of what was last written.
    """

    __slots__ = (
        "_directory",
        "_disk",
        "_unsynced",
        "base_offset",
        "end_offset",
        "position",
        "size_bytes",
        "synced_end_offset",
    )

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._unsynced: SavedState | None = None  # to be written when the log is synced up to its end
        self.end_offset = self.synced_end_offset = -1
        self.base_offset = self.position = 0
        self.size_bytes = 0

    def found(self, states: list[SavedState]) -> None:
        """What recovery found and believed."""
        for state in states:
            self._note(state)
            if state.synced:
                self.synced_end_offset = state.end_offset

    def lack(self, end_offset: int, *, synced: bool) -> bool:
        """Whether the newest state, or synced state, is another one than that of `end_offset`."""
        return (self.synced_end_offset if synced else self.end_offset) != end_offset

    def unsaved_bytes(self, active: Segment) -> int:
        """How much of the log a start would have to read, at least; a roll since the last state counts as the whole new segment."""
        return active.size - self.position if active.base_offset == self.base_offset else active.size

    def _note(self, state: SavedState) -> None:
        if state.end_offset > self.end_offset:
            self.end_offset, self.base_offset, self.position = state.end_offset, state.base_offset, state.size

    def capture(
        self, segment: Segment, end_offset: int, epochs: EpochCache, producers: ProducerState
    ) -> SavedState | None:
        """The state as it is now; the index files must hold every entry. None where damage hides the last batch."""
        position, header = segment.last_batch()
        if segment.size and not header:
            return None
        return SavedState(
            self._disk.boot_id,
            segment.base_offset,
            end_offset,
            segment.size,
            position,
            header,
            segment.stored,
            [entry for entry in epochs.entries if entry[1] < end_offset],
            encode_aborted(segment.aborted),
            producers.to_snapshot(),
            producers.complete,
        )

    def save(self, state: SavedState) -> None:
        """Writes the state for a start on this boot."""
        if not state.boot_id:
            return  # the system does not tell one boot from another
        data = state.to_bytes()
        file = self._disk.open(f"{self._directory}/{LATEST_STATE}", create=True)
        file.pwrite(data, 0)
        file.close()
        self._note(state)
        self.size_bytes = len(data)

    def save_when_synced(self, state: SavedState, recovery_point: int) -> None:
        """Keeps the state until `on_synced` says that the log is durable up to there; it may be already."""
        self._unsynced = state
        self.on_synced(recovery_point)

    def on_synced(self, up_to_offset: int) -> None:
        """Everything that was written while the log ended at `up_to_offset` or below is durable."""
        state = self._unsynced
        if state is None or state.end_offset > up_to_offset:
            return
        self._unsynced = None
        path = f"{self._directory}/{SYNCED_STATE}"
        data = state._replace(boot_id="").to_bytes()
        file = self._disk.open(path + ".tmp", create=True)
        file.truncate(0)
        file.pwrite(data, 0)
        file.close()
        self._disk.rename(path + ".tmp", path)
        self._note(state)
        self.size_bytes = len(data)
        self.synced_end_offset = state.end_offset

    def distrust(self) -> None:
        """The disk failed: it may have dropped what it was given, on the same boot. Raises OSError, if it cannot do that either."""
        self._unsynced = None
        self._disk.remove(f"{self._directory}/{LATEST_STATE}")

    def on_cut(self, end_offset: int) -> list[str]:
        """The log ends at `end_offset` now, -1: it begins anew. Empties what tells of more; returns the paths, to be synced with the cut."""
        changed: list[str] = []
        self._unsynced = None
        if max(self.end_offset, self.synced_end_offset) <= end_offset:
            return changed
        for name in (LATEST_STATE, SYNCED_STATE):
            path = f"{self._directory}/{name}"
            if self._disk.exists(path):
                file = self._disk.open(path)
                file.truncate(0)
                file.close()
                changed.append(path)
        self.end_offset = self.synced_end_offset = -1
        self.base_offset = self.position = 0
        return changed
