"""Reader of stopped log directories: lists segments, follows their transactions (KIP-98), returns their records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from barnabas.client.consumer.core.read_committed import AbortedFilter
from barnabas.client.consumer.ranges import Chunk, deliverable
from barnabas.errors import BarnabasError, RemoteProtocolError
from barnabas.pipeline.errors import PipelineError
from barnabas.ports import Disk, DiskLock
from barnabas.protocol.batch_layout import ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL
from barnabas.protocol.records import CONTROL_ABORT, CONTROL_COMMIT, decode_records, iter_batches, read_control
from barnabas.storage.checkpoints import read_offsets
from barnabas.storage.replay import scan

LOCK_FILE = ".lock"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
_READ_BYTES = 4 * 1024 * 1024


class Segment(NamedTuple):
    """One .log file of a log directory."""

    root: str
    topic: str
    partition: int
    path: str  # relative to root
    base_offset: int
    log_start: int  # log start offset of the partition: earlier records are deleted
    is_last: bool


class Marker(NamedTuple):
    """Beginning or end of a producer's transaction, at `offset`."""

    offset: int
    producer_id: int
    kind: str  # begin, commit, abort


class SegmentScan(NamedTuple):
    """Scan of a segment's batch headers."""

    segment: Segment
    first_offset: int
    next_offset: int
    leader_epoch: int  # of its last batch; −1 without batches
    cut_bytes: int  # bytes after its last whole batch
    markers: tuple[Marker, ...]


class Aborted(NamedTuple):
    """An aborted transaction; offsets inclusive."""

    producer_id: int
    first_offset: int
    last_offset: int


class Decided(NamedTuple):
    """Transactions of one partition."""

    aborted: tuple[Aborted, ...]
    first_open: int | None  # first offset of the earliest open transaction


def lock_directory(disk: Disk, root: str) -> DiskLock:
    """Locks a log directory against brokers. Raises PipelineError if one runs on it."""
    try:
        return disk.lock(LOCK_FILE)
    except BarnabasError as error:
        raise PipelineError(
            "data", root, "stop the broker, or read from it by --bootstrap", "is used by a running broker"
        ) from error
    except OSError as error:
        raise PipelineError(
            "data", root, "give a directory that can be locked", f"cannot be locked: {error}"
        ) from error


def segments_of(disk: Disk, root: str, topics: Sequence[str]) -> list[Segment]:
    starts: Mapping[tuple[str, int], int] = read_offsets(disk, LOG_START_CHECKPOINT)
    found = []
    for folder in disk.listdir("."):
        topic, dash, number = folder.rpartition("-")
        if not dash or topic not in topics or not number.isdecimal():
            continue
        names = [name for name in disk.listdir(folder) if re.fullmatch(r"\d{20}\.log", name)]
        for name in names:
            found.append(
                Segment(
                    root,
                    topic,
                    int(number),
                    f"{folder}/{name}",
                    int(name[:20]),
                    starts.get((topic, int(number)), 0),
                    name == names[-1],
                )
            )
    return sorted(found, key=lambda s: (s.topic, s.partition, s.base_offset))


def scan_segment(disk: Disk, segment: Segment) -> SegmentScan:
    """Scans a segment. A wrong checksum ends the last segment, as in recovery; elsewhere it raises PipelineError."""
    file = disk.open(segment.path)
    try:
        size = file.size()
        first, end, epoch, position = -1, segment.base_offset, -1, 0
        open_producers: dict[int, None] = {}
        markers = []
        for batch, data in scan(file, 0, size):
            if first < 0:
                first = batch.base_offset
            end, epoch, position = batch.last_offset + 1, batch.leader_epoch, batch.position + batch.size
            producer = batch.producer_id
            if batch.attributes & ATTRIBUTE_CONTROL:
                kind = _end_of_transaction(data) if producer >= 0 else ""
                if kind:
                    markers.append(Marker(batch.last_offset, producer, kind))
                    open_producers.pop(producer, None)
            elif batch.attributes & ATTRIBUTE_TRANSACTIONAL and producer not in open_producers:
                open_producers[producer] = None
                markers.append(Marker(batch.base_offset, producer, "begin"))
    finally:
        file.close()
    if position < size and not segment.is_last:
        raise PipelineError(
            "data",
            f"{segment.root}/{segment.path}",
            "inspect it with `barnabas dump`, or export from a broker that has another copy",
            f"breaks off at byte {position} of {size}",
        )
    return SegmentScan(segment, max(first, segment.base_offset), end, epoch, size - position, tuple(markers))


def _end_of_transaction(data: memoryview) -> str:
    try:
        records = decode_records(data)
        kind = read_control(records[0]).type if records else -1
    except RemoteProtocolError:
        return ""
    return {CONTROL_ABORT: "abort", CONTROL_COMMIT: "commit"}.get(kind, "")


def newest_copy(scans: Iterable[SegmentScan]) -> list[SegmentScan]:
    """The segments of each partition's newest copy: by leader epoch, then by length."""
    copies: dict[tuple[str, int], dict[str, list[SegmentScan]]] = {}
    for each in scans:
        segment = each.segment
        copies.setdefault((segment.topic, segment.partition), {}).setdefault(segment.root, []).append(each)
    found: list[SegmentScan] = []
    for key in sorted(copies):
        by_root = copies[key]
        root = max(sorted(by_root), key=lambda r: (max(s.leader_epoch for s in by_root[r]), by_root[r][-1].next_offset))
        found += by_root[root]
    return found


def decided(scans: Iterable[SegmentScan]) -> Decided:
    begun: dict[int, int] = {}
    aborted = []
    for each in scans:
        for marker in each.markers:
            if marker.kind == "begin":
                begun.setdefault(marker.producer_id, marker.offset)
                continue
            first = begun.pop(marker.producer_id, None)
            if first is not None and marker.kind == "abort":
                aborted.append(Aborted(marker.producer_id, first, marker.offset))
    return Decided(tuple(aborted), min(begun.values(), default=None))


def chunks_of(
    disk: Disk, wanted: SegmentScan, start: int, end: int, aborted: Sequence[Aborted] | None
) -> Iterator[Chunk]:
    """Records of the offsets [start, end); `aborted` are aborted transactions, for read_committed."""
    judge = None
    if aborted is not None:
        reach = [a for a in aborted if a.last_offset >= wanted.first_offset and a.first_offset < wanted.next_offset]
        judge = AbortedFilter((a.producer_id, a.first_offset) for a in reach)
    file = disk.open(wanted.segment.path)
    try:
        position, size = 0, file.size() - wanted.cut_bytes
        room = _READ_BYTES
        while position < size:
            data = file.pread(min(room, size - position), position)
            whole = reached = 0
            for at, header in iter_batches(data):
                whole = at + header.size_bytes
                if header.base_offset < end:
                    reached = whole
            if not whole and len(data) < size - position:
                room *= 2  # the batch is larger than the buffer
                continue
            if not reached:
                return
            position += whole
            room = _READ_BYTES
            yield deliverable(memoryview(data)[:reached], wanted.first_offset, judge, start=start)
    finally:
        file.close()
