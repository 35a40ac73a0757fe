"""Saved state of a log: the state at an offset, so that a start need not read the log below it.

Driven by: the partition log, which saves its state from time to time; recovery, which reads it. Emits: two files in the
partition's folder, which Kafka ignores, and the entries that .index and .timeindex lack.

`log-state-checkpoint` is written often and never synced. It is valid only on the boot that it names: after a kill the page cache still
has everything that was written, so only the last write may be torn. `synced-state-checkpoint` is written after a sync
of everything that it describes, so it is also valid after a power loss.

Each file has the end offset, the position in the segment, the epochs, the segment's aborted transactions and the producers. It is
used only if its checksum is valid, the index files begin with the bytes that it names, and the log still has the batch that ended
there: equal offset and leader epoch mean an equal log before it.

Invariants: a truncation of the log empties both files before the next append. Kafka has no such files and reads the whole segment
of the recovery point.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from typing import Final, NamedTuple

from barnabas.ports import Disk
from barnabas.protocol.checksum import crc32c
from barnabas.storage.aborted import AbortedTxn, decode_aborted, encode_aborted
from barnabas.storage.epochs import EpochCache
from barnabas.storage.producers import PartitionProducers
from barnabas.storage.segment import Segment, StoredIndexes
from barnabas.work import Steps

__all__ = ["LATEST_STATE", "SYNCED_STATE", "SavedState", "StateFiles", "read_states"]

LATEST_STATE: Final = "log-state-checkpoint"
SYNCED_STATE: Final = "synced-state-checkpoint"
_MAGIC: Final = b"BLS2"
# magic, checksum of the rest, length of the rest
_HEAD = struct.Struct(">4sII")
# base offset, end offset, size, position of the last batch, complete, stored indexes; lengths of boot id, header, epochs, aborted, producers, earlier
_FIXED = struct.Struct(">qqqq?IIIIHHIIII")
_EPOCH = struct.Struct(">iq")


class SavedState(NamedTuple):
    """A log as it was when it ended at `end_offset`.

    Attributes:
        boot_id: of the disk at that time; "" if everything was synced before this was written.
        base_offset: of the active segment.
        size: of the active segment, in bytes.
        last_position: position of its last batch; `last_header` is that batch's header, empty if there was none.
        indexes: the contents of its index files.
        aborted: its .txnindex; `producers` and `earlier`: as in PackedProducers; `complete`: as in PartitionProducers.
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
    earlier: bytes
    complete: bool

    @property
    def synced(self) -> bool:
        """Whether the state and the log that it describes survive a power loss."""
        return not self.boot_id

    def counts(self, boot_id: str) -> bool:
        """Whether the state is valid on a disk with this boot id."""
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
                    len(self.earlier),
                ),
                boot_id,
                self.last_header,
                epochs,
                self.aborted,
                self.producers,
                self.earlier,
            )
        )
        return _HEAD.pack(_MAGIC, crc32c(rest), len(rest)) + rest

    @classmethod
    def from_bytes(cls, data: bytes) -> SavedState | None:
        """Reads a file; None if it is torn or damaged. Ignores bytes after its end, which belong to an earlier, longer state."""
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
        boot_id, header, epochs, aborted, producers, earlier = parts
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
            earlier,
            complete,
        )

    def restore(self, segment: Segment) -> bool:
        """Sets a loaded segment to the end of this state. Returns False if the state belongs to another log."""
        if segment.base_offset != self.base_offset or segment.size < self.size:
            return False
        if self.last_header and segment.file.pread(len(self.last_header), self.last_position) != self.last_header:
            return False
        aborted: list[AbortedTxn] | None = decode_aborted(self.aborted, self.base_offset)
        return aborted is not None and segment.restore(self.size, self.last_position, self.indexes, aborted)


def read_states(disk: Disk, directory: str, names: Container[str]) -> list[SavedState]:
    """The undamaged states, newest first. `SavedState.counts` tells whether a state is valid.

    Args:
        names: names of the files in the folder.
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
        end_offset: the end of the log when a state was last saved.
        synced_end_offset: the end of the log in the newest synced state.
        size_bytes: of the last written state.
        trusted: changes when no state that was captured before may be written any more.
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
        "trusted",
    )

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._unsynced: SavedState | None = None  # it is written when the log is synced up to its end
        self.end_offset = self.synced_end_offset = -1
        self.base_offset = self.position = 0
        self.size_bytes = 0
        self.trusted = object()

    def found(self, states: list[SavedState]) -> None:
        """Sets the states that recovery found and used."""
        for state in states:
            self._note(state)
            if state.synced:
                self.synced_end_offset = state.end_offset

    def lack(self, end_offset: int, *, synced: bool) -> bool:
        """Whether the newest state, or synced state, has another end than `end_offset`."""
        return (self.synced_end_offset if synced else self.end_offset) != end_offset

    def unsaved_bytes(self, active: Segment) -> int:
        """The least number of bytes that a start would have to read. After a roll since the last state: the whole new segment."""
        return active.size - self.position if active.base_offset == self.base_offset else active.size

    def _note(self, state: SavedState) -> None:
        if state.end_offset > self.end_offset:
            self.end_offset, self.base_offset, self.position = state.end_offset, state.base_offset, state.size

    def capturing(
        self, segment: Segment, end_offset: int, epochs: EpochCache, producers: PartitionProducers
    ) -> Steps[SavedState | None]:
        """Returns the state of the first step. The index files must have every entry. None if the last batch is damaged."""
        position, header = segment.last_batch()
        if segment.size and not header:
            return None
        state = SavedState(
            self._disk.boot_id,
            segment.base_offset,
            end_offset,
            segment.size,
            position,
            header,
            segment.stored,
            [entry for entry in epochs.entries if entry[1] < end_offset],
            encode_aborted(segment.aborted),
            b"",
            b"",
            producers.complete,
        )
        packed = yield from producers.capture().packing()
        return state._replace(producers=packed.snapshot, earlier=packed.earlier)

    def save(self, state: SavedState) -> None:
        """Writes the state for a start on this boot."""
        if not state.boot_id or state.end_offset < self.end_offset:
            return  # the system has no boot id; or a later state was saved while this one was packed
        data = state.to_bytes()
        file = self._disk.open(f"{self._directory}/{LATEST_STATE}", create=True)
        file.pwrite(data, 0)
        file.close()
        self._note(state)
        self.size_bytes = len(data)

    def save_when_synced(self, state: SavedState, recovery_point: int) -> None:
        """Keeps the state until the log is durable up to its end, and then writes it; at once if it is durable already."""
        if state.end_offset < self.synced_end_offset:
            return  # a later state was saved while this one was packed
        self._unsynced = state
        self.on_synced(recovery_point)

    def on_synced(self, up_to_offset: int) -> None:
        """Handles the end of a sync: all writes up to the log end `up_to_offset` are durable."""
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
        """Removes the state after a failure of the disk, which may have lost writes within the same boot. Raises OSError if that fails."""
        self.drop()
        self._disk.remove(f"{self._directory}/{LATEST_STATE}")

    def drop(self) -> None:
        """States that are not written yet are never written: the log was truncated or closed, or its disk failed."""
        self._unsynced = None
        self.trusted = object()

    def on_cut(self, end_offset: int) -> list[str]:
        """Handles a truncation to `end_offset`; -1: the log is emptied. Empties files of states beyond it, and returns their paths.
        The caller syncs them together with the truncation."""
        changed: list[str] = []
        self.drop()
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
