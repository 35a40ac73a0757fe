"""Opening a partition's folder: what is there, what of it holds, and the state that follows from it.

Driven by: PartitionLog.open. Emits: segments, producer state, epoch cache and offsets, the folder cleaned of what a crash left.

After a clean stop files are trusted; the producer snapshot at the log's end makes the rest unnecessary. Otherwise every segment that
reaches beyond the recovery point is read whole: it is cut at the first batch that is torn or damaged, later segments go,
indexes are rebuilt, and the producer state is replayed from the newest snapshot below. A snapshot, index or epoch file that does not
check is as good as none. A segment that does not go on where the one before it ends tells of a loss there; in a compacted log it may also
be the cleaner's work, believed where the index files agree with the shorter segment.

Invariants: nothing below the recovery point is lost or rewritten; segments left follow one another upwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from barnabas.limits import RETAINED_BATCHES
from barnabas.ports import Disk
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
from barnabas.storage.segment import Segment, file_name

__all__ = [
    "CLEANED_SUFFIX",
    "DELETED_SUFFIX",
    "INDEX_SUFFIXES",
    "SNAPSHOT_SUFFIX",
    "SWAP_SUFFIX",
    "LoadedLog",
    "load",
    "read_topic_id",
    "rebuild_producers",
    "snapshot_offsets",
]

DELETED_SUFFIX = ".deleted"
SNAPSHOT_SUFFIX = ".snapshot"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
# Of the log's end, looked through for producers' last batches, or more where batches are large.
_REMEMBERED_BYTES = 16 * 1024
_REMEMBERED_BYTES_MAX = 8 * 1024 * 1024
_CONTROL = 0x20
_LEFTOVER_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")  # Kafka deletes the same ones at a start


@dataclass(slots=True)
class LoadedLog:
    """A folder as it was found and mended."""

    segments: list[Segment]
    producers: ProducerState
    epochs: EpochCache
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    recovered: list[Segment]  # read whole: their index files are to be written anew
    snapshot_offset: int  # of the newest producer snapshot; 0 where there is none
    truncated_bytes: int


def load(
    disk: Disk,
    directory: str,
    config: LogConfig,
    *,
    now_ms: int,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
) -> LoadedLog:
    """Reads a folder that exists; arguments as of PartitionLog.open."""
    bases, snapshots = _tidy(disk, directory)
    segments: list[Segment] = []
    for base in bases:
        segment = Segment(disk, directory, base, config=config, now_ms=now_ms)
        segment.load()
        segments.append(segment)
    epochs, epochs_valid = _load_epochs(disk, directory)
    start_offset = max(log_start_offset, segments[0].base_offset) if segments else log_start_offset

    suspect = _first_suspect(segments, clean, recovery_point)
    if not epochs_valid and segments:
        _collect_epochs(segments[:suspect], epochs)
    producers = ProducerState()
    truncated = 0
    if suspect < len(segments):
        end_offset = segments[suspect].base_offset
        epochs.truncate_from_end(end_offset)
        rebuild_producers(
            disk, directory, segments[:suspect], snapshots, producers, config, now_ms, start_offset, end_offset
        )
        truncated = _recover(disk, directory, segments, suspect, producers, epochs, config)
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
    snapshots = _drop_stray_snapshots(
        disk, directory, snapshots, {segment.base_offset for segment in segments}, end_offset
    )
    if suspect >= len(segments) or producers.end_offset != end_offset:
        rebuild_producers(disk, directory, segments, snapshots, producers, config, now_ms, start_offset, end_offset)
    recovered_to = end_offset if clean and suspect >= len(segments) else min(recovery_point, end_offset)
    return LoadedLog(
        segments=segments,
        producers=producers,
        epochs=epochs,
        log_start_offset=start_offset,
        log_end_offset=end_offset,
        recovery_point=recovered_to,
        recovered=segments[suspect:],
        snapshot_offset=max(snapshots, default=0),
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


def _drop_stray_snapshots(
    disk: Disk, directory: str, offsets: list[int], bases: set[int], end_offset: int
) -> list[int]:
    """Keeps the snapshots of segments and the newest one, which a clean stop wrote; none above the log end. Returns those kept."""
    newest = max((offset for offset in offsets if offset <= end_offset), default=-1)
    kept = []
    for offset in offsets:
        if offset == newest or (offset <= end_offset and offset in bases):
            kept.append(offset)
        else:
            disk.remove(f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}")
    return kept


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
) -> None:
    """Sets `state` to that of the log at `end_offset`: the newest good snapshot, then the batches after it.

    A damaged snapshot is removed. Producers of the snapshot that are too old at `now_ms` are left out; None lets all of them live.
    """
    state.clear(start_offset)
    for offset in reversed(snapshots):
        if not start_offset < offset <= end_offset:
            continue
        path = f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
        try:
            state.load_snapshot(disk.read(path), offset, now_ms, config.producer_id_expiration_ms)
            break
        except MalformedSnapshot:
            disk.remove(path)
    for index, segment in enumerate(segments):
        if index + 1 < len(segments) and segments[index + 1].base_offset <= state.end_offset:
            continue
        if state.end_offset >= end_offset:
            break
        for batch in walk(segment.file, segment.seek(state.end_offset), segment.size):
            if batch.base_offset >= end_offset:
                break
            if batch.last_offset >= state.end_offset:
                # Only markers need their records.
                data = segment.file.pread(batch.size, batch.position) if batch.attributes & _CONTROL else b""
                replay(state, batch, data)
    state.end_offset = end_offset
    if segments and any(entry.batches for entry in state.entries.values()):
        _remember_batches(segments[-1], state, end_offset)


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


def _tidy(disk: Disk, directory: str) -> tuple[list[int], list[int]]:
    """Removes what a crash left behind; returns the base offsets of segments and the offsets of snapshots, both ascending."""
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
    return sorted(map(int, kept)), snapshot_offsets(names)


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


def _first_suspect(segments: list[Segment], clean: bool, recovery_point: int) -> int:
    """Index of the first segment that must be read whole; len(segments) where none must."""
    if clean:
        for index, segment in enumerate(segments):
            end = 0
            if index == len(segments) - 1:
                for batch in walk(segment.file, segment.seek(2**62), segment.size):
                    end = batch.position + batch.size
                if end != segment.size:
                    return index  # the mark of a clean stop was wrong about it
            if not segment.has_valid_aborted():
                return index
        return len(segments)
    for index in range(1, len(segments)):
        if segments[index].base_offset > recovery_point:
            return index - 1
    return max(0, len(segments) - 1)


def _collect_epochs(segments: list[Segment], epochs: EpochCache) -> None:
    """The epoch file is damaged: epochs stand in the batches too."""
    for segment in segments:
        for batch in walk(segment.file, 0, segment.size):
            if batch.leader_epoch > epochs.latest_epoch:
                epochs.assign(batch.leader_epoch, batch.base_offset)


def _recover(
    disk: Disk,
    directory: str,
    segments: list[Segment],
    first: int,
    producers: ProducerState,
    epochs: EpochCache,
    config: LogConfig,
) -> int:
    """Reads segments from `first` on, cuts at the first damage, drops what follows it. Returns the bytes that went."""
    truncated = 0
    next_offset = segments[first].base_offset
    for index in range(first, len(segments)):
        segment = segments[index]
        whole = segment.base_offset == next_offset or (
            segment.base_offset > next_offset and config.compacted and segments[index - 1].fits_its_indexes()
        )
        if truncated or not whole:
            for later in segments[index:]:
                truncated += later.size
                remove_segment(disk, directory, later)
            del segments[index:]
            break
        file_size = segment.size
        segment.reset_indexes()
        segment.size = 0
        for batch, data in scan(segment.file, 0, file_size):
            if batch.base_offset < segment.base_offset:
                break
            segment.note_batch(batch.position, batch.size, batch.last_offset, batch.max_timestamp)
            segment.size += batch.size
            completed = replay(producers, batch, data)
            entry = completed.index_entry() if completed is not None else None
            if entry is not None:
                segment.aborted.append(entry)
            if batch.leader_epoch > epochs.latest_epoch:
                epochs.assign(batch.leader_epoch, batch.base_offset)
            next_offset = batch.last_offset + 1
        if segment.size < file_size:
            segment.file.truncate(segment.size)
            truncated += file_size - segment.size
    return truncated
