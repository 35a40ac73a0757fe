"""Segment of a log: a .log file with its offset index, time index and aborted transactions.
A damaged batch raises CORRUPT_MESSAGE at each read; it is never skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from barnabas.errors import BrokerError, ErrorCode, RemoteProtocolError
from barnabas.loggers import logger
from barnabas.ports import Buffer, Disk, File
from barnabas.protocol.batch_layout import (
    BATCH_LENGTH_MIN,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    unpack_extent,
)
from barnabas.protocol.checksum import crc32c
from barnabas.storage.aborted import ENTRY_SIZE, AbortedTxn, decode_aborted, encode_aborted
from barnabas.storage.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, OffsetIndex, TimeIndex
from barnabas.storage.log_config import LogConfig
from barnabas.storage.long_reads import READ_BYTES_MAX, LongRead, ReadAhead
from barnabas.storage.replay import StoredBatch, batch_headers
from barnabas.storage.search import first_in_batch
from barnabas.work import SLICE, Steps, finished, in_worker

_HINTS_MAX = 8  # sequential readers whose positions are kept
_HEADERS_PER_STEP = 512  # of a search: 1 ms
_VIEW_BYTES_MIN = 64 * 1024  # a slice this long is passed as a view rather than copied
_ZEROS = bytes(1024 * 1024)  # written in less than a millisecond


class LogSlice(NamedTuple):
    """Whole batches of the log. The first may begin below the requested offset."""

    records: Buffer  # b"" without data
    first_offset: int  # base offset of the first batch
    next_offset: int  # offset of the next read


class TimestampOffset(NamedTuple):
    """Result of a timestamp search."""

    offset: int
    timestamp: int
    leader_epoch: int


log = logger("kafka.log.UnifiedLog")

RELATIVE_OFFSET_MAX = 2**31 - 1  # of Kafka's signed 4-byte relative offsets

FILE_KINDS = (".log", ".index", ".timeindex", ".txnindex")


class StoredIndexes(NamedTuple):
    """Numbers of entries in the index files, and checksums of their bytes."""

    offset_entries: int
    offset_checksum: int
    time_entries: int
    time_checksum: int


NOTHING_STORED = StoredIndexes(0, 0, 0, 0)


class IndexChange(NamedTuple):
    """Bytes that an index file lacks."""

    path: str
    position: int
    data: bytes


def file_name(offset: int, suffix: str) -> str:
    """Kafka's file name for an offset: twenty digits, so that names sort as offsets do."""
    return f"{offset:020d}{suffix}"


def ends_with(data: Buffer, position: int, last_offset: int) -> bool:
    """Whether a batch of magic 2 begins at `position` and ends with `last_offset`."""
    base, _, magic, delta = unpack_extent(data, position)
    return bool(magic == MAGIC and base + delta == last_offset)


class Segment:
    """A segment, open for reads; the last segment of a log is also open for appends.

    Batches have offsets ≥ base_offset, at most 2³¹−1 above it.

    Attributes:
        size: end of the last whole batch in the file.
        max_timestamp: of all its records, in milliseconds, -1 if none has one.
        first_timestamp: max timestamp of its first batch; -1 if it is empty or has none.
        created_ms: time when this process created or opened it: the age of a segment without timestamps.
    """

    __slots__ = (
        "_aborted",
        "_built",
        "_bytes_since_index",
        "_complete",
        "_cuts",
        "_damaged_at",
        "_disk",
        "_file",
        "_hints",
        "_index_interval",
        "_jitter_ms",
        "_last_position",
        "_max_timestamp_offset",
        "_offset_index",
        "_prefix",
        "_reserved_to",
        "_stored",
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
        self._jitter_ms = config.random_jitter_ms()
        self._bytes_since_index = 0
        self._max_timestamp_offset = base_offset
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._aborted: list[AbortedTxn] | None = None
        # This process built the indexes. Entries from a file are compared with the log at each use.
        self._built = False
        self._hints: dict[int, int] = {}  # offset -> position of its batch
        self._cuts = 0  # truncations so far
        self._torn = False  # a failed write may have left bytes beyond `size`
        self._reserved_to = 0  # from `size` to here the file has zeros
        self._damaged_at = ("", -1)  # kind of file and position of the last logged damage
        self._last_position = -1  # where its last batch begins, as far as this process knows
        self._stored = NOTHING_STORED
        self._complete = True  # the index files end with their last entries

    # -- its files ------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Empties an existing file."""
        self._file = self._disk.open(self.log_path, create=True)
        if self._file.size():
            self._file.truncate(0)
        self.reset_indexes()

    def load(self) -> None:
        """Opens the .log file without checking it."""
        self.size = self.file.size()
        for batch in batch_headers(self.file, 0, self.size):
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
        """Changes the files' suffix, the .log first, as in Kafka. The new names are not synced."""
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
    def aborted(self) -> list[AbortedTxn]:
        """Aborted transactions whose markers are here; `append` to it. Raises BrokerError (CORRUPT_MESSAGE)."""
        if self._aborted is None:
            data = self._read_file(".txnindex")
            found = decode_aborted(data, self.base_offset) if data else []
            if found is None:
                raise self.damaged(len(data or b""), "its entries cannot be", kind=".txnindex")
            self._aborted = found
        return self._aborted

    def has_valid_aborted(self) -> bool:
        data = self._read_file(".txnindex") if self.size else None
        return data is None or decode_aborted(data, self.base_offset) is not None

    def aborted_bytes(self) -> int:
        """Size of the .txnindex; 0 without one or without records (a truncation leaves an old file)."""
        if not self.size:
            return 0
        if self._aborted is not None:
            return len(self._aborted) * ENTRY_SIZE
        path = self._path(".txnindex")
        return self._disk.size(path) if self._disk.exists(path) else 0

    def fits_its_indexes(self) -> bool:
        """Whether its index files are complete and end with the segment: it was not longer when they were written."""
        offset_data, time_data = self._read_file(".index"), self._read_file(".timeindex")
        if not self.size or offset_data is None or time_data is None:
            return False
        offset_index = OffsetIndex.from_bytes(self.base_offset, offset_data, self.size)
        time_index = TimeIndex.from_bytes(self.base_offset, time_data)
        return (
            offset_index is not None
            and time_index is not None
            and (len(offset_index) * OFFSET_ENTRY_SIZE, len(time_index) * TIME_ENTRY_SIZE)
            == (len(offset_data), len(time_data))
            and (len(time_index) > 0 or self.max_timestamp < 0)
            and time_index.last[1] < self.next_offset()
        )

    def has_indexes(self, stored: StoredIndexes) -> bool:
        offset_data, time_data = self._read_file(".index") or b"", self._read_file(".timeindex") or b""
        return stored == StoredIndexes(
            len(offset_data) // OFFSET_ENTRY_SIZE,
            crc32c(offset_data),
            len(time_data) // TIME_ENTRY_SIZE,
            crc32c(time_data),
        )

    def load_indexes(self) -> None:
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
                stored = StoredIndexes(len(offset_index), crc32c(offset_data), len(time_index), crc32c(time_data))
                sizes = stored.offset_entries * OFFSET_ENTRY_SIZE, stored.time_entries * TIME_ENTRY_SIZE
                self._stored = stored if (len(offset_data), len(time_data)) == sizes else NOTHING_STORED
                self.max_timestamp, self._max_timestamp_offset = time_index.last
                return
        self.rebuild_indexes()

    def rebuild_indexes(self) -> None:
        self.reset_indexes(keep_aborted=True)
        next_offset = self.base_offset
        for batch in batch_headers(self.file, 0, self.size):
            if batch.base_offset < next_offset or batch.last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
                self.damaged(batch.position, f"offset {batch.base_offset} after {next_offset - 1}")
                break
            self.note_batch(batch.position, batch.size, batch.last_offset, batch.max_timestamp)
            next_offset = batch.last_offset + 1
        self.time_index.append_if_newer(self.max_timestamp, self._max_timestamp_offset)

    def reset_indexes(self, *, keep_aborted: bool = False) -> None:
        self._offset_index = OffsetIndex(self.base_offset)
        self._time_index = TimeIndex(self.base_offset)
        self._built = True
        if not keep_aborted:
            self._aborted = []
        self.max_timestamp = self.first_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset
        self._bytes_since_index = 0
        self._last_position = -1
        self._stored = NOTHING_STORED
        self._hints.clear()

    def _read_prefix(self, suffix: str, size: int) -> bytes:
        """The first bytes of an index file, whose remainder is replaced by zeros."""
        data = self._read_file(suffix) or b""
        if len(data) > size and (any(data[size:]) or len(data) > size + TIME_ENTRY_SIZE):
            file = self._disk.open(self._path(suffix))
            file.truncate(size)
            file.truncate(size + OFFSET_ENTRY_SIZE)
            file.close()
        return data[:size]

    def _read_file(self, suffix: str) -> bytes | None:
        try:
            return self._disk.read(self._path(suffix))
        except FileNotFoundError:
            return None

    def index_changes(self, *, complete: bool) -> list[IndexChange]:
        """Changes that bring .index and .timeindex up to date (at 0: a rewrite), to write before the next call."""
        self.seal_file()
        offset_index, time_index, stored = self.offset_index, self.time_index, self._stored
        time_index.append_if_newer(self.max_timestamp, self._max_timestamp_offset)
        rewritten = stored is NOTHING_STORED or complete is not self._complete
        changes = []
        offset_data = offset_index.to_bytes(stored.offset_entries)
        if offset_data or rewritten:
            # Zeros at the end: after a power loss the file cannot pass for the index of a shorter, completed segment.
            end = b"" if complete else bytes(OFFSET_ENTRY_SIZE)
            position = stored.offset_entries * OFFSET_ENTRY_SIZE
            changes.append(IndexChange(self._path(".index"), position, offset_data + end))
        time_data = time_index.to_bytes(stored.time_entries)
        if time_data or rewritten:
            end = b"" if complete else bytes(TIME_ENTRY_SIZE)
            position = stored.time_entries * TIME_ENTRY_SIZE
            changes.append(IndexChange(self._path(".timeindex"), position, time_data + end))
        self._complete = complete
        self._stored = StoredIndexes(
            len(offset_index),
            crc32c(offset_data, stored.offset_checksum),
            len(time_index),
            crc32c(time_data, stored.time_checksum),
        )
        return changes

    def index_files(self) -> list[tuple[str, bytes]]:
        """(path, contents) of the index files. An empty aborted list has no file."""
        self._stored = NOTHING_STORED
        files = [(path, data) for path, _, data in self.index_changes(complete=True)]
        if self.aborted:
            files.append((self._path(".txnindex"), encode_aborted(self.aborted)))
        return files

    @property
    def stored(self) -> StoredIndexes:
        return self._stored

    def forget_stored(self) -> None:
        """The index files could not be written: the next changes replace them."""
        self._stored = NOTHING_STORED

    def last_batch(self) -> tuple[int, bytes]:
        """Position and header of the last batch; (0, b"") without one or if it cannot be found."""
        if self._last_position < 0 and self.size:
            self.last_stored()
        if self._last_position < 0:
            return 0, b""
        return self._last_position, self.file.pread(HEADER_SIZE, self._last_position)

    def restore(self, size: int, last_position: int, stored: StoredIndexes, aborted: list[AbortedTxn]) -> bool:
        """Restores the segment at byte `size`. Returns False, without a change, if the index files differ."""
        offset_size, time_size = stored.offset_entries * OFFSET_ENTRY_SIZE, stored.time_entries * TIME_ENTRY_SIZE
        offset_data = self._read_prefix(".index", offset_size)
        time_data = self._read_prefix(".timeindex", time_size)
        if crc32c(offset_data) != stored.offset_checksum or crc32c(time_data) != stored.time_checksum:
            return False
        offset_index = OffsetIndex.from_bytes(self.base_offset, offset_data, size)
        time_index = TimeIndex.from_bytes(self.base_offset, time_data)
        if (
            offset_index is None
            or time_index is None
            or (len(offset_index), len(time_index)) != (stored.offset_entries, stored.time_entries)
        ):
            return False
        self.size = size
        self._offset_index, self._time_index, self._aborted = offset_index, time_index, aborted
        self._built = True
        self._stored = stored
        self._complete = False
        self._last_position = last_position
        self.max_timestamp, self._max_timestamp_offset = time_index.last
        return True

    def seal_file(self) -> None:
        if self._torn or self._reserved_to > self.size:
            self.file.truncate(self.size)
            self._torn = False
        self._reserved_to = 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def damaged(self, position: int, what: str, *, kind: str = ".log") -> BrokerError:
        """The error for damage; logged once for each position."""
        text = f"{self._path(kind)} is damaged at byte {position}: {what}"
        if (kind, position) != self._damaged_at:
            self._damaged_at = (kind, position)
            log.error(
                "Segment is damaged, reads are answered CORRUPT_MESSAGE: file=%s byte=%d error=%s",
                self._path(kind),
                position,
                what,
            )
        return BrokerError(ErrorCode.CORRUPT_MESSAGE, text)

    def next_offset(self) -> int:
        last = self.last_stored()
        return self.base_offset if last is None else last.last_offset + 1

    def last_stored(self) -> StoredBatch | None:
        last = None
        for last in batch_headers(
            self.file, self._last_position if self._last_position >= 0 else self.seek(2**62), self.size
        ):
            self._last_position = last.position
        return last

    def seek(self, offset: int) -> int:
        """Position of a batch at or before the one that contains `offset`. Rebuilds the index if its entry is wrong."""
        last_offset, position = self.offset_index.entry_before(offset)
        if position and not self._built:
            header = self.file.pread(HEADER_SIZE, position)
            if len(header) < HEADER_SIZE or not ends_with(header, 0, last_offset):
                self.rebuild_indexes()
                return self.seek(offset)
        return position

    def note_batch(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Adds an entry to the indexes after every index.interval.bytes."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        self._last_position = position
        if position == 0:
            self.first_timestamp = max_timestamp
        if self._bytes_since_index > self._index_interval:
            self.offset_index.append(last_offset, position)
            self.time_index.append_if_newer(self.max_timestamp, self._max_timestamp_offset)
            self._bytes_since_index = 0
        self._bytes_since_index += size

    # -- appending ------------------------------------------------------------------------------------------------

    def is_full(
        self, size: int, last_offset: int, max_timestamp: int, now_ms: int, config: LogConfig, *, pending: int = 0
    ) -> bool:
        """Whether a batch must begin a new segment (segment.bytes, .ms, .index.bytes). `pending`: bytes before it."""
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

    def reserve(self, size_bytes: int) -> Steps[None]:
        """Writes zeros beyond the end, in slices, for a large batch: the file system writes over them much faster than to a new place.

        Recovery takes zeros for the end of the log. `seal_file` removes them and ends this work. Raises OSError.
        """
        self.seal_file()
        file, position = self.file, self.size
        self._reserved_to = position + size_bytes
        while position < self._reserved_to:
            piece = memoryview(_ZEROS)[: self._reserved_to - position]
            file.pwrite(piece, position)
            yield SLICE
            position = max(position + len(piece), self.size)  # batches may have been appended

    def append(self, data: Buffer, last_offset: int, max_timestamp: int) -> None:
        """Writes one batch with assigned offsets. After an OSError the state is unchanged."""
        position, size = self.size, len(data)
        self._write(data, size)
        self.note_batch(position, size, last_offset, max_timestamp)

    def append_run(self, data: memoryview, batches: Sequence[StoredBatch]) -> None:
        """Writes neighbouring batches of `data` (positions in it) at once. After an OSError the state is unchanged."""
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
        """(position, end offset) of a truncation to `offset`: whole batches below it stay, up to a damaged one."""
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
        """Removes everything from the batch of `offset`, or a damaged one before it; returns the new end offset."""
        aborted = self.aborted
        position, end_offset = self.cut_at(offset)
        self._cuts += 1
        self.file.truncate(position)
        self.size = position
        self._torn = False
        self._reserved_to = 0
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
        """The first batch that ends at or after `offset`. Raises BrokerError (CORRUPT_MESSAGE) for damage before it."""
        position = self.seek(offset)
        for batch in batch_headers(self.file, position, self.size):
            if batch.last_offset >= offset:
                return batch
            position = batch.position + batch.size
        if position != self.size:
            raise self.damaged(position, "no whole batch begins here")
        return None

    def read(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int,
        log_end_offset: int,
        *,
        at_least_one: bool,
        ahead: ReadAhead | None = None,
    ) -> LogSlice | None:
        """Whole batches from the one that contains `offset`, below `end_offset`; None if this segment ends before it.

        With `ahead`, which has the bytes of a long read, it raises LongRead if they are not loaded.
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
        size = min(max(max_bytes, HEADER_SIZE), self.size - position)
        data: Buffer = self.file.pread(size if ahead is None or size <= READ_BYTES_MAX else HEADER_SIZE, position)
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
            size = length + LENGTH_OVERHEAD
        if size > READ_BYTES_MAX and ahead is not None:
            data = ahead.read(self.file, size, position, self._cuts)
        elif length + LENGTH_OVERHEAD > max_bytes:
            data = self.file.pread(size, position)
        # All batches before an indexed position are whole: only later headers are read.
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
        """The first record from `start_offset` on with a timestamp ≥ `timestamp`. Raises BrokerError (CORRUPT_MESSAGE)."""
        position = self.seek(max(start_offset, self.time_index.offset_before(timestamp)))
        size = self.size
        for number, batch in enumerate(batch_headers(self.file, position, size), start=1):
            position = batch.position + batch.size
            if not number % _HEADERS_PER_STEP:
                yield SLICE
            if batch.max_timestamp < timestamp or batch.last_offset < start_offset:
                continue
            try:
                found = yield from self._first_in(batch, timestamp, start_offset)
            except RemoteProtocolError as error:
                raise self.damaged(batch.position, str(error)) from error
            if found is not None:
                return TimestampOffset(*found, batch.leader_epoch)
        if position < min(size, self.size):  # the segment may have been truncated between two steps
            raise self.damaged(position, "no whole batch begins here")
        return None

    def _first_in(self, batch: StoredBatch, timestamp: int | None, start_offset: int) -> Steps[tuple[int, int] | None]:
        """Returns what `first_in_batch` returns. A long batch is searched in the worker thread; None if a truncation removed it."""
        if batch.size <= READ_BYTES_MAX:
            data = self.file.pread(batch.size, batch.position)
            found = yield from first_in_batch(data, timestamp, start_offset)
            return found
        ahead = ReadAhead(self.file, batch.size, batch.position, self._cuts)
        yield from ahead.load()
        try:
            loaded = ahead.read(self.file, batch.size, batch.position, self._cuts)
        except LongRead:
            return None
        found = yield from in_worker(lambda: finished(first_in_batch(loaded, timestamp, start_offset)))
        return found

    def remaining_timestamp(self, start_offset: int) -> Steps[int]:
        """The largest timestamp from `start_offset` on; -1 without one. Raises BrokerError (CORRUPT_MESSAGE)."""
        largest = -1
        for number, batch in enumerate(batch_headers(self.file, self.seek(start_offset), self.size), start=1):
            if not number % _HEADERS_PER_STEP:
                yield SLICE
            if batch.base_offset >= start_offset:
                largest = max(largest, batch.max_timestamp)
            elif batch.last_offset >= start_offset:
                try:
                    found = yield from self._first_in(batch, None, start_offset)
                except RemoteProtocolError as error:
                    raise self.damaged(batch.position, str(error)) from error
                largest = max(largest, -1 if found is None else found[1])
        return largest

    def recorded_timestamp(self) -> int:
        if self._time_index is None:
            self.load_indexes()
        return self.max_timestamp

    def largest_timestamp(self) -> int:
        """The time by which retention judges the segment, in milliseconds since the Unix epoch."""
        recorded = self.recorded_timestamp()
        return recorded if recorded >= 0 else self.created_ms
