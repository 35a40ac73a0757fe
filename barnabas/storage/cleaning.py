"""Cleaner of one compacted log, in short steps; after a crash at any point a reader gets the same records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple, TypeVar

from barnabas.errors import BarnabasError
from barnabas.ports import Disk, File
from barnabas.protocol.batch_layout import ATTRIBUTE_CONTROL, HEADER_SIZE
from barnabas.protocol.records import read_header
from barnabas.storage.cleanable import Cleanable, group_segments
from barnabas.storage.compaction import CleanedTransactions, OffsetMap, Rewriter, last_records
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.recovery import CLEANED_SUFFIX
from barnabas.storage.replay import StoredBatch, scan, stored_batch
from barnabas.storage.segment import FILE_KINDS, Segment
from barnabas.storage.steps import record_slices, unpacked
from barnabas.work import Steps

STEP_COST: Final = 48 * 1024  # of one step: about a millisecond
RECORD_COST: Final = 100  # minimal cost of a record, however well it was compressed
T = TypeVar("T")
WRITE_BYTES: Final = 64 * 1024  # of the new segment, collected for one write


class CleaningAborted(BarnabasError):
    """The log was truncated, deleted or reconfigured during the cleaning. Segments that were swapped in before stay."""


class CorruptSegment(BarnabasError):
    """A batch in the middle of a segment is unreadable. The log is not changed."""


class CleaningStep(NamedTuple):
    """The result of one step."""

    size_bytes: int  # read and written
    files: tuple[File, ...] = ()  # the caller must sync them before the next step
    work: Callable[[], None] | None = None  # the caller must call it before the next step, in a thread if it has one


class Cleaning:
    """One cleaning of a log; it may pause or stop between two steps.

    `map_bytes_max` limits the memory for keys (log.cleaner.dedupe.buffer.size). After the last step everything below
    `end_offset` is clean; `bytes_before` and `bytes_after` are the sizes of the replaced segments and of their
    replacements.
    """

    def __init__(self, disk: Disk, log: PartitionLog, cleanable: Cleanable, *, now_ms: int, map_bytes_max: int) -> None:
        self.end_offset = 0
        self.keys = 0
        self.bytes_before = 0
        self.bytes_after = 0
        self._disk = disk
        self._log = log
        self._cuts = log.cuts
        self._first_dirty = cleanable.first_dirty_offset
        self._end = cleanable.first_uncleanable_offset
        self._now_ms = now_ms
        self._map = OffsetMap(map_bytes_max)
        self._segments = [segment for segment in log.segments if segment.base_offset < self._end]
        self._cost = 0
        self._bytes = 0

    def steps(self) -> Generator[CleaningStep]:
        """Close the iterator to stop early.

        Raises:
            CleaningAborted: the log has changed.
            CorruptSegment, RemoteProtocolError: the log cannot be read.
            OSError: the disk failed.
        """
        yield from self._learn_keys()
        self.keys = len(self._map)
        self.end_offset = self._map.latest_offset + 1
        log = self._log
        segments = [segment for segment in self._segments if segment.base_offset < self.end_offset]
        transactions = CleanedTransactions(log.aborted_transactions(segments[0].base_offset, self._end))
        rewriter = Rewriter(
            self._map, transactions, {}, now_ms=self._now_ms, delete_retention_ms=log.config.delete_retention_ms
        )
        end = self._end if len(segments) == len(self._segments) else self._segments[len(segments)].base_offset
        cleaned = None
        for group in group_segments(segments, log.config.segment_bytes, end):
            rewriter.producers = last_records(log.producers)
            cleaned = Segment(
                self._disk,
                log.directory,
                group[0].base_offset,
                config=log.config,
                now_ms=group[-1].created_ms,
                suffix=CLEANED_SUFFIX,
            )
            try:
                yield from self._rewrite(group, cleaned, rewriter, transactions)
            except BaseException:
                with contextlib.suppress(OSError):  # the next start removes files that cannot be removed now
                    self._discard(cleaned)
                raise
            self._segments = self._segments[len(group) :]
            self.bytes_before += sum(segment.size for segment in group)
            self.bytes_after += cleaned.size
            yield from self._stop(0)
        if cleaned is not None:
            yield CleaningStep(0, (cleaned.file,))
            self._check()
        log.cleaned_to = self.end_offset

    # -- between steps --------------------------------------------------------------------------------------------

    def _check(self) -> None:
        log = self._log
        if log.cuts != self._cuts or not log.config.compacted or not log.segments.holds(self._segments):
            raise CleaningAborted(f"{log.directory} changed while it was cleaned")

    def _stop(self, cost: int, *, always: bool = True) -> Iterator[CleaningStep]:
        self._cost += cost
        if always or self._cost >= STEP_COST:
            size, self._cost, self._bytes = self._bytes, 0, 0
            yield CleaningStep(size)
            self._check()

    def _taken(self, steps: Steps[T]) -> Generator[CleaningStep, None, T]:
        """Runs the work on one batch; its steps become steps of the cleaning."""
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            size, self._cost, self._bytes = self._bytes, 0, 0
            yield CleaningStep(size, (), None if isinstance(step, int) else step)
            self._check()

    def _batches(self, segment: Segment, position: int) -> Iterator[tuple[StoredBatch, memoryview]]:
        end_offset = self._end_of(segment)
        for batch, data in scan(segment.file, position, segment.size):
            if not segment.base_offset <= batch.base_offset <= batch.last_offset < end_offset:
                break  # the checksum does not cover offsets
            yield batch, data
            position = batch.position + batch.size
            self._bytes += batch.size
        if position != segment.size:
            raise CorruptSegment(f"{segment.log_path} cannot be read from byte {position} on, of {segment.size}")

    def _end_of(self, segment: Segment) -> int:
        following = self._log.segments.from_offset(segment.base_offset)
        return following[1].base_offset if len(following) > 1 else self._log.log_end_offset

    # -- the passes -----------------------------------------------------------------------------------------------

    def _learn_keys(self) -> Generator[CleaningStep]:
        offsets = self._map
        first = self._first_dirty
        dirty = [segment for segment in self._log.segments.from_offset(first) if segment.base_offset < self._end]
        transactions = CleanedTransactions(self._log.aborted_transactions(first, self._end))
        for index, segment in enumerate(dirty):
            for batch, data in self._batches(segment, segment.seek(first)):
                if batch.last_offset < first:
                    continue
                header = read_header(data)
                if batch.attributes & ATTRIBUTE_CONTROL:
                    transactions.on_control(header, data)
                elif not transactions.on_data(header):
                    records = yield from self._taken(unpacked(header.compression, data[HEADER_SIZE:]))
                    for number, (_, piece) in enumerate(record_slices(records, header)):
                        if number:
                            yield from self._stop(0)
                        for record in piece:
                            if record.key is not None and record.offset >= first:
                                offsets.put(record.key, record.offset)
                offsets.latest_offset = batch.last_offset
                if offsets.is_full:
                    return
                yield from self._stop(max(batch.size, header.record_count * RECORD_COST), always=False)
            # The map also covers offsets without a record.
            offsets.latest_offset = (dirty[index + 1].base_offset if index + 1 < len(dirty) else self._end) - 1

    def _rewrite(
        self, group: list[Segment], cleaned: Segment, rewriter: Rewriter, transactions: CleanedTransactions
    ) -> Generator[CleaningStep]:
        cleaned.create()
        last = next((segment for segment in reversed(group) if segment.size), None)
        out = bytearray()
        kept: list[StoredBatch] = []
        for segment in group:
            for batch, data in self._batches(segment, 0):
                is_last = segment is last and batch.position + batch.size == segment.size
                stays = yield from self._taken(rewriter.rewrite(data, last=is_last))
                cost = max(batch.size, RECORD_COST * read_header(data).record_count)
                if stays is not None:
                    stored = stored_batch(stays, 0, len(out))
                    if stored is not None:
                        kept.append(stored)
                        out += stays
                if len(out) >= WRITE_BYTES:
                    self._write(cleaned, out, kept)
                    out, kept = bytearray(), []
                yield from self._stop(cost, always=False)
        self._write(cleaned, out, kept)
        cleaned.aborted.extend(transactions.kept)
        transactions.kept.clear()
        files = [cleaned.file]
        for path, contents in cleaned.index_files():
            file = self._disk.open(path, create=True)
            file.pwrite(contents, 0)
            files.append(file)
        yield CleaningStep(self._bytes, tuple(files))
        for file in files:
            file.close()
        self._bytes = 0
        self._check()
        self._log.swap_in(cleaned, group, self._now_ms)

    def _write(self, cleaned: Segment, out: bytearray, kept: list[StoredBatch]) -> None:
        if kept:
            cleaned.append_run(memoryview(out), kept)
            self._bytes += len(out)

    def _discard(self, cleaned: Segment) -> None:
        cleaned.close()
        for kind in FILE_KINDS:
            self._disk.remove(f"{self._log.directory}/{cleaned.base_offset:020d}{kind}{CLEANED_SUFFIX}")
