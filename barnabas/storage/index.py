"""Offset index and time index of a segment, in Kafka's file formats.

Driven by: the segment that owns them. Emits: file positions, and bytes for the .index and .timeindex files.

Offset index: entries of relative offset uint32 and file position uint32; an entry names a batch by its last offset. Time index:
timestamp int64 and relative offset uint32; up to that offset no record is younger than that timestamp. Both are arrays in memory,
searched by bisection; files are written when a segment is rolled, synced or closed, as after a kill both are rebuilt anyway.

Invariants: keys strictly increase. A file preallocated by a killed Kafka (zeros to 10 MiB) loads as its entries.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right

from barnabas.errors import InvariantViolated

__all__ = ["OFFSET_ENTRY_SIZE", "TIME_ENTRY_SIZE", "OffsetIndex", "TimeIndex"]

OFFSET_ENTRY_SIZE = 8
TIME_ENTRY_SIZE = 12

_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")


class OffsetIndex:
    """Last offsets of some batches, and where these batches begin in the segment's file."""

    __slots__ = ("_offsets", "_positions", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._offsets = array("I")  # relative to base_offset
        self._positions = array("I")

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, last_offset: int, position: int) -> None:
        """Notes the batch that ends with `last_offset` and begins at byte `position`."""
        relative = last_offset - self.base_offset
        if self._offsets and relative <= self._offsets[-1]:
            raise InvariantViolated(f"offset index of {self.base_offset} got {last_offset} after its last entry")
        self._offsets.append(relative)
        self._positions.append(position)

    def entry_before(self, offset: int) -> tuple[int, int]:
        """(last offset, position) of a batch at or before the one that holds `offset`; (-1, 0) where no entry is older."""
        index = bisect_right(self._offsets, offset - self.base_offset) - 1 if offset >= self.base_offset else -1
        return self._entry(index)

    def entry_up_to(self, position: int, end_offset: int) -> tuple[int, int]:
        """The last entry at or below `position` whose batch ends below `end_offset`; (-1, 0) where there is none."""
        index = min(
            bisect_right(self._positions, position),
            bisect_left(self._offsets, max(0, end_offset - self.base_offset)),
        )
        return self._entry(index - 1)

    def _entry(self, index: int) -> tuple[int, int]:
        return (self.base_offset + self._offsets[index], self._positions[index]) if index >= 0 else (-1, 0)

    def truncate_to(self, offset: int) -> None:
        """Drops entries of batches that end at or after `offset`."""
        keep = bisect_left(self._offsets, offset - self.base_offset) if offset > self.base_offset else 0
        del self._offsets[keep:]
        del self._positions[keep:]

    def entries(self) -> list[tuple[int, int]]:
        """(last offset, position) of every entry."""
        return [(self.base_offset + o, p) for o, p in zip(self._offsets, self._positions, strict=True)]

    def to_bytes(self) -> bytes:
        return b"".join(map(_OFFSET_ENTRY.pack, self._offsets, self._positions))

    @classmethod
    def from_bytes(cls, base_offset: int, data: bytes, log_size: int) -> OffsetIndex | None:
        """Reads a file; None where it cannot belong to a log of `log_size` bytes and must be rebuilt."""
        index = cls(base_offset)
        last_offset = last_position = -1
        for offset, position in _OFFSET_ENTRY.iter_unpack(data[: len(data) - len(data) % OFFSET_ENTRY_SIZE]):
            if offset == position == 0:
                break  # preallocated tail: the batch at position 0 never has an entry
            if position <= last_position or offset <= last_offset or position >= log_size:
                return None
            index._offsets.append(offset)
            index._positions.append(position)
            last_offset, last_position = offset, position
        return index


class TimeIndex:
    """Largest timestamps so far, and the last offset of the batch where each was reached."""

    __slots__ = ("_offsets", "_timestamps", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._timestamps = array("q")
        self._offsets = array("I")  # relative to base_offset

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the newest entry; (-1, base_offset) where there is none."""
        if not self._timestamps:
            return -1, self.base_offset
        return self._timestamps[-1], self.base_offset + self._offsets[-1]

    def append_if_newer(self, timestamp: int, offset: int) -> None:
        """Notes that `timestamp` was reached at `offset`, unless an entry says as much already."""
        if timestamp >= 0 and (not self._timestamps or timestamp > self._timestamps[-1]):
            self._timestamps.append(timestamp)
            self._offsets.append(offset - self.base_offset)

    def offset_before(self, timestamp: int) -> int:
        """An offset at or before the first record that is as young as `timestamp`."""
        # Entries hold "no record up to this offset is younger": everything up to an entry older than the target is older too.
        index = bisect_left(self._timestamps, timestamp) - 1
        return self.base_offset + self._offsets[index] if index >= 0 else self.base_offset

    def truncate_to(self, offset: int) -> None:
        """Drops entries that lie at or after `offset`."""
        keep = bisect_left(self._offsets, offset - self.base_offset) if offset > self.base_offset else 0
        del self._timestamps[keep:]
        del self._offsets[keep:]

    def entries(self) -> list[tuple[int, int]]:
        """(timestamp, offset) of every entry."""
        return [(t, self.base_offset + o) for t, o in zip(self._timestamps, self._offsets, strict=True)]

    def to_bytes(self) -> bytes:
        return b"".join(map(_TIME_ENTRY.pack, self._timestamps, self._offsets))

    @classmethod
    def from_bytes(cls, base_offset: int, data: bytes) -> TimeIndex | None:
        """Reads a file; None where its entries do not increase and it must be rebuilt."""
        index = cls(base_offset)
        last_timestamp = last_offset = -1
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data[: len(data) - len(data) % TIME_ENTRY_SIZE]):
            if timestamp == offset == 0:
                break  # preallocated tail
            if timestamp <= last_timestamp or offset < last_offset:
                return None
            index._timestamps.append(timestamp)
            index._offsets.append(offset)
            last_timestamp, last_offset = timestamp, offset
        return index
