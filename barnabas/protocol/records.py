"""Record batches v2: header view, reader, builder, control batches (KIP-98, KIP-32, KIP-82, KIP-534).
Brokers keep batches opaque and touch only the header. Malformed input raises only RemoteProtocolError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Any, NamedTuple

from barnabas.errors import LocalProtocolError, RemoteProtocolError
from barnabas.limits import DECOMPRESSED_BYTES_MAX, SEQUENCE_MAX
from barnabas.ports import Buffer
from barnabas.protocol import record_codec
from barnabas.protocol.batch_layout import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    ATTRIBUTES_OFFSET,
    BATCH_LENGTH_MIN,
    COMPRESSION_MASK,
    CRC_COVERS_FROM,
    CRC_OFFSET,
    CREATE_TIME,
    HEADER_SIZE,
    LEADER_EPOCH_OFFSET,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    MAX_TIMESTAMP_OFFSET,
    pack_attributes,
    pack_base_offset,
    pack_crc,
    pack_from_attributes,
    pack_leader_epoch,
    pack_max_timestamp,
    pack_up_to_crc,
    unpack_header,
)
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.compression import compress, decompress
from barnabas.protocol.record_codec import NewRecord, Record
from barnabas.work import Steps

VALUES_PER_STEP = 64
UNITS_OF_VALUES = 12  # of work, to encode as many values

CONTROL_ABORT = 0
CONTROL_COMMIT = 1
CONTROL_LEADER_CHANGE = 2
CONTROL_SNAPSHOT_HEADER = 3
CONTROL_SNAPSHOT_FOOTER = 4
CONTROL_KRAFT_VERSION = 5
CONTROL_KRAFT_VOTERS = 6

_CONTROL_KEY = Struct(">hh")  # version, type
_END_TXN_MARKER_VALUE = Struct(">hi")  # version, coordinator epoch
_END_TXN_MARKER_RECORD = Struct(">BBBBBhhBhiB")  # the one record of a marker, its varints all of one byte


class BatchHeader(NamedTuple):
    """Header of a batch in a buffer. Only `batch_length` has been checked."""

    base_offset: int
    batch_length: int  # bytes after the length field, ≥ BATCH_LENGTH_MIN
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int  # -1 without one
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Inclusive. It stays when compaction removes that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Wrapped to 0 after 2³¹−1; -1 without a sequence."""
        if self.base_sequence < 0:
            return -1
        last = self.base_sequence + self.last_offset_delta
        return last if last <= SEQUENCE_MAX else last - SEQUENCE_MAX - 1

    @property
    def compression(self) -> int:
        """Codec number, 0–7; those above 4 do not exist."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        return self.attributes & ATTRIBUTE_TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & ATTRIBUTE_CONTROL != 0

    @property
    def timestamp_type(self) -> int:
        return LOG_APPEND_TIME if self.attributes & ATTRIBUTE_LOG_APPEND_TIME else CREATE_TIME

    @property
    def has_delete_horizon(self) -> bool:
        """Whether `base_timestamp` is the time from which the cleaner may remove tombstones and markers (KIP-534)."""
        return self.attributes & ATTRIBUTE_DELETE_HORIZON != 0


_FIELDS_UP_TO_CRC = BatchHeader._fields.index("attributes")


class EncodedRecords(NamedTuple):
    """Uncompressed records with offset deltas 0 to `count` − 1."""

    data: Buffer
    record_count: int  # ≥ 1
    base_timestamp: int  # ms; the timestamp deltas are relative to it
    max_timestamp: int


class ControlRecord(NamedTuple):
    """Key of a control record; the coordinator epoch is -1 unless it ends a transaction."""

    type: int
    version: int
    coordinator_epoch: int


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The batch may be incomplete. Raises RemoteProtocolError for an incomplete header or an illegal length."""
    if len(buffer) - position < HEADER_SIZE or position < 0:
        raise RemoteProtocolError(f"{len(buffer) - position} bytes left, a batch header takes {HEADER_SIZE}")
    header = BatchHeader._make(unpack_header(buffer, position))
    if header.batch_length < BATCH_LENGTH_MIN:
        raise RemoteProtocolError(
            f"batch length {header.batch_length} at byte {position} is below {BATCH_LENGTH_MIN}, that of an empty batch"
        )
    return header


def iter_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of whole batches, in order. Raises RemoteProtocolError for an illegal length."""
    position = 0
    end = len(buffer)
    while end - position >= HEADER_SIZE:
        header = read_header(buffer, position)
        next_position = position + header.batch_length + LENGTH_OVERHEAD
        if next_position > end:
            return
        yield position, header
        position = next_position


def crc_ok(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    end = position + header.batch_length + LENGTH_OVERHEAD
    if end > len(buffer):
        return False
    checksum: int = crc32c(memoryview(buffer)[position + CRC_COVERS_FROM : end])
    return checksum == header.crc


def stamp(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Writes the leader's base offset and epoch in place. The checksum does not cover them."""
    pack_base_offset(buffer, position, base_offset)
    pack_leader_epoch(buffer, position + LEADER_EPOCH_OFFSET, leader_epoch)


def stamp_log_append_time(buffer: bytearray | memoryview, position: int, header: BatchHeader, now_ms: int) -> None:
    """Sets attribute bit, max timestamp and checksum in place (KIP-32)."""
    end = position + header.batch_length + LENGTH_OVERHEAD
    pack_attributes(buffer, position + ATTRIBUTES_OFFSET, header.attributes | ATTRIBUTE_LOG_APPEND_TIME)
    pack_max_timestamp(buffer, position + MAX_TIMESTAMP_OFFSET, now_ms)
    pack_crc(buffer, position + CRC_OFFSET, crc32c(memoryview(buffer)[position + CRC_COVERS_FROM : end]))


def decode_records(
    buffer: Buffer,
    position: int = 0,
    header: BatchHeader | None = None,
    *,
    size_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    cls: type[tuple[Any, ...]] = Record,
    tail: tuple[Any, ...] = (),
    of_values: Callable[[list[bytes]], list[Any]] | None = None,
) -> list[Any]:
    """Decodes the records of the batch at `position`, also control records. Does not check the checksum.

    `cls` is a tuple class with the fields of `Record` and then `tail`. With `of_values` the result is what this returns
    for the values, unless a value is null or a record has headers.

    Raises:
        RemoteProtocolError: the batch is incomplete, of another format, larger than `size_bytes_max` when decompressed,
            or its records disagree with its header.
    """
    if header is None:
        header = read_header(buffer, position)
    if header.magic != MAGIC:
        raise RemoteProtocolError(f"batch of magic {header.magic}, only {MAGIC} is read")
    end = position + header.batch_length + LENGTH_OVERHEAD
    if end > len(buffer):
        raise RemoteProtocolError(f"batch of {header.size_bytes} bytes where {len(buffer) - position} are left")
    packed = memoryview(buffer)[position + HEADER_SIZE : end]
    codec = header.attributes & COMPRESSION_MASK
    data = decompress(codec, packed, size_bytes_max) if codec else bytes(packed)
    values = None if of_values is None else record_codec.decode_values(data, header.record_count)
    if of_values is not None and values is not None:
        return of_values(values)
    append_time = header.max_timestamp if header.attributes & ATTRIBUTE_LOG_APPEND_TIME else -1
    return record_codec.decode(
        data, header.record_count, header.base_offset, header.base_timestamp, append_time, cls, tail
    )


def encode_records(records: Sequence[NewRecord]) -> EncodedRecords:
    """Encodes without compression. Raises LocalProtocolError without records."""
    if not records:
        raise LocalProtocolError("a batch needs at least one record")
    base_timestamp = records[0].timestamp
    data, max_timestamp = record_codec.encode(records, base_timestamp)
    return EncodedRecords(data, len(records), base_timestamp, max_timestamp)


def encode_values_in_slices(values: Sequence[bytes], timestamp: int) -> Steps[EncodedRecords]:
    """Encodes values as records without keys. Raises LocalProtocolError without values."""
    if not values:
        raise LocalProtocolError("a batch needs at least one record")
    parts = []
    for first in range(0, len(values), VALUES_PER_STEP):
        records = [NewRecord(None, value, timestamp) for value in values[first : first + VALUES_PER_STEP]]
        parts.append(record_codec.encode(records, timestamp, first)[0])
        if len(records) == VALUES_PER_STEP:
            yield UNITS_OF_VALUES
    return EncodedRecords(b"".join(parts), len(values), timestamp, timestamp)


def build_batch(
    records: Sequence[NewRecord] | EncodedRecords,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time_ms: int | None = None,
) -> bytearray:
    """One batch with consecutive offsets from `base_offset`. Raises LocalProtocolError without records or codec."""
    encoded = records if isinstance(records, EncodedRecords) else encode_records(records)
    data, count, base_timestamp, max_timestamp = encoded
    attributes = compression
    if transactional:
        attributes |= ATTRIBUTE_TRANSACTIONAL
    if control:
        attributes |= ATTRIBUTE_CONTROL
    if log_append_time_ms is not None:
        attributes |= ATTRIBUTE_LOG_APPEND_TIME
        max_timestamp = log_append_time_ms
    payload = compress(compression, data) if compression else data
    batch = bytearray(HEADER_SIZE)
    batch += payload
    pack_from_attributes(
        batch,
        ATTRIBUTES_OFFSET,
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    _finish(batch, base_offset, leader_epoch)
    return batch


def _finish(batch: bytearray, base_offset: int, leader_epoch: int) -> None:
    """Writes the fields before the attributes. The checksum covers all bytes after it."""
    with memoryview(batch) as view:
        checksum = crc32c(view[CRC_COVERS_FROM:])
    pack_up_to_crc(batch, 0, base_offset, len(batch) - LENGTH_OVERHEAD, leader_epoch, MAGIC, checksum)


def frame_batch(header: BatchHeader, payload: bytes) -> bytearray:
    """A batch of header fields and encoded, compressed records. Computes the length and the checksum."""
    batch = bytearray(HEADER_SIZE)
    batch += payload
    pack_from_attributes(batch, ATTRIBUTES_OFFSET, *header[_FIELDS_UP_TO_CRC:])
    _finish(batch, header.base_offset, header.leader_epoch)
    return batch


def build_end_txn_marker(
    producer_id: int,
    producer_epoch: int,
    *,
    commit: bool,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """Control batch that ends a transaction on a partition (KIP-98): 78 bytes, one record, no sequence."""
    batch = bytearray(HEADER_SIZE + _END_TXN_MARKER_RECORD.size)
    pack_from_attributes(
        batch,
        ATTRIBUTES_OFFSET,
        ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL,
        0,
        timestamp,
        timestamp,
        producer_id,
        producer_epoch,
        -1,
        1,
    )
    _END_TXN_MARKER_RECORD.pack_into(
        batch,
        HEADER_SIZE,
        (_END_TXN_MARKER_RECORD.size - 1) << 1,  # varints here are zigzag: a length n is written as 2n
        0,
        0,
        0,
        _CONTROL_KEY.size << 1,
        0,
        CONTROL_COMMIT if commit else CONTROL_ABORT,
        _END_TXN_MARKER_VALUE.size << 1,
        0,
        coordinator_epoch,
        0,
    )
    _finish(batch, base_offset, leader_epoch)
    return batch


def build_control_batch(
    records: Sequence[tuple[int, bytes]],
    *,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """Control batch of the Raft log: (control type, value) each; no producer (KIP-595, KIP-630, KIP-853)."""
    return build_batch(
        [NewRecord(_CONTROL_KEY.pack(0, kind), value, timestamp) for kind, value in records],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        control=True,
    )


def read_control(record: Record) -> ControlRecord:
    """Raises RemoteProtocolError if the key, or a transaction marker's value, is too short."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise RemoteProtocolError(
            f"control record at offset {record.offset} without a key of {_CONTROL_KEY.size} bytes"
        )
    version, kind = _CONTROL_KEY.unpack_from(record.key)
    coordinator_epoch = -1
    if kind in (CONTROL_ABORT, CONTROL_COMMIT):
        if record.value is None or len(record.value) < _END_TXN_MARKER_VALUE.size:
            raise RemoteProtocolError(
                f"end-of-transaction marker at offset {record.offset} without a value of {_END_TXN_MARKER_VALUE.size} bytes"
            )
        coordinator_epoch = _END_TXN_MARKER_VALUE.unpack_from(record.value)[1]
    return ControlRecord(kind, version, coordinator_epoch)
