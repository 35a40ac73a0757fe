"""Saved state of a log (`synced-state-checkpoint`, not in Kafka): a start skips the log below it.
It is written after a sync of everything in it, so it is valid after a power loss or a volume's revert to a snapshot.
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

SYNCED_STATE: Final = "synced-state-checkpoint"
_MAGIC: Final = b"BLS3"
# magic, checksum of the rest, length of the rest
_HEAD = struct.Struct(">4sII")
# base offset, end offset, size, position of the last batch, complete, stored indexes; lengths of header, epochs, aborted, producers, earlier
_FIXED = struct.Struct(">qqqq?IIIIHIIII")
_EPOCH = struct.Struct(">iq")


class SavedState(NamedTuple):
    """A log as it was when it ended at `end_offset`.

    Attributes:
        base_offset, size: of the active segment (bytes).
        last_position: position of its last batch; `last_header` is that batch's header, empty without one.
        indexes: the contents of its index files.
        aborted: its .txnindex; `producers` and `earlier`: as in PackedProducers; `complete`: as in PartitionProducers.
    """

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

    def to_bytes(self) -> bytes:
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
                    len(self.last_header),
                    len(epochs),
                    len(self.aborted),
                    len(self.producers),
                    len(self.earlier),
                ),
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
        """None if the file is torn or damaged. Bytes after its end belong to an earlier, longer state."""
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
        header, epochs, aborted, producers, earlier = parts
        if len(epochs) % _EPOCH.size:
            return None
        return cls(
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
        """Restores a loaded segment to this state. Returns False if the state belongs to another log."""
        if segment.base_offset != self.base_offset or segment.size < self.size:
            return False
        # Equal offset and leader epoch of the last batch mean an equal log before it.
        if self.last_header and segment.file.pread(len(self.last_header), self.last_position) != self.last_header:
            return False
        aborted: list[AbortedTxn] | None = decode_aborted(self.aborted, self.base_offset)
        return aborted is not None and segment.restore(self.size, self.last_position, self.indexes, aborted)


def read_state(disk: Disk, directory: str, names: Container[str]) -> SavedState | None:
    """None if the file is missing from `names` (of the folder) or damaged."""
    return SavedState.from_bytes(disk.read(f"{directory}/{SYNCED_STATE}")) if SYNCED_STATE in names else None


class StateFile:
    """The state file of one log. `trusted` changes when states captured earlier become invalid."""

    __slots__ = ("_directory", "_disk", "_unsynced", "end_offset", "trusted")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._unsynced: SavedState | None = None  # it is written when the log is synced up to its end
        self.end_offset = -1
        self.trusted = object()

    def capturing(
        self, segment: Segment, end_offset: int, epochs: EpochCache, producers: PartitionProducers
    ) -> Steps[SavedState | None]:
        """The state of the first step; the index files must be complete. None if the last batch is damaged."""
        position, header = segment.last_batch()
        if segment.size and not header:
            return None
        state = SavedState(
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

    def save_when_synced(self, state: SavedState, recovery_point: int) -> None:
        if state.end_offset < self.end_offset:
            return  # a later state was saved while this one was packed
        self._unsynced = state
        self.on_synced(recovery_point)

    def on_synced(self, up_to_offset: int) -> None:
        state = self._unsynced
        if state is None or state.end_offset > up_to_offset:
            return
        self._unsynced = None
        path = f"{self._directory}/{SYNCED_STATE}"
        file = self._disk.open(path + ".tmp", create=True)
        file.truncate(0)
        file.pwrite(state.to_bytes(), 0)
        file.close()
        self._disk.rename(path + ".tmp", path)
        self.end_offset = state.end_offset

    def drop(self) -> None:
        self._unsynced = None
        self.trusted = object()

    def on_cut(self, end_offset: int) -> list[str]:
        """Handles a truncation (-1: emptied): empties a later state's file and returns its path to sync."""
        self.drop()
        if self.end_offset <= end_offset:
            return []
        path = f"{self._directory}/{SYNCED_STATE}"
        file = self._disk.open(path)
        file.truncate(0)
        file.close()
        self.end_offset = -1
        return [path]
