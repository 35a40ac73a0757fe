"""Segments of a log, in order, with look-ups over all of them. At least one, of which the last grows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import is_

from barnabas.errors import LocalProtocolError
from barnabas.storage.aborted import AbortedTxn
from barnabas.storage.long_reads import ReadAhead
from barnabas.storage.segment import LogSlice, Segment, TimestampOffset
from barnabas.work import Steps


class Segments:
    """An ordered list of segments; `active` is the last one."""

    __slots__ = ("_list", "active")

    def __init__(self, segments: list[Segment]) -> None:
        self._list = segments
        self.active = segments[-1]

    def __len__(self) -> int:
        return len(self._list)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._list)

    @property
    def first(self) -> Segment:
        return self._list[0]

    @property
    def all(self) -> list[Segment]:
        return self._list

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._list)

    def add(self, segment: Segment) -> None:
        self._list.append(segment)
        self.active = segment

    def take_oldest(self, count: int) -> list[Segment]:
        """At least the active segment must stay."""
        taken, self._list[:count] = self._list[:count], []
        return taken

    def take_active(self) -> Segment:
        taken = self._list.pop()
        if self._list:
            self.active = self._list[-1]
        return taken

    def holds(self, run: Sequence[Segment]) -> bool:
        """Whether these segments are neighbours of this log and none is active."""
        return not run or self._place(run) is not None

    def _place(self, run: Sequence[Segment]) -> int | None:
        at = bisect_left(self._list, run[0].base_offset, key=lambda segment: segment.base_offset)
        found = self._list[at : at + len(run)]
        whole = len(found) == len(run) and all(map(is_, found, run)) and run[-1] is not self.active
        return at if whole else None

    def replace(self, run: Sequence[Segment], cleaned: Segment) -> None:
        at = self._place(run)
        if at is None:
            raise LocalProtocolError(f"segments from {run[0].base_offset} on are not in the log any more")
        self._list[at : at + len(run)] = [cleaned]

    def from_offset(self, offset: int) -> list[Segment]:
        """The segment that contains `offset` (the first if `offset` is below all) and later ones."""
        if offset >= self.active.base_offset:
            return [self.active]
        index = bisect_right(self._list, offset, key=lambda segment: segment.base_offset) - 1
        return self._list[max(0, index) :]

    def read(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int,
        log_end_offset: int,
        *,
        at_least_one: bool,
        ahead: ReadAhead | None = None,
    ) -> LogSlice:
        """As PartitionLog.read, for an offset within the log. A slice is always of one segment."""
        for segment in self.from_offset(offset):
            found = segment.read(offset, max_bytes, end_offset, log_end_offset, at_least_one=at_least_one, ahead=ahead)
            if found is not None:
                return found
        return LogSlice(b"", offset, offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        found: list[AbortedTxn] = []
        for segment in self.from_offset(start_offset):
            for entry in segment.aborted:
                if entry.last_offset >= start_offset and entry.first_offset < end_offset:
                    found.append(entry)
                if entry.last_stable_offset >= end_offset:
                    return found  # later aborted transactions began after the range
        return found

    def offset_for_timestamp(self, timestamp: int, start_offset: int, end_offset: int) -> Steps[TimestampOffset | None]:
        for segment in self.from_offset(start_offset):
            if segment.base_offset >= end_offset:
                break
            if segment.recorded_timestamp() >= timestamp:
                found = yield from segment.find_timestamp(timestamp, start_offset)
                if found is not None:
                    return found if found.offset < end_offset else None
        return None

    def max_timestamp_offset(self, start_offset: int, end_offset: int) -> Steps[TimestampOffset | None]:
        """The first record with the largest timestamp; None if none has a timestamp or it is not below `end_offset`."""
        timestamps = {segment: segment.recorded_timestamp() for segment in self.from_offset(start_offset)}
        youngest = max(timestamps, key=timestamps.__getitem__)
        found = None
        if timestamps[youngest] >= 0:
            found = yield from youngest.find_timestamp(timestamps[youngest], start_offset)
            if found is None:  # DeleteRecords has removed this record of the first segment
                timestamps[youngest] = yield from youngest.remaining_timestamp(start_offset)
                youngest = max(timestamps, key=timestamps.__getitem__)
                found = yield from youngest.find_timestamp(max(0, timestamps[youngest]), start_offset)
        return found if found is not None and found.offset < end_offset else None
