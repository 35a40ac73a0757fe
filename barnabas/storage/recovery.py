"""Recovery of a partition's folder: reads and repairs its files and rebuilds the state.
Nothing below the recovery point is lost or rewritten. A clean stop forbids truncation: damage raises DamagedLog.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

from barnabas.ports import Disk, File
from barnabas.protocol.batch_layout import ATTRIBUTE_CONTROL, HEADER_SIZE
from barnabas.storage.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    NEW_SUFFIX,
    PARTITION_METADATA,
    MalformedCheckpoint,
    parse_epochs,
    parse_partition_metadata,
)
from barnabas.storage.epochs import EpochCache
from barnabas.storage.log_config import LogConfig
from barnabas.storage.opening import DamagedLog, LogOpening
from barnabas.storage.producer_rebuild import LOST_PRODUCERS, SNAPSHOT_SUFFIX, ProducerRebuild
from barnabas.storage.producers import PartitionProducers
from barnabas.storage.replay import StoredBatch, batch_headers, replay, scan
from barnabas.storage.saved_state import SavedState, read_state
from barnabas.storage.segment import RELATIVE_OFFSET_MAX, Segment, file_name

T = TypeVar("T")

DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
# Read in one step: some milliseconds of work.
_STEP_BATCHES = 128
_STEP_BYTES = 2 * 1024 * 1024
LARGE_BYTES = 256 * 1024  # reading a smaller segment takes less time than writing a state of it
_LEFTOVER_SUFFIXES = (CLEANED_SUFFIX, ".tmp")  # Kafka removes these and .deleted files at a start


@dataclass(slots=True)
class LoadedLog:
    """Contents of a folder after the repair."""

    segments: list[Segment]
    producers: PartitionProducers
    epochs: EpochCache
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    recovered: list[Segment]  # segments that were read: their index files must be completed
    # segments that end above the recovery point: the writes of the last process may not be durable
    unsynced: list[Segment]
    state: SavedState | None  # if it belongs to this log
    snapshots: list[int]  # offsets of the producer snapshots
    producers_complete_to: int  # as of ProducerSnapshots.complete_to
    producers_lost: bool  # as of ProducerSnapshots.lost
    deleted: list[str]  # names of files that must still be removed
    truncated_bytes: int


@dataclass(slots=True)
class _Start:
    """Where reading starts: a segment, and its saved state, if any."""

    index: int
    state: SavedState | None = None


def drain(steps: Generator[int, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def loading(disk: Disk, directory: str, config: LogConfig, opening: LogOpening) -> Generator[int, None, LoadedLog]:
    """Reads a folder that exists.

    Reading begins at the saved state or at the segment of the recovery point. Headers below the recovery point are
    trusted; above it every checksum is checked, and the log is truncated at the first torn or damaged batch. Invalid
    snapshots, indexes and epoch files are ignored. A gap between segments means lost records, unless the cleaner made
    it (the index files fit).

    Yields the number of bytes to read, then after each step the bytes read by it. Raises DamagedLog if the last stop
    was clean and the log is damaged; OSError if the disk failed.
    """
    loader = _Loader(disk, directory, config, opening)
    try:
        return (yield from loader.steps())
    except BaseException:
        for segment in loader.segments:
            segment.close()
        raise


class _Loader:
    """Reads one folder by `steps`, once. Attributes as in LoadedLog."""

    def __init__(self, disk: Disk, directory: str, config: LogConfig, opening: LogOpening) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._opening = opening
        self.segments: list[Segment] = []
        self.sizes: list[int] = []  # of the segments' files, as found
        self.state: SavedState | None = None
        self.snapshots: list[int] = []
        self.producers = PartitionProducers()
        self.epochs = EpochCache()
        self.truncated_bytes = 0

    def steps(self) -> Generator[int, None, LoadedLog]:
        disk, directory, config, opening = self._disk, self._directory, self._config, self._opening
        names, epochs_valid = self._load_files()
        segments = self.segments
        start_offset = opening.log_start_offset
        if segments:
            start_offset = max(start_offset, segments[0].base_offset)
        # A log that begins at offset 0 and is read from there has all producers, unless records were lost.
        lost = LOST_PRODUCERS in names
        complete_to = -1 if lost else opening.producers_complete_to
        self.producers.complete = complete_to >= 0
        rebuild = ProducerRebuild(disk, directory, config, complete_to=complete_to, now_ms=opening.now_ms)

        self.state = read_state(disk, directory, names) if config.saves_state else None
        self.sizes = [segment.size for segment in segments]
        self._check_size()
        start = self._find_start()
        yield sum(self.sizes[start.index :]) - (start.state.size if start.state is not None else 0)
        if not epochs_valid and segments and start.state is None:
            yield from _collect_epochs(segments[: start.index], self.epochs)
        if start.index < len(segments):
            yield from self._restore(start, rebuild, start_offset)
            yield from self._recover(start)
        end_offset = self._found_end(start_offset)
        self.epochs.truncate_from_end(end_offset)
        self.epochs.truncate_from_start(start_offset)
        self.snapshots = _drop_snapshots_above(disk, directory, self.snapshots, end_offset)
        unread = start.index >= len(self.segments)
        if unread or self.producers.end_offset != end_offset:
            yield from rebuild.steps(self.producers, self.segments, self.snapshots, start_offset, end_offset)
        trusted = opening.clean and unread
        recovered_to = end_offset if trusted else self._recovered_to(start, end_offset)
        return LoadedLog(
            segments=self.segments,
            producers=self.producers,
            epochs=self.epochs,
            log_start_offset=start_offset,
            log_end_offset=end_offset,
            recovery_point=recovered_to,
            recovered=self.segments[start.index :],
            unsynced=[] if trusted else self._unsynced(start_offset, recovered_to),
            state=self._present_state(start, end_offset),
            snapshots=self.snapshots,
            producers_complete_to=min(complete_to, end_offset),
            producers_lost=lost,
            deleted=[name for name in names if name.endswith(DELETED_SUFFIX)],
            truncated_bytes=self.truncated_bytes,
        )

    def _load_files(self) -> tuple[list[str], bool]:
        """Removes leftovers, opens segments, reads epochs. Returns all names, and whether the epoch file is valid."""
        bases, self.snapshots, names = _tidy(self._disk, self._directory)
        for base in bases:
            segment = Segment(self._disk, self._directory, base, config=self._config, now_ms=self._opening.now_ms)
            segment.load()
            self.segments.append(segment)
        self.epochs, epochs_valid = _load_epochs(self._disk, self._directory)
        return names, epochs_valid

    def _restore(self, start: _Start, rebuild: ProducerRebuild, start_offset: int) -> Generator[int, None, None]:
        before, segment = self.segments[: start.index], self.segments[start.index]
        if start.state is not None:
            self.epochs = EpochCache(start.state.epochs)
            self.epochs.dirty = True
            complete = start.state.complete and start_offset == 0
            yield from rebuild.take(start.state, self.producers, complete=complete)
        else:
            self.epochs.truncate_from_end(segment.base_offset)
            yield from rebuild.steps(self.producers, before, self.snapshots, start_offset, segment.base_offset)

    def _found_end(self, start_offset: int) -> int:
        """The log end after the repair. Starts an empty log if no record at or above `start_offset` remains."""
        segments, opening = self.segments, self._opening
        end_offset = segments[-1].next_offset() if segments else start_offset
        if opening.clean and end_offset < opening.recovery_point:
            path = segments[-1].log_path if segments else self._directory
            raise DamagedLog(
                path, f"the log ends at offset {end_offset}, but it was durable up to {opening.recovery_point}"
            )
        if start_offset <= end_offset and segments:
            return end_offset
        # All remaining records are below the acknowledged log start (DeleteRecords): start an empty log there.
        for segment in segments:
            remove_segment(self._disk, self._directory, segment)
        fresh = Segment(self._disk, self._directory, start_offset, config=self._config, now_ms=opening.now_ms)
        fresh.create()
        self.segments = [fresh]
        self.epochs.clear()
        return start_offset

    def _recovered_to(self, start: _Start, end_offset: int) -> int:
        """The recovery point after reading: records above it may not be durable."""
        synced = 0 if start.state is None else start.state.end_offset
        return min(max(self._opening.recovery_point, synced), end_offset)

    def _unsynced(self, start_offset: int, recovered_to: int) -> list[Segment]:
        """Segments that an earlier process may have left unsynced, also below the log start (DeleteRecords)."""
        segments, first = self.segments, _holding(self.segments, max(recovered_to - 1, 0))
        below = _holding(segments, start_offset) + 1 if start_offset > segments[0].base_offset else 0
        return segments[: min(below, first)] + segments[first:]

    def _present_state(self, start: _Start, end_offset: int) -> SavedState | None:
        state, active = self.state, self.segments[-1]
        if state is None or state is start.state:
            return state
        fits = (state.base_offset, state.end_offset, state.size) == (active.base_offset, end_offset, active.size)
        return state if fits else None

    def _find_start(self) -> _Start:
        """After the last segment if nothing must be read."""
        segments, opening = self.segments, self._opening
        if opening.clean:
            aborted = sum(segment.aborted_bytes() for segment in segments)
            lost_aborted = opening.size is not None and opening.size.aborted_bytes != aborted
            return _Start(0 if lost_aborted and segments else _first_suspect(segments))
        # The state of this log, or the segment of the recovery point if that is newer.
        first = _holding(segments, opening.recovery_point)
        if self.state is not None:
            for index in range(first, len(segments)):
                if segments[index].base_offset == self.state.base_offset and self.state.restore(segments[index]):
                    return _Start(index, self.state)
        return _Start(first)

    def _recover(self, start: _Start) -> Generator[int, None, None]:
        segments, sizes, producers, epochs = self.segments, self.sizes, self.producers, self.epochs
        recovery_point = 0 if self._opening.clean else self._opening.recovery_point
        steps = _Steps()
        state = start.state
        next_offset = segments[start.index].base_offset if state is None else state.end_offset
        for index in range(start.index, len(segments)):
            segment = segments[index]
            resumed = state is not None and index == start.index
            whole = (
                resumed
                or segment.base_offset == next_offset
                or (
                    segment.base_offset > next_offset
                    and self._config.compacted
                    and _was_cleaned(segments[index - 1], self.state)
                )
            )
            if self.truncated_bytes or not whole:
                self._refuse_cut(segment, f"it begins at offset {segment.base_offset}, and {next_offset} should follow")
                for later, size in zip(segments[index:], sizes[index:], strict=True):
                    self.truncated_bytes += size
                    remove_segment(self._disk, self._directory, later)
                del segments[index:]
                break
            if not resumed:
                segment.reset_indexes()
                segment.size = 0
                next_offset = segment.base_offset
            for batch in _checked(segment.file, segment.size, sizes[index], next_offset, recovery_point):
                if batch.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
                    break
                segment.note_batch(batch.position, batch.size, batch.last_offset, batch.max_timestamp)
                segment.size += batch.size
                # Only markers need their records.
                data = segment.file.pread(batch.size, batch.position) if batch.attributes & ATTRIBUTE_CONTROL else b""
                completed = replay(producers, batch, data)
                entry = completed.index_entry() if completed is not None else None
                if entry is not None:
                    segment.aborted.append(entry)
                if batch.leader_epoch > epochs.latest_epoch:
                    epochs.assign(batch.leader_epoch, batch.base_offset)
                next_offset = batch.last_offset + 1
                if steps.is_over(batch.size):
                    yield steps.take()
            if segment.size < sizes[index]:
                self._refuse_cut(
                    segment, f"no whole batch begins at byte {segment.size} of {sizes[index]}, at offset {next_offset}"
                )
                segment.file.truncate(segment.size)
                self.truncated_bytes += sizes[index] - segment.size
        yield steps.take()

    def _check_size(self) -> None:
        """Raises DamagedLog if .log files differ from the clean stop: replaced files leave no other trace."""
        expected = self._opening.size
        if self._opening.clean and expected is not None and sum(self.sizes) != expected.log_bytes:
            raise DamagedLog(
                self._directory,
                f"its .log files have {sum(self.sizes)} bytes, and they had {expected.log_bytes} bytes at the stop",
            )

    def _refuse_cut(self, segment: Segment, what: str) -> None:
        if self._opening.clean:
            raise DamagedLog(segment.log_path, what)


def read_topic_id(disk: Disk, directory: str) -> bytes | None:
    """The id of the topic that owns a folder; None if no file has it, or a power loss before the first sync tore it."""
    for name in (PARTITION_METADATA, PARTITION_METADATA + NEW_SUFFIX):
        with contextlib.suppress(FileNotFoundError, MalformedCheckpoint):
            return parse_partition_metadata(disk.read(f"{directory}/{name}"))
    return None


def remove_segment(disk: Disk, directory: str, segment: Segment) -> None:
    """Deletes a segment's files, the .log last, so that a crash leaves a segment or nothing."""
    segment.close()
    for suffix in (SNAPSHOT_SUFFIX, *INDEX_SUFFIXES, ".log"):
        disk.remove(f"{directory}/{file_name(segment.base_offset, suffix)}")


def snapshot_offsets(names: list[str]) -> list[int]:
    end = len(SNAPSHOT_SUFFIX)
    return [int(name[:-end]) for name in names if name.endswith(SNAPSHOT_SUFFIX) and name[:-end].isdigit()]


def _drop_snapshots_above(disk: Disk, directory: str, offsets: list[int], end_offset: int) -> list[int]:
    for offset in offsets:
        if offset > end_offset:
            disk.remove(f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}")
    return [offset for offset in offsets if offset <= end_offset]


def _tidy(disk: Disk, directory: str) -> tuple[list[int], list[int], list[str]]:
    """Removes a crash's leftovers, except large .deleted files. Returns segments, snapshots and all names, ascending."""
    names = disk.listdir(directory)
    # The cleaner renames all files of a segment to .swap before it changes another: if one is not renamed yet, the others are invalid.
    unfinished = min((name[:20] for name in names if name.endswith(CLEANED_SUFFIX)), default="~")
    leftovers = [
        name
        for name in names
        if name.endswith(_LEFTOVER_SUFFIXES) or (name.endswith(SWAP_SUFFIX) and name[:20] >= unfinished)
    ]
    # .cleaned files are removed last: without them, after a crash here, the others would count as valid.
    for name in sorted(leftovers, key=lambda name: name.endswith(CLEANED_SUFFIX)):
        disk.remove(f"{directory}/{name}")
    if _finish_swaps(disk, directory, [name for name in names if name not in leftovers]) or leftovers:
        names = disk.listdir(directory)
    kept = {name[:-4] for name in names if name.endswith(".log") and name[:-4].isdigit()}
    for name in names:
        stem, _, suffix = name.partition(".")
        if "." + suffix in INDEX_SUFFIXES and stem not in kept:
            disk.remove(f"{directory}/{name}")
    return sorted(map(int, kept)), snapshot_offsets(names), names


def _finish_swaps(disk: Disk, directory: str, names: list[str]) -> bool:
    """Completes the swap of a cleaned segment named .swap: it replaces the segments that it covers."""
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    for swap in swaps:
        stem, _, suffix = swap.partition(".")
        if suffix != "log" + SWAP_SUFFIX:
            continue
        end_offset = int(stem) + 1
        file = disk.open(f"{directory}/{swap}")
        for batch in batch_headers(file, 0, file.size()):
            end_offset = batch.last_offset + 1
        file.close()
        for name in names:
            covered, _, suffix = name.partition(".")
            if (
                covered.isdigit()
                and int(stem) <= int(covered) < end_offset
                and "." + suffix in (*INDEX_SUFFIXES, ".log")
            ):
                disk.remove(f"{directory}/{name}")
    for swap in swaps:
        disk.rename(f"{directory}/{swap}", f"{directory}/{swap.removesuffix(SWAP_SUFFIX)}")
    return bool(swaps)


def _load_epochs(disk: Disk, directory: str) -> tuple[EpochCache, bool]:
    try:
        return EpochCache(parse_epochs(disk.read(f"{directory}/{LEADER_EPOCH_CHECKPOINT}"))), True
    except (FileNotFoundError, MalformedCheckpoint):
        return EpochCache(), False


def _first_suspect(segments: list[Segment]) -> int:
    for index, segment in enumerate(segments):
        if index == len(segments) - 1:
            last = segment.last_stored()
            if segment.size != (0 if last is None else last.position + last.size):
                return index  # the mark of a clean stop was wrong
        if not segment.has_valid_aborted():
            return index
    return len(segments)


def _holding(segments: list[Segment], offset: int) -> int:
    for index in range(1, len(segments)):
        if segments[index].base_offset > offset:
            return index - 1
    return max(0, len(segments) - 1)


def _collect_epochs(segments: list[Segment], epochs: EpochCache) -> Generator[int, None, None]:
    steps = _Steps()
    for segment in segments:
        for batch in batch_headers(segment.file, 0, segment.size):
            if batch.leader_epoch > epochs.latest_epoch:
                epochs.assign(batch.leader_epoch, batch.base_offset)
            if steps.is_over(HEADER_SIZE):
                yield steps.take()


def _was_cleaned(segment: Segment, state: SavedState | None) -> bool:
    """Whether its index files show a segment that was completed with its present end."""
    grew = state is not None and state.base_offset == segment.base_offset and segment.has_indexes(state.indexes)
    return segment.fits_its_indexes() and not grew


class _Steps:
    """Counts the bytes read and decides when a step ends."""

    __slots__ = ("_batches", "_bytes")

    def __init__(self) -> None:
        self._batches = self._bytes = 0

    def is_over(self, size: int) -> bool:
        self._batches += 1
        self._bytes += size
        return self._batches >= _STEP_BATCHES or self._bytes >= _STEP_BYTES

    def take(self) -> int:
        size, self._bytes, self._batches = self._bytes, 0, 0
        return size


def _checked(file: File, position: int, end: int, next_offset: int, recovery_point: int) -> Iterator[StoredBatch]:
    """Whole batches with ascending offsets from `position` on. Checks checksums above the recovery point."""
    if next_offset < recovery_point:
        for batch in batch_headers(file, position, end):
            if batch.base_offset < next_offset or batch.last_offset >= recovery_point:
                break
            yield batch
            position += batch.size
            next_offset = batch.last_offset + 1
    for batch, _ in scan(file, position, end):
        if batch.base_offset < next_offset:
            return
        yield batch
        next_offset = batch.last_offset + 1
