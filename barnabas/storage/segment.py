"""One segment of a log: a .log file with its offset index, time index and aborted transactions.

Driven by: the partition log. Emits: slices of whole batches, positions, timestamps' offsets, the bytes of its index files.

Indexes and the aborted list live in memory; those of a segment that was not written to by this process are read on first use.
`index_files` gives what to write when the segment is rolled or closed: after a kill they are rebuilt from the log anyway.

Invariants: `size` is the end of the last whole batch, and nothing beyond it in the file is ever read; every batch
holds offsets ≥ base_offset, at most 2³¹−1 above it; only the last segment of a log grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from barnabas.ports import Buffer, Disk, File
from barnabas.protocol.records import HEADER_SIZE, MAGIC, NO_TIMESTAMP, decode_records
from barnabas.storage.aborted import AbortedTransaction, decode_aborted, encode_aborted
from barnabas.storage.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, OffsetIndex, TimeIndex
from barnabas.storage.log_config import LogConfig
from barnabas.storage.replay import HEADER, LENGTH_OVERHEAD, StoredBatch, walk

__all__ = ["FILE_KINDS", "RELATIVE_OFFSET_MAX", "LogSlice", "Segment", "TimestampOffset", "file_name"]

FILE_KINDS = (".log", ".index", ".timeindex", ".txnindex")
RELATIVE_OFFSET_MAX = 2**31 - 1  # of Kafka's signed 4-byte relative offsets
_HINTS_MAX = 8  # sequential readers whose place is remembered
_VIEW_BYTES_MIN = 64 * 1024  # a slice this long is passed as a view rather than copied


class LogSlice(NamedTuple):
    """Whole batches as they lie in the log; the first may begin below the offset asked for."""

    records: Buffer  # b"" if there is nothing to read
    first_offset: int  # base offset of the first batch
    next_offset: int  # where to read on


class TimestampOffset(NamedTuple):
    """Where a timestamp was found."""

    offset: int
    timestamp: int
    leader_epoch: int


def file_name(offset: int, suffix: str) -> str:
    """Kafka's file names: twenty digits, so that names sort as offsets do."""
    return f"{offset:020d}{suffix}"


def _ends_with(data: bytes, position: int, last_offset: int) -> bool:
    """Whether a batch of magic 2 begins there that ends with that offset."""
    base, _, _, magic, _, _, delta, *_ = HEADER.unpack_from(data, position)
    return bool(magic == MAGIC and base + delta == last_offset)


class Segment:
    """A segment, open for reading, and the last one of a log for appending.

    Attributes:
        size: bytes of whole batches.
        max_timestamp: of all its records, in milliseconds, -1 where none has one.
        first_timestamp: max timestamp of its first batch; -1 where it is empty or has none.
        created_ms: when this process began with it: stands in for the age of a segment without timestamps.
    """

    __slots__ = (
        "_aborted",
        "_built",
        "_bytes_since_index",
        "_disk",
        "_file",
        "_hints",
        "_index_interval",
        "_max_timestamp_offset",
        "_offset_index",
        "_prefix",
        "_suffix",
        "_time_index",
        "_torn",
        "base_offset",
        "created_ms",
        "first_timestamp",
        "max_timestamp",
        "size",
    )

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, *, config: LogConfig, now_ms: int, suffix: str = ""
    ) -> None:
        self.base_offset = base_offset
        self.size = 0
        self.max_timestamp = NO_TIMESTAMP
        self.first_timestamp = NO_TIMESTAMP
        self.created_ms = now_ms
        self._disk = disk
        self._prefix = f"{directory}/{base_offset:020d}"
        self._suffix = suffix  # of its files while the cleaner writes them, else none
        self._file: File | None = None
        self._index_interval = config.index_interval_bytes
        self._bytes_since_index = 0
        self._max_timestamp_offset = base_offset
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._aborted: list[AbortedTransaction] | None = None
        # The indexes were made by this process; those of a file are held against the log at each use.
        self._built = False
        self._hints: dict[int, int] = {}  # offset -> position of its batch
        self._torn = False  # a failed write may have left bytes beyond `size`

    # -- its files ------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Makes an empty .log file; an old one of that name is emptied."""
        self._file = self._disk.open(self.log_path, create=True)
        if self._file.size():
            self._file.truncate(0)
        self.reset_indexes()

    def load(self) -> None:
        """Takes the .log file as it is: clean, or about to be recovered."""
        self.size = self.file.size()
        for batch in walk(self.file, 0, self.size):
            self.first_timestamp = batch.max_timestamp
            break

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self.log_path)
        return self._file

    @property
    def log_path(self) -> str:
        return self._path(".log")

    def _path(self, kind: str) -> str:
        return self._prefix + kind + self._suffix

    def rename(self, suffix: str) -> None:
        """Gives its files another suffix, or none: the log first, as Kafka does. Whatever they were synced, their names are not."""
        self.close()
        for kind in FILE_KINDS:
            old = self._path(kind)
            if self._disk.exists(old):
                self._disk.rename(old, self._prefix + kind + suffix)
        self._suffix = suffix

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self.load_indexes()
        return self._offset_index  # type: ignore[return-value]  # load_indexes sets it

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self.load_indexes()
        return self._time_index  # type: ignore[return-value]  # load_indexes sets it

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """Aborted transactions whose markers are in this segment; append to it to add one."""
        if self._aborted is None:
            data = self._read_file(".txnindex")
            self._aborted = (decode_aborted(data, self.base_offset) if data else None) or []
        return self._aborted

    def has_valid_aborted(self) -> bool:
        """Whether the .txnindex file is absent (nothing was aborted) or readable."""
        data = self._read_file(".txnindex") if self.size else None
        return data is None or decode_aborted(data, self.base_offset) is not None

    def fits_its_indexes(self) -> bool:
        """Whether its index files point at no batch beyond its end: whoever wrote them, when it was rolled, saw no more of it."""
        offset_data, time_data = self._read_file(".index"), self._read_file(".timeindex")
        if not self.size or offset_data is None or time_data is None:
            return False
        time_index = TimeIndex.from_bytes(self.base_offset, time_data)
        return (
            OffsetIndex.from_bytes(self.base_offset, offset_data, self.size) is not None
            and time_index is not None
            and (len(time_index) > 0 or self.max_timestamp < 0)
            and time_index.last[1] < self.next_offset()
        )

    def load_indexes(self) -> None:
        """Reads .index and .timeindex, or rebuilds both from the log where one is missing or damaged."""
        if not self.size:
            self.reset_indexes()
            return
        offset_data, time_data = self._read_file(".index"), self._read_file(".timeindex")
        if offset_data is not None and time_data is not None:
            offset_index = OffsetIndex.from_bytes(self.base_offset, offset_data, self.size)
            time_index = TimeIndex.from_bytes(self.base_offset, time_data)
            if offset_index is not None and time_index is not None and (len(time_index) or not self.size):
                self._offset_index, self._time_index = offset_index, time_index
                self._built = False
                self.max_timestamp, self._max_timestamp_offset = time_index.last
                return
        self.rebuild_indexes()

    def rebuild_indexes(self) -> None:
        """Makes both indexes anew from the headers of the log."""
        self.reset_indexes(keep_aborted=True)
        for batch in walk(self.file, 0, self.size):
            self.note_batch(batch.position, batch.size, batch.last_offset, batch.max_timestamp)
        self.time_index.append_if_newer(self.max_timestamp, self._max_timestamp_offset)

    def reset_indexes(self, *, keep_aborted: bool = False) -> None:
        """Forgets both indexes and the aborted list, before the batches are noted anew."""
        self._offset_index = OffsetIndex(self.base_offset)
        self._time_index = TimeIndex(self.base_offset)
        self._built = True
        if not keep_aborted:
            self._aborted = []
        self.max_timestamp = self.first_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset
        self._bytes_since_index = 0
        self._hints.clear()

    def _read_file(self, suffix: str) -> bytes | None:
        try:
            return self._disk.read(self._path(suffix))
        except FileNotFoundError:
            return None

    def index_files(self) -> list[tuple[str, bytes]]:
        """(path, contents) of the index files as they should be on disk. An aborted list that is empty has no file."""
        self.seal_file()
        self.time_index.append_if_newer(self.max_timestamp, self._max_timestamp_offset)
        files = [
            (self._path(".index"), self.offset_index.to_bytes()),
            (self._path(".timeindex"), self.time_index.to_bytes()),
        ]
        if self.aborted:
            files.append((self._path(".txnindex"), encode_aborted(self.aborted)))
        return files

    def seal_file(self) -> None:
        """Cuts off what a failed write may have left."""
        if self._torn:
            self.file.truncate(self.size)
            self._torn = False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- appending ------------------------------------------------------------------------------------------------

    def is_full(
        self, size: int, last_offset: int, max_timestamp: int, now_ms: int, config: LogConfig, *, pending: int = 0
    ) -> bool:
        """Whether a batch of `size` bytes must begin a new segment (segment.bytes, segment.ms, segment.index.bytes).

        Args:
            pending: bytes that are to be written before it.
        """
        held = self.size + pending
        if not held:
            return False
        if held + size > config.segment_bytes or last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
            return True
        if self.first_timestamp >= 0:
            # By the records' time, so that a replay of old data is cut as it was (KIP-33).
            if max_timestamp - self.first_timestamp > config.roll_ms - config.segment_jitter_ms:
                return True
        elif now_ms - self.created_ms > config.roll_ms - config.segment_jitter_ms:
            return True
        if held <= config.segment_index_bytes:
            return False  # a batch is longer than its entries
        return (
            len(self.offset_index) >= config.segment_index_bytes // OFFSET_ENTRY_SIZE
            or len(self.time_index) >= config.segment_index_bytes // TIME_ENTRY_SIZE
        )

    def append(self, data: Buffer, last_offset: int, max_timestamp: int) -> None:
        """Writes one batch, its offsets assigned. Nothing is noted if the write fails.

        Raises:
            OSError: as the disk says.
        """
        position = self.size
        self._write(data)
        self.note_batch(position, len(data), last_offset, max_timestamp)

    def append_run(self, data: memoryview, batches: Sequence[StoredBatch]) -> None:
        """Writes neighbouring batches of `data`, by one write; their positions are those in `data`.

        Raises:
            OSError: as the disk says; nothing is noted then.
        """
        start = batches[0].position
        shift = self.size - start
        self._write(data[start : batches[-1].position + batches[-1].size])
        for batch in batches:
            self.note_batch(batch.position + shift, batch.size, batch.last_offset, batch.max_timestamp)

    def _write(self, data: Buffer) -> None:
        if self._torn:
            self.seal_file()
        try:
            self.file.pwrite(data, self.size)
        except OSError:
            self._torn = True
            raise
        self.size += len(data)

    def note_batch(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Takes a batch into the indexes, every index.interval.bytes."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        if position == 0:
            self.first_timestamp = max_timestamp
        if self._bytes_since_index > self._index_interval:
            self.offset_index.append(last_offset, position)
            self.time_index.append_if_newer(self.max_timestamp, self._max_timestamp_offset)
            self._bytes_since_index = 0
        self._bytes_since_index += size

    def truncate_to(self, offset: int) -> int:
        """Cuts off the batch that holds `offset` and all after it. Returns the end offset that is left."""
        self._cut(self.seek(offset), offset)
        return self.next_offset()

    def _cut(self, position: int, offset: int) -> None:
        for batch in walk(self.file, position, self.size):
            position = batch.position
            if batch.last_offset >= offset:
                break
            position += batch.size
        self.file.truncate(position)
        self.size = position
        self._torn = False
        self._hints.clear()
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self._aborted = [entry for entry in self.aborted if entry.last_offset < offset]
        # The largest timestamp may have been in what was cut off.
        self.max_timestamp, self._max_timestamp_offset = self.time_index.last
        for batch in walk(self.file, self.seek(offset), self.size):
            if batch.max_timestamp > self.max_timestamp:
                self.max_timestamp, self._max_timestamp_offset = batch.max_timestamp, batch.last_offset
        if not position:
            self.first_timestamp = NO_TIMESTAMP

    def seek(self, offset: int) -> int:
        """Position of a batch at or before the one that holds `offset`. An index that points beside a batch is made anew."""
        last_offset, position = self.offset_index.entry_before(offset)
        if position and not self._built:
            header = self.file.pread(HEADER_SIZE, position)
            if len(header) < HEADER_SIZE or not _ends_with(header, 0, last_offset):
                self.rebuild_indexes()
                return self.seek(offset)
        return position

    # -- reading --------------------------------------------------------------------------------------------------

    def next_offset(self) -> int:
        """The offset after its last batch."""
        end = self.base_offset
        for batch in walk(self.file, self.seek(2**62), self.size):
            end = batch.last_offset + 1
        return end

    def locate(self, offset: int) -> StoredBatch | None:
        """The first batch that ends at or after `offset`."""
        for batch in walk(self.file, self.seek(offset), self.size):
            if batch.last_offset >= offset:
                return batch
        return None

    def read(self, offset: int, max_bytes: int, *, end_offset: int, at_least_one: bool) -> LogSlice | None:
        """Whole batches from the one that holds `offset`, below `end_offset`; None where this segment holds nothing as late.

        One read of the file where the reader goes on where it stopped; where it does not, one more finds the place.
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
        base, length = HEADER.unpack_from(data)[:2]
        if base >= end_offset:
            return LogSlice(b"", offset, offset)
        if length + LENGTH_OVERHEAD > max_bytes:
            if not at_least_one:
                return LogSlice(b"", offset, offset)
            data = self.file.pread(length + LENGTH_OVERHEAD, position)
        # Batches are whole up to an indexed position: headers are walked only from the last one on.
        last_offset, end = self.offset_index.entry_up_to(position + len(data) - HEADER_SIZE, end_offset)
        end -= position
        if end > 0 and (self._built or _ends_with(data, end, last_offset)):
            next_offset = HEADER.unpack_from(data, end)[0]
        else:
            next_offset = base
            end = 0
        while end + HEADER_SIZE <= len(data):
            batch_base, length, _, _, _, _, delta, *_ = HEADER.unpack_from(data, end)
            if batch_base >= end_offset or end + length + LENGTH_OVERHEAD > len(data):
                break
            end += length + LENGTH_OVERHEAD
            next_offset = batch_base + delta + 1
        if len(self._hints) >= _HINTS_MAX:
            del self._hints[next(iter(self._hints))]
        self._hints[next_offset] = position + end
        if end == len(data):
            return LogSlice(data, base, next_offset)
        return LogSlice(memoryview(data)[:end] if end >= _VIEW_BYTES_MIN else data[:end], base, next_offset)

    def find_timestamp(self, timestamp: int, start_offset: int) -> TimestampOffset | None:
        """The first record from `start_offset` on that is as young as `timestamp` or younger."""
        start = max(start_offset, self.time_index.offset_before(timestamp))
        for batch in walk(self.file, self.seek(start), self.size):
            if batch.max_timestamp < timestamp or batch.last_offset < start_offset:
                continue
            for record in decode_records(self.file.pread(batch.size, batch.position)):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return TimestampOffset(record.offset, record.timestamp, batch.leader_epoch)
        return None

    def recorded_timestamp(self) -> int:
        """The largest timestamp of its records; -1 where none has one."""
        if self._time_index is None:
            self.load_indexes()
        return self.max_timestamp

    def largest_timestamp(self) -> int:
        """The age of the segment for retention, in milliseconds since the Unix epoch."""
        recorded = self.recorded_timestamp()
        return recorded if recorded >= 0 else self.created_ms
