"""Reads batches of a file and replays them into producer state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from barnabas.errors import RemoteProtocolError
from barnabas.ports import Buffer, File
from barnabas.protocol.batch_layout import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_LENGTH_MIN,
    CRC_COVERS_FROM,
    CRC_OFFSET,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    struct_of,
    unpack_crc,
)
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.records import CONTROL_ABORT, CONTROL_COMMIT, decode_records, read_control
from barnabas.storage.producers import CompletedTransaction, PartitionProducers

_FIELDS = struct_of(
    "base_offset",
    "batch_length",
    "leader_epoch",
    "magic",
    "attributes",
    "last_offset_delta",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
)
_WALK_CHUNK = 16 * 1024  # a few index intervals
_SCAN_CHUNK = 1024 * 1024


class StoredBatch(NamedTuple):
    """Position of a batch in a file, and its header fields that storage needs."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


def stored_batch(buffer: Buffer, start: int, position: int) -> StoredBatch | None:
    """Header at byte `start` of a buffer, None if not of magic 2. `position` is its position in the file."""
    base, length, epoch, magic, attributes, delta, timestamp, producer_id, producer_epoch, sequence = (
        _FIELDS.unpack_from(buffer, start)
    )
    if magic != MAGIC or length < BATCH_LENGTH_MIN or delta < 0 or base < 0:
        return None
    return StoredBatch(
        position,
        length + LENGTH_OVERHEAD,
        base,
        base + delta,
        epoch,
        attributes,
        timestamp,
        producer_id,
        producer_epoch,
        sequence,
    )


def checksum_holds(data: memoryview) -> bool:
    return bool(crc32c(data[CRC_COVERS_FROM:]) == unpack_crc(data, CRC_OFFSET)[0])


def batch_headers(file: File, position: int, end: int) -> Iterator[StoredBatch]:
    """Headers of whole batches with ascending offsets, up to the first damage. Checksums are not checked."""
    chunk = b""
    chunk_start = position
    while position + HEADER_SIZE <= end:
        if position + HEADER_SIZE > chunk_start + len(chunk):
            chunk = file.pread(min(_WALK_CHUNK, end - position), position)
            chunk_start = position
            if len(chunk) < HEADER_SIZE:
                return
        batch = stored_batch(chunk, position - chunk_start, position)
        if batch is None or position + batch.size > end:
            return
        yield batch
        position += batch.size


def scan(file: File, position: int, end: int) -> Iterator[tuple[StoredBatch, memoryview]]:
    """Whole batches with valid checksums and ascending offsets, each with its bytes, up to the first damage."""
    chunk = memoryview(b"")
    chunk_start = position
    next_offset = 0
    while position + HEADER_SIZE <= end:
        start = position - chunk_start
        if start + HEADER_SIZE > len(chunk):
            chunk, chunk_start, start = memoryview(file.pread(min(_SCAN_CHUNK, end - position), position)), position, 0
            if len(chunk) < HEADER_SIZE:
                return
        batch = stored_batch(chunk, start, position)
        if batch is None or position + batch.size > end or batch.base_offset < next_offset:
            return
        if start + batch.size > len(chunk):
            size = min(max(_SCAN_CHUNK, batch.size), end - position)
            chunk, chunk_start, start = memoryview(file.pread(size, position)), position, 0
            if batch.size > len(chunk):
                return
        data = chunk[start : start + batch.size]
        if not checksum_holds(data):
            return
        yield batch, data
        next_offset = batch.last_offset + 1
        position += batch.size


def replay(state: PartitionProducers, batch: StoredBatch, data: Buffer) -> CompletedTransaction | None:
    """Applies a batch of the log to the producer state; returns the transaction that it ends."""
    if batch.base_offset > state.end_offset:
        state.complete = False  # the cleaner removed a batch, here or on the leader
    state.end_offset = batch.last_offset + 1
    if batch.producer_id < 0:
        if batch.max_timestamp == NO_TIMESTAMP:
            state.complete = False  # the cleaner left this in place of a segment's last batch, which may have had one
        return None
    if not batch.attributes & ATTRIBUTE_CONTROL:
        state.append_data(
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.base_offset,
            batch.last_offset,
            batch.max_timestamp,
            batch.attributes & ATTRIBUTE_TRANSACTIONAL != 0,
        )
        return None
    try:
        records = decode_records(data)
        if not records:
            # the cleaner removed the transaction's records, and kept the empty batch for its producer's state
            return None
        control = read_control(records[0])
    except RemoteProtocolError:
        return None  # its checksum is valid: a control type or version of a later Kafka
    if control.type not in (CONTROL_ABORT, CONTROL_COMMIT):
        return None
    return state.append_marker(
        batch.producer_id,
        batch.producer_epoch,
        control.coordinator_epoch,
        batch.base_offset,
        records[0].timestamp,
        aborted=control.type == CONTROL_ABORT,
    )


def note_refused(state: PartitionProducers, data: Buffer) -> None:
    """A client's batch was rejected for good: its producer may continue with the next sequence."""
    batch = stored_batch(data, 0, 0) if len(data) >= HEADER_SIZE else None
    if batch is not None and batch.producer_id >= 0:
        delta = batch.last_offset - batch.base_offset
        state.on_refused(batch.producer_id, batch.producer_epoch, batch.base_sequence, delta)
