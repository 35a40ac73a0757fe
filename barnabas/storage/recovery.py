"""Opening a partition's folder: what is there, what of it holds, and the state that follows from it.

Driven by: PartitionLog.open. Emits: segments, producer state, epoch cache and offsets, the folder cleaned of what a crash left.

After a clean stop files are trusted; the producer snapshot at the log's end makes the rest unnecessary. Otherwise reading begins at
the newest state that the log saved (`saved_state`) and that may be believed: after a kill the last one, after a power loss the last
one that was synced. Without one, it begins at the segment that holds the recovery point. Headers below the recovery point are
believed; from there on every batch is read and its checksum checked. The log is cut at the first batch that is torn or damaged, and
later segments are deleted. A snapshot, index or epoch file that fails its check is ignored. A gap between two segments means that
records were lost; in a compacted log the cleaner may have made it, which is believed if the index files agree with the shorter
segment.

`loading` is a generator, so that its caller can do other work between two steps.

Invariants: nothing below the recovery point is lost or rewritten; segments left follow one another upwards.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

from barnabas.limits import RETAINED_BATCHES
from barnabas.ports import Disk, File
from barnabas.storage.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    MalformedCheckpoint,
    parse_epochs,
    parse_partition_metadata,
)
from barnabas.storage.epochs import EpochCache
from barnabas.storage.log_config import LogConfig
from barnabas.storage.producers import MalformedSnapshot, ProducerState, RetainedBatch
from barnabas.storage.replay import StoredBatch, replay, scan, walk
from barnabas.storage.saved_state import SavedState, read_states
from barnabas.storage.segment import RELATIVE_OFFSET_MAX, Segment, file_name

__all__ = [
    "CLEANED_SUFFIX",
    "DELETED_SUFFIX",
    "INDEX_SUFFIXES",
    "SNAPSHOT_SUFFIX",
    "SWAP_SUFFIX",
    "LoadedLog",
    "drain",
    "loading",
    "read_topic_id",
    "rebuild_producers",
    "snapshot_offsets",
]

T = TypeVar("T")

DELETED_SUFFIX = ".deleted"
SNAPSHOT_SUFFIX = ".snapshot"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
# Read in one step: some milliseconds of work.
_STEP_BATCHES = 128
_STEP_BYTES = 2 * 1024 * 1024
# Of the log's end, looked through for producers' last batches, or more where batches are large.
_REMEMBERED_BYTES = 16 * 1024
_REMEMBERED_BYTES_MAX = 8 * 1024 * 1024
LARGE_BYTES = 256 * 1024  # a segment of less is read whole sooner than a state of it is written
_CONTROL = 0x20
_LEFTOVER_SUFFIXES = (CLEANED_SUFFIX, ".tmp")  # Kafka removes the same ones at a start, and .deleted files


@dataclass(slots=True)
class LoadedLog:
    """A folder as it was found and repaired."""

    segments: list[Segment]
    producers: ProducerState
    epochs: EpochCache
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    recovered: list[Segment]  # read: their index files are to be completed
    unsynced: list[
        Segment
    ]  # they reach beyond the recovery point: what the last process left of them may not be durable
    states: list[SavedState]  # that tell of this log
    snapshots: list[int]  # offsets of the producer snapshots
    deleted: list[str]  # names of files that are still to be removed
    truncated_bytes: int


@dataclass(slots=True)
class _Start:
    """Where reading begins: in which segment, and at which state of it, where one was saved."""

    index: int
    state: SavedState | None = None


def drain(steps: Generator[int, None, T]) -> T:
    """Takes all steps of a generator at once; returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def loading(
    disk: Disk,
    directory: str,
    config: LogConfig,
    *,
    now_ms: int,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    complete_to: int,
) -> Generator[int, None, LoadedLog]:
    """Reads a folder that exists; arguments as of PartitionLog.open.

    Yields:
        First how many bytes of the log are to be read, then, again and again, how many were read since.
    """
    segments: list[Segment] = []
    try:
        return (
            yield from _loading(
                disk, directory, config, now_ms, clean, recovery_point, log_start_offset, complete_to, segments
            )
        )
    except BaseException:
        for segment in segments:
            segment.close()
        raise


def _loading(
    disk: Disk,
    directory: str,
    config: LogConfig,
    now_ms: int,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    complete_to: int,
    segments: list[Segment],
) -> Generator[int, None, LoadedLog]:
    bases, snapshots, names = _tidy(disk, directory)
    deleted = [name for name in names if name.endswith(DELETED_SUFFIX)]
    for base in bases:
        segment = Segment(disk, directory, base, config=config, now_ms=now_ms)
        segment.load()
        segments.append(segment)
    epochs, epochs_valid = _load_epochs(disk, directory) if LEADER_EPOCH_CHECKPOINT in names else (EpochCache(), True)
    start_offset = max(log_start_offset, segments[0].base_offset) if segments else log_start_offset

    states = read_states(disk, directory, names) if config.saves_state else []
    sizes = [segment.size for segment in segments]
    start = (
        _Start(_first_suspect(segments))
        if clean
        else _find_start(segments, [state for state in states if state.counts(disk.boot_id)], recovery_point)
    )
    suspect = start.index
    planned = sum(sizes[suspect:]) - (start.state.size if start.state is not None else 0)
    yield planned
    if not epochs_valid and segments and start.state is None:
        _collect_epochs(segments[:suspect], epochs)
    producers = ProducerState()
    truncated = 0
    if suspect < len(segments):
        if start.state is not None:
            epochs = EpochCache(start.state.epochs)
            epochs.dirty = True
            complete = start.state.complete and start_offset == 0
            _take_producers(start.state, producers, config, now_ms, segments[suspect], complete=complete)
        else:
            end_offset = segments[suspect].base_offset
            epochs.truncate_from_end(end_offset)
            yield from _rebuilding(
                disk,
                directory,
                segments[:suspect],
                snapshots,
                producers,
                config,
                now_ms,
                start_offset,
                end_offset,
                complete_to,
            )
        truncated = yield from _recovering(
            disk, directory, segments, start, sizes, producers, epochs, config, 0 if clean else recovery_point, states
        )
    end_offset = segments[-1].next_offset() if segments else start_offset
    if start_offset > end_offset or not segments:
        # What is left lies below the log start that was acknowledged (DeleteRecords): begin anew there.
        for segment in segments:
            remove_segment(disk, directory, segment)
        end_offset = start_offset
        fresh = Segment(disk, directory, start_offset, config=config, now_ms=now_ms)
        fresh.create()
        segments = [fresh]
        epochs.clear()
    epochs.truncate_from_end(end_offset)
    epochs.truncate_from_start(start_offset)
    snapshots = _drop_snapshots_above(disk, directory, snapshots, end_offset)
    if suspect >= len(segments) or producers.end_offset != end_offset:
        yield from _rebuilding(
            disk, directory, segments, snapshots, producers, config, now_ms, start_offset, end_offset, complete_to
        )
    if clean and suspect >= len(segments):
        recovered_to = end_offset
    else:
        synced = max((state.end_offset for state in states if state.synced and state is start.state), default=0)
        recovered_to = min(max(recovery_point, synced), end_offset)
    active = segments[-1]
    return LoadedLog(
        segments=segments,
        producers=producers,
        epochs=epochs,
        log_start_offset=start_offset,
        log_end_offset=end_offset,
        recovery_point=recovered_to,
        recovered=segments[suspect:],
        unsynced=[] if clean and suspect >= len(segments) else segments[_holding(segments, recovered_to) :],
        states=[
            state
            for state in states
            if state is start.state
            or (state.base_offset, state.end_offset, state.size) == (active.base_offset, end_offset, active.size)
        ],
        snapshots=snapshots,
        deleted=deleted,
        truncated_bytes=truncated,
    )


def read_topic_id(disk: Disk, directory: str) -> bytes | None:
    """The topic that a folder belongs to; None where the file is missing, or torn by a power loss before its first sync."""
    try:
        return parse_partition_metadata(disk.read(f"{directory}/{PARTITION_METADATA}"))
    except (FileNotFoundError, MalformedCheckpoint):
        return None


def remove_segment(disk: Disk, directory: str, segment: Segment) -> None:
    """Deletes a segment's files at once, the log last, so that what a crash leaves is a segment or nothing."""
    segment.close()
    for suffix in (SNAPSHOT_SUFFIX, *INDEX_SUFFIXES, ".log"):
        disk.remove(f"{directory}/{file_name(segment.base_offset, suffix)}")


def snapshot_offsets(names: list[str]) -> list[int]:
    """Offsets of the producer snapshots among a folder's names, ascending."""
    end = len(SNAPSHOT_SUFFIX)
    return [int(name[:-end]) for name in names if name.endswith(SNAPSHOT_SUFFIX) and name[:-end].isdigit()]


def _drop_snapshots_above(disk: Disk, directory: str, offsets: list[int], end_offset: int) -> list[int]:
    """Removes the snapshots above the log end; returns those kept. What earlier stops left goes at the next one (`ProducerSnapshots`)."""
    for offset in offsets:
        if offset > end_offset:
            disk.remove(f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}")
    return [offset for offset in offsets if offset <= end_offset]


def rebuild_producers(
    disk: Disk,
    directory: str,
    segments: list[Segment],
    snapshots: list[int],
    state: ProducerState,
    config: LogConfig,
    now_ms: int | None,
    start_offset: int,
    end_offset: int,
    complete_to: int,
) -> None:
    """Sets `state` to that of the log at `end_offset`: the newest good snapshot, then the batches after it.

    A snapshot up to `complete_to` is of a complete state, unless records were deleted since; of -1 nothing is. A damaged snapshot
    is removed. Producers of the snapshot that are too old at `now_ms` are left out; None keeps all of them.
    """
    for _ in _rebuilding(
        disk, directory, segments, snapshots, state, config, now_ms, start_offset, end_offset, complete_to
    ):
        pass


def _rebuilding(
    disk: Disk,
    directory: str,
    segments: list[Segment],
    snapshots: list[int],
    state: ProducerState,
    config: LogConfig,
    now_ms: int | None,
    start_offset: int,
    end_offset: int,
    complete_to: int,
) -> Iterator[int]:
    """`rebuild_producers` in steps; yields 0, for what it reads was not planned."""
    state.clear(start_offset)
    state.complete = start_offset == 0 and complete_to >= 0
    for offset in reversed(snapshots):
        if not start_offset < offset <= end_offset:
            continue
        path = f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
        try:
            complete = start_offset == 0 and offset <= complete_to
            state.load_snapshot(disk.read(path), offset, now_ms, config.producer_id_expiration_ms, complete=complete)
            break
        except (MalformedSnapshot, FileNotFoundError):
            disk.remove(path)
    for index, segment in enumerate(segments):
        if index + 1 < len(segments) and segments[index + 1].base_offset <= state.end_offset:
            continue
        if state.end_offset >= end_offset:
            break
        for count, batch in enumerate(walk(segment.file, segment.seek(state.end_offset), segment.size), 1):
            if not count % _STEP_BATCHES:
                yield 0
            if batch.base_offset >= end_offset:
                break
            if batch.last_offset >= state.end_offset:
                # Only markers need their records.
                data = segment.file.pread(batch.size, batch.position) if batch.attributes & _CONTROL else b""
                replay(state, batch, data)
    state.end_offset = end_offset
    if segments and any(entry.batches for entry in state.entries.values()):
        _remember_batches(segments[-1], state, end_offset)


def _take_producers(
    saved: SavedState, state: ProducerState, config: LogConfig, now_ms: int, segment: Segment, *, complete: bool
) -> None:
    """Producers as they were when a state was saved, in the segment brought to where that ends. Raises MalformedSnapshot."""
    state.load_snapshot(saved.producers, saved.end_offset, now_ms, config.producer_id_expiration_ms, complete=complete)
    state.end_offset = saved.end_offset
    if any(entry.batches for entry in state.entries.values()):
        _remember_batches(segment, state, saved.end_offset)


def _remember_batches(segment: Segment, state: ProducerState, end_offset: int) -> None:
    """A snapshot holds each producer's last batch alone; the log's end tells of those before, so that a retry of one is recognised."""
    largest = max((batch.size for batch in _last_batches(segment, _REMEMBERED_BYTES, end_offset)), default=0)
    size = min(max(_REMEMBERED_BYTES, RETAINED_BATCHES * largest), _REMEMBERED_BYTES_MAX)
    found: dict[int, list[StoredBatch]] = {}
    for batch in _last_batches(segment, size, end_offset):
        entry = state.entries.get(batch.producer_id)
        if entry is not None and batch.producer_epoch == entry.epoch and not batch.attributes & _CONTROL:
            found.setdefault(batch.producer_id, []).append(batch)
    for producer_id, batches in found.items():
        state.remember(
            producer_id,
            [
                RetainedBatch.of(one.base_sequence, one.base_offset, one.last_offset, one.max_timestamp)
                for one in batches
            ],
        )


def _last_batches(segment: Segment, size: int, end_offset: int) -> Iterator[StoredBatch]:
    """Batches below `end_offset` in at least the last `size` bytes of a segment, as far as it reaches."""
    last_offset, position = segment.offset_index.entry_up_to(max(0, segment.size - size), end_offset)
    for batch in walk(segment.file, segment.seek(last_offset) if position else 0, segment.size):
        if batch.base_offset >= end_offset:
            return
        yield batch


def _tidy(disk: Disk, directory: str) -> tuple[list[int], list[int], list[str]]:
    """Removes what a crash left behind, but for .deleted files, which may be large: they are removed later.

    Returns the base offsets of segments and the offsets of snapshots, both ascending, and the names of all files.
    """
    names = disk.listdir(directory)
    # The cleaner renames all files of a segment to .swap before it touches another: one that is not renamed yet makes the others void.
    unfinished = min((name[:20] for name in names if name.endswith(CLEANED_SUFFIX)), default="~")
    leftovers = [
        name
        for name in names
        if name.endswith(_LEFTOVER_SUFFIXES) or (name.endswith(SWAP_SUFFIX) and name[:20] >= unfinished)
    ]
    # .cleaned files go last: without them a crash here would make the others valid.
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
    """A cleaned segment named .swap was written whole: the segments that it covers go, and it takes their place."""
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    for swap in swaps:
        stem, _, suffix = swap.partition(".")
        if suffix != "log" + SWAP_SUFFIX:
            continue
        end_offset = int(stem) + 1
        file = disk.open(f"{directory}/{swap}")
        for batch in walk(file, 0, file.size()):
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
    except FileNotFoundError:
        return EpochCache(), True
    except MalformedCheckpoint:
        return EpochCache(), False


def _first_suspect(segments: list[Segment]) -> int:
    """After a clean stop: index of the first segment that must be read all the same; len(segments) where none must."""
    for index, segment in enumerate(segments):
        if index == len(segments) - 1:
            last = segment.last_stored()
            if segment.size != (0 if last is None else last.position + last.size):
                return index  # the mark of a clean stop was wrong about it
        if not segment.has_valid_aborted():
            return index
    return len(segments)


def _holding(segments: list[Segment], offset: int) -> int:
    """Index of the segment that holds `offset`, or would."""
    for index in range(1, len(segments)):
        if segments[index].base_offset > offset:
            return index - 1
    return max(0, len(segments) - 1)


def _find_start(segments: list[Segment], states: list[SavedState], recovery_point: int) -> _Start:
    """After any other end: the newest state that is this log's, or the segment of the recovery point where that is newer."""
    first = _holding(segments, recovery_point)
    for state in states:
        for index in range(first, len(segments)):
            if segments[index].base_offset == state.base_offset and state.restore(segments[index]):
                return _Start(index, state)
    return _Start(first)


def _collect_epochs(segments: list[Segment], epochs: EpochCache) -> None:
    """The epoch file is damaged: epochs stand in the batches too."""
    for segment in segments:
        for batch in walk(segment.file, 0, segment.size):
            if batch.leader_epoch > epochs.latest_epoch:
                epochs.assign(batch.leader_epoch, batch.base_offset)


def _recovering(
    disk: Disk,
    directory: str,
    segments: list[Segment],
    start: _Start,
    sizes: list[int],
    producers: ProducerState,
    epochs: EpochCache,
    config: LogConfig,
    recovery_point: int,
    states: list[SavedState],
) -> Generator[int, None, int]:
    """Reads segments from `start` on, cuts at the first damage, drops what follows it. Returns how many bytes that were."""
    truncated = 0
    steps = _Steps()
    state = start.state
    next_offset = segments[start.index].base_offset if state is None else state.end_offset
    for index in range(start.index, len(segments)):
        segment = segments[index]
        resumed = state is not None and index == start.index
        whole = (
            resumed
            or segment.base_offset == next_offset
            or (segment.base_offset > next_offset and config.compacted and _was_cleaned(segments[index - 1], states))
        )
        if truncated or not whole:
            for later, size in zip(segments[index:], sizes[index:], strict=True):
                truncated += size
                remove_segment(disk, directory, later)
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
            data = segment.file.pread(batch.size, batch.position) if batch.attributes & _CONTROL else b""
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
            segment.file.truncate(segment.size)
            truncated += sizes[index] - segment.size
    yield steps.take()
    return truncated


def _was_cleaned(segment: Segment, states: list[SavedState]) -> bool:
    """Whether its index files say that it has always ended where it ends now; not so if they are of a time when it still grew."""
    return segment.fits_its_indexes() and not any(
        state.base_offset == segment.base_offset and segment.has_indexes(state.indexes) for state in states
    )


class _Steps:
    """Counts what is read, and says when a step is long enough."""

    __slots__ = ("_batches", "_bytes")

    def __init__(self) -> None:
        self._batches = self._bytes = 0

    def is_over(self, size: int) -> bool:
        self._batches += 1
        self._bytes += size
        return self._batches >= _STEP_BATCHES or self._bytes >= _STEP_BYTES

    def take(self) -> int:
        """The bytes of the step, which is over."""
        size, self._bytes, self._batches = self._bytes, 0, 0
        return size


def _checked(file: File, position: int, end: int, next_offset: int, recovery_point: int) -> Iterator[StoredBatch]:
    """Whole batches from `position` on whose offsets go up from `next_offset`; checksums are checked beyond the recovery point."""
    if next_offset < recovery_point:
        for batch in walk(file, position, end):
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
