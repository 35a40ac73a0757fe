"""One segment of a log: a .log file with its offset index, time index and aborted transactions.

A read or a search that finds a damaged batch raises CORRUPT_MESSAGE each time and logs it once. It never skips the batch, and never
returns an empty result instead.

Invariants: `size` is the end of the last whole batch, and nothing after it in the file is read. Every batch
has offsets ≥ base_offset, at most 2³¹−1 above it. Only the last segment of a log grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from barnabas.errors import RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.protocol.batch_layout import (
    BATCH_LENGTH_MIN,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    unpack_extent,
)
from barnabas.storage.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from barnabas.storage.log_config import LogConfig
from barnabas.storage.replay import StoredBatch, batch_headers
from barnabas.storage.search import first_in_batch
from barnabas.storage.segment_files import (
    NOTHING_STORED,
    RELATIVE_OFFSET_MAX,
    SegmentFiles,
    ends_with,
)
from barnabas.work import SLICE, Steps

_HINTS_MAX = 8  # sequential readers whose positions are kept
_HEADERS_PER_STEP = 512  # of a search: 1 ms
_VIEW_BYTES_MIN = 64 * 1024  # a slice this long is passed as a view rather than copied


class LogSlice(NamedTuple):
    """Whole batches of the log. The first may begin below the requested offset."""

    records: Buffer  # b"" if there is nothing to read
    first_offset: int  # base offset of the first batch
    next_offset: int  # offset of the next read


class TimestampOffset(NamedTuple):
    """The result of a search for a timestamp."""

    offset: int
    timestamp: int
    leader_epoch: int


class Segment(SegmentFiles):
    """A segment, open for reads; the last segment of a log is also open for appends.

    Attributes:
        size: bytes of whole batches.
        max_timestamp: of all its records, in milliseconds, -1 if none has one.
        first_timestamp: max timestamp of its first batch; -1 if it is empty or has none.
        created_ms: time when this process created or opened it: the age of a segment without timestamps.
    """

    __slots__ = ()

    # -- appending ------------------------------------------------------------------------------------------------

    def is_full(
        self, size: int, last_offset: int, max_timestamp: int, now_ms: int, config: LogConfig, *, pending: int = 0
    ) -> bool:
        """Whether a batch of `size` bytes must begin a new segment (segment.bytes, segment.ms, segment.index.bytes).

        Args:
            pending: bytes that will be written before it.
        """
        held = self.size + pending
        if not held:
            return False
        if held + size > config.segment_bytes or last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
            return True
        if self.first_timestamp >= 0:
            # By the time of the records, so that a replay of old data has the same segments (KIP-33).
            if max_timestamp - self.first_timestamp > config.roll_ms - self._jitter_ms:
                return True
        elif now_ms - self.created_ms > config.roll_ms - self._jitter_ms:
            return True
        if held <= config.segment_index_bytes:
            return False  # the entries of a batch are smaller than the batch
        return (
            len(self.offset_index) >= config.segment_index_bytes // OFFSET_ENTRY_SIZE
            or len(self.time_index) >= config.segment_index_bytes // TIME_ENTRY_SIZE
        )

    def append(self, data: Buffer, last_offset: int, max_timestamp: int) -> None:
        """Writes one batch whose offsets are assigned.

        Raises:
            OSError: the disk failed; the segment's state is not changed.
        """
        position, size = self.size, len(data)
        self._write(data, size)
        self.note_batch(position, size, last_offset, max_timestamp)

    def append_run(self, data: memoryview, batches: Sequence[StoredBatch]) -> None:
        """Writes neighbouring batches of `data` with one write. Their positions are those in `data`.

        Raises:
            OSError: the disk failed; the segment's state is not changed.
        """
        start = batches[0].position
        shift = self.size - start
        end = batches[-1].position + batches[-1].size
        self._write(data[start:end], end - start)
        for batch in batches:
            self.note_batch(batch.position + shift, batch.size, batch.last_offset, batch.max_timestamp)

    def _write(self, data: Buffer, size: int) -> None:
        if self._torn:
            self.seal_file()
        try:
            self.file.pwrite(data, self.size)
        except OSError:
            self._torn = True
            raise
        self.size += size

    def cut_at(self, offset: int) -> tuple[int, int]:
        """(position, end offset) of a truncation to `offset`: it keeps the whole batches that end below `offset`, up to a damaged one."""
        position = self.seek(offset)
        for batch in batch_headers(self.file, position, self.size):
            position = batch.position
            if batch.last_offset >= offset:
                break
            position += batch.size
        end_offset = self.base_offset
        _, indexed = self.offset_index.entry_up_to(position - 1, offset)
        for batch in batch_headers(self.file, indexed, position):
            end_offset = batch.last_offset + 1
        return position, end_offset

    def truncate_to(self, offset: int) -> int:
        """Removes the batch that contains `offset`, or a damaged batch before it, and all later batches. Returns the new end offset.

        Raises:
            BrokerError: CORRUPT_MESSAGE: the .txnindex is damaged; nothing was removed.
        """
        aborted = self.aborted
        position, end_offset = self.cut_at(offset)
        self.file.truncate(position)
        self.size = position
        self._torn = False
        self._last_position = -1
        self._stored = NOTHING_STORED
        self._hints.clear()
        self.offset_index.truncate_to(offset, position)
        self.time_index.truncate_to(end_offset)
        self._aborted = [entry for entry in aborted if entry.last_offset < end_offset]
        # A removed batch may have had the largest timestamp.
        self.max_timestamp, self._max_timestamp_offset = self.time_index.last
        for batch in batch_headers(self.file, self.seek(end_offset), self.size):
            if batch.max_timestamp > self.max_timestamp:
                self.max_timestamp, self._max_timestamp_offset = batch.max_timestamp, batch.last_offset
        if not position:
            self.first_timestamp = NO_TIMESTAMP
        return end_offset

    # -- reading --------------------------------------------------------------------------------------------------

    def locate(self, offset: int) -> StoredBatch | None:
        """The first batch that ends at or after `offset`.

        Raises:
            BrokerError: CORRUPT_MESSAGE: a batch before it is damaged.
        """
        position = self.seek(offset)
        for batch in batch_headers(self.file, position, self.size):
            if batch.last_offset >= offset:
                return batch
            position = batch.position + batch.size
        if position != self.size:
            raise self.damaged(position, "no whole batch begins here")
        return None

    def read(
        self, offset: int, max_bytes: int, end_offset: int, log_end_offset: int, *, at_least_one: bool
    ) -> LogSlice | None:
        """Whole batches from the one that contains `offset`, below `end_offset`; None if all batches of this segment end before `offset`.

        A reader that continues at its last position needs one read of the file. Otherwise one more read finds the position.

        Raises:
            BrokerError: CORRUPT_MESSAGE: the first batch has no readable header.
        """
        position = self._hints.pop(offset, -1)
        if position < 0:
            batch = self.locate(offset)
            if batch is None:
                return None
            position = batch.position
        elif position >= self.size:
            if self.size == position:
                self._hints[offset] = position
            return None
        data = self.file.pread(min(max(max_bytes, HEADER_SIZE), self.size - position), position)
        if len(data) < HEADER_SIZE:
            raise self.damaged(position, f"{len(data)} bytes are left")
        base, length, magic, delta = unpack_extent(data)
        if (
            magic != MAGIC
            or not HEADER_SIZE <= length + LENGTH_OVERHEAD <= self.size - position
            or delta < 0
            or not offset <= base + delta < log_end_offset
        ):
            raise self.damaged(position, f"no batch with offset {offset} begins here")
        if base >= end_offset:
            return LogSlice(b"", offset, offset)
        if length + LENGTH_OVERHEAD > max_bytes:
            if not at_least_one:
                return LogSlice(b"", offset, offset)
            data = self.file.pread(length + LENGTH_OVERHEAD, position)
        # All batches before an indexed position are whole: only headers after the last one are read.
        last_offset, end = self.offset_index.entry_up_to(position + len(data) - HEADER_SIZE, end_offset)
        end -= position
        if end > 0 and (self._built or ends_with(data, end, last_offset)):
            next_offset = unpack_extent(data, end)[0]
        else:
            next_offset = base
            end = 0
        while end + HEADER_SIZE <= len(data):
            batch_base, length, magic, delta = unpack_extent(data, end)
            if batch_base >= end_offset or end + length + LENGTH_OVERHEAD > len(data):
                break
            if length < BATCH_LENGTH_MIN or magic != MAGIC or delta < 0 or batch_base < next_offset:
                break  # damaged: a read that begins here raises the error
            end += length + LENGTH_OVERHEAD
            next_offset = batch_base + delta + 1
        if len(self._hints) >= _HINTS_MAX:
            del self._hints[next(iter(self._hints))]
        self._hints[next_offset] = position + end
        if end == len(data):
            return LogSlice(data, base, next_offset)
        return LogSlice(memoryview(data)[:end] if end >= _VIEW_BYTES_MIN else data[:end], base, next_offset)

    def find_timestamp(self, timestamp: int, start_offset: int) -> Steps[TimestampOffset | None]:
        """The first record from `start_offset` on with a timestamp ≥ `timestamp`.

        Raises:
            BrokerError: CORRUPT_MESSAGE: a batch before the record is damaged.
        """
        position = self.seek(max(start_offset, self.time_index.offset_before(timestamp)))
        size = self.size
        for number, batch in enumerate(batch_headers(self.file, position, size), start=1):
            position = batch.position + batch.size
            if not number % _HEADERS_PER_STEP:
                yield SLICE
            if batch.max_timestamp < timestamp or batch.last_offset < start_offset:
                continue
            try:
                found = yield from first_in_batch(self.file.pread(batch.size, batch.position), timestamp, start_offset)
            except RemoteProtocolError as error:
                raise self.damaged(batch.position, str(error)) from error
            if found is not None:
                return TimestampOffset(*found, batch.leader_epoch)
        if position < min(size, self.size):  # the segment may have been truncated between two steps
            raise self.damaged(position, "no whole batch begins here")
        return None

    def remaining_timestamp(self, start_offset: int) -> Steps[int]:
        """The largest timestamp of the records from `start_offset` on; -1 if none has one.

        Raises:
            BrokerError: CORRUPT_MESSAGE: the batch of `start_offset` is damaged.
        """
        largest = -1
        for number, batch in enumerate(batch_headers(self.file, self.seek(start_offset), self.size), start=1):
            if not number % _HEADERS_PER_STEP:
                yield SLICE
            if batch.base_offset >= start_offset:
                largest = max(largest, batch.max_timestamp)
            elif batch.last_offset >= start_offset:
                try:
                    found = yield from first_in_batch(self.file.pread(batch.size, batch.position), None, start_offset)
                except RemoteProtocolError as error:
                    raise self.damaged(batch.position, str(error)) from error
                largest = max(largest, -1 if found is None else found[1])
        return largest

    def recorded_timestamp(self) -> int:
        """The largest timestamp of its records; -1 if none has one."""
        if self._time_index is None:
            self.load_indexes()
        return self.max_timestamp

    def largest_timestamp(self) -> int:
        """The time by which retention judges the segment, in milliseconds since the Unix epoch."""
        recorded = self.recorded_timestamp()
        return recorded if recorded >= 0 else self.created_ms
