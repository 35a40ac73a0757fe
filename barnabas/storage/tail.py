"""Tail: the newest batches of a log in memory, for readers near its end."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from barnabas.ports import Buffer
from barnabas.storage.segment import LogSlice

TAIL_BYTES_MAX: Final = 64 * 1024
TAIL_BATCH_BYTES_MAX: Final = 16 * 1024  # for a larger batch the cost of a file read matters little


class Tail:
    """Consecutive batches up to the log's end, in tens of megabytes for a thousand busy partitions."""

    __slots__ = ("_bases", "_batches", "_bytes", "_ends", "start_offset")

    def __init__(self, end_offset: int) -> None:
        self._bases: list[int] = []
        self._ends: list[int] = []  # the offset after each; in a compacted log the next batch may begin above it
        self._batches: list[bytes] = []
        self._bytes = 0
        self.start_offset = end_offset

    def clear(self, end_offset: int) -> None:
        if self._bases:
            self._bases.clear()
            self._ends.clear()
            self._batches.clear()
            self._bytes = 0
        self.start_offset = end_offset

    def append(self, base_offset: int, data: Buffer, next_offset: int) -> None:
        size = len(data)
        if size > TAIL_BATCH_BYTES_MAX:
            self.clear(next_offset)
            return
        if not self._bases:
            self.start_offset = base_offset
        self._bases.append(base_offset)
        self._ends.append(next_offset)
        self._batches.append(bytes(data))
        self._bytes += size
        if self._bytes > TAIL_BYTES_MAX:
            half = len(self._bases) // 2 or 1
            self._bytes -= sum(map(len, self._batches[:half]))
            del self._bases[:half]
            del self._ends[:half]
            del self._batches[:half]
            self.start_offset = self._bases[0] if self._bases else next_offset

    def read(self, offset: int, max_bytes: int, end_offset: int, at_least_one: bool) -> LogSlice:
        """Batches from the one that contains `offset` (≥ start_offset), or the next one."""
        bases, batches = self._bases, self._batches
        first = index = bisect_right(self._ends, offset)
        count = len(bases)
        size = 0
        while index < count and bases[index] < end_offset:
            size += len(batches[index])
            if size > max_bytes and (index > first or not at_least_one):
                break
            index += 1
        if index == first:
            return LogSlice(b"", offset, offset)
        return LogSlice(
            batches[first] if index == first + 1 else b"".join(batches[first:index]),
            bases[first],
            self._ends[index - 1],
        )
