"""Offset index and time index of a segment, in Kafka's file formats: sorted arrays in memory."""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import repeat
from operator import le, lshift, lt, or_

from barnabas.errors import InvariantViolated

OFFSET_ENTRY_SIZE = 8
TIME_ENTRY_SIZE = 12

_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")


def _words(data: bytes, entry_size: int) -> array[int]:
    """The big-endian uint32 words of whole entries, without most zeros of a preallocated file."""
    data = data[: len(data) - len(data) % entry_size].rstrip(b"\0")
    words = array("I")
    words.frombytes(data + bytes(-len(data) % entry_size))
    if sys.byteorder == "little":
        words.byteswap()
    return words


class OffsetIndex:
    """Last offset and file position of some batches."""

    __slots__ = ("_offsets", "_positions", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._offsets = array("I")  # relative to base_offset
        self._positions = array("I")

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, last_offset: int, position: int) -> None:
        relative = last_offset - self.base_offset
        if self._offsets and relative <= self._offsets[-1]:
            raise InvariantViolated(f"offset index of {self.base_offset} got {last_offset} after its last entry")
        self._offsets.append(relative)
        self._positions.append(position)

    def entry_before(self, offset: int) -> tuple[int, int]:
        """(last offset, position) of a batch at or before the one that contains `offset`; (-1, 0) without one."""
        index = bisect_right(self._offsets, offset - self.base_offset) - 1 if offset >= self.base_offset else -1
        return self._entry(index)

    def entry_up_to(self, position: int, end_offset: int) -> tuple[int, int]:
        """The last entry at or below `position` whose batch ends below `end_offset`; (-1, 0) without one."""
        index = min(
            bisect_right(self._positions, position),
            bisect_left(self._offsets, max(0, end_offset - self.base_offset)),
        )
        return self._entry(index - 1)

    def _entry(self, index: int) -> tuple[int, int]:
        return (self.base_offset + self._offsets[index], self._positions[index]) if index >= 0 else (-1, 0)

    def truncate_to(self, offset: int, position: int) -> None:
        """Removes entries of batches that end at or after `offset` or begin at or after byte `position`."""
        keep = bisect_left(self._offsets, offset - self.base_offset) if offset > self.base_offset else 0
        keep = min(keep, bisect_left(self._positions, position))
        del self._offsets[keep:]
        del self._positions[keep:]

    def entries(self) -> list[tuple[int, int]]:
        return [(self.base_offset + o, p) for o, p in zip(self._offsets, self._positions, strict=True)]

    def to_bytes(self, start: int = 0) -> bytes:
        return b"".join(map(_OFFSET_ENTRY.pack, self._offsets[start:], self._positions[start:]))

    @classmethod
    def from_bytes(cls, base_offset: int, data: bytes, log_size: int) -> OffsetIndex | None:
        """None if the entries do not fit a log of `log_size` bytes: rebuild it."""
        index = cls(base_offset)
        words = _words(data, OFFSET_ENTRY_SIZE)
        offsets, positions = words[0::2], words[1::2]
        count = _count(offsets, positions)  # the batch at position 0 never has an entry
        del offsets[count:], positions[count:]
        if not (all(map(lt, offsets, offsets[1:])) and all(map(lt, positions, positions[1:]))):
            return None
        if count and positions[-1] >= log_size:
            return None
        index._offsets, index._positions = offsets, positions
        return index


def _count(first: array[int], second: array[int]) -> int:
    """Number of entries before the zeros of a preallocated file."""
    start = 0
    while True:
        try:
            found = first.index(0, start)
        except ValueError:
            return len(first)
        if second[found] == 0:
            return found
        start = found + 1


class TimeIndex:
    """Largest timestamps so far: up to an entry's offset no record has a larger one."""

    __slots__ = ("_offsets", "_timestamps", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._timestamps = array("q")
        self._offsets = array("I")  # relative to base_offset

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the newest entry; (-1, base_offset) without one."""
        if not self._timestamps:
            return -1, self.base_offset
        return self._timestamps[-1], self.base_offset + self._offsets[-1]

    def append_if_newer(self, timestamp: int, offset: int) -> None:
        if timestamp >= 0 and (not self._timestamps or timestamp > self._timestamps[-1]):
            self._timestamps.append(timestamp)
            self._offsets.append(offset - self.base_offset)

    def offset_before(self, timestamp: int) -> int:
        """An offset at or before the first record with a timestamp ≥ `timestamp`."""
        # An entry says that no record up to its offset has a larger timestamp, so the records up to an entry below `timestamp` are below it.
        index = bisect_left(self._timestamps, timestamp) - 1
        return self.base_offset + self._offsets[index] if index >= 0 else self.base_offset

    def truncate_to(self, offset: int) -> None:
        keep = bisect_left(self._offsets, offset - self.base_offset) if offset > self.base_offset else 0
        del self._timestamps[keep:]
        del self._offsets[keep:]

    def entries(self) -> list[tuple[int, int]]:
        return [(t, self.base_offset + o) for t, o in zip(self._timestamps, self._offsets, strict=True)]

    def to_bytes(self, start: int = 0) -> bytes:
        return b"".join(map(_TIME_ENTRY.pack, self._timestamps[start:], self._offsets[start:]))

    @classmethod
    def from_bytes(cls, base_offset: int, data: bytes) -> TimeIndex | None:
        """None if the entries do not increase: rebuild it."""
        index = cls(base_offset)
        words = _words(data, TIME_ENTRY_SIZE)
        try:
            timestamps = array("q", map(or_, map(lshift, words[0::3], repeat(32)), words[1::3]))
        except OverflowError:
            return None  # a time before 1970 has no entry
        offsets = words[2::3]
        count = _count(timestamps, offsets)
        del timestamps[count:], offsets[count:]
        if not (all(map(lt, timestamps, timestamps[1:])) and all(map(le, offsets, offsets[1:]))):
            return None
        index._timestamps, index._offsets = timestamps, offsets
        return index
