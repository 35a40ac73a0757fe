"""What a leader checks of a batch before it goes into the log, and what it changes in it.

Driven by: the partition log, with bytes from a client or a coordinator. Emits: the batch to write with its header fields, or Kafka's refusal.

Always checked: one whole batch of magic 2, its size, its checksum, base offset 0, lastOffsetDelta + 1 = count, no control bit from
clients, producer fields that agree, timestamps of the header within message.timestamp.{before,after}.max.ms. Records
are decoded only where the topic is compacted (each needs a key), recompressed, or under record.validation=full. LogAppendTime is
stamped into the header.

Deviation from Kafka: elsewhere a payload that disagrees with its own header is not noticed, and the timestamps checked are the
header's (first and largest), not each record's.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from crc32c import crc32c

from barnabas.errors import BrokerError, ErrorCode, RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.protocol.compression import Compression
from barnabas.protocol.records import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    COMPRESSION_MASK,
    HEADER_SIZE,
    MAGIC,
    NO_TIMESTAMP,
    NewRecord,
    Record,
    build_batch,
    decode_records,
    read_header,
    stamp_log_append_time,
)
from barnabas.storage.log_config import LogConfig, Origin
from barnabas.storage.replay import HEADER, LENGTH_OVERHEAD, StoredBatch, checksum_holds, stored_batch

__all__ = [
    "CheckedBatch",
    "RecordValidationError",
    "check_leader_batch",
    "check_replicated_batches",
    "single_batch_size",
]

_CRC_START: Final = 21
_CRC_POSITION: Final = 17
_MAGIC_POSITION: Final = 16
_LENGTH_MIN_OF_ANY_MAGIC: Final = 14  # of the formats before v2
_LENGTH: Final = Struct(">i")
_ATTRIBUTES: Final = Struct(">h")
_CRC: Final = Struct(">I")
_RECORD_ERRORS_MAX: Final = 3  # spelled out in the message
_CODECS: Final = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}

# attributes, last_offset_delta, max_timestamp, producer_id, producer_epoch, base_sequence
CheckedBatch = tuple[bytearray | memoryview, int, int, int, int, int, int]


class RecordValidationError(BrokerError):
    """A refusal that names records.

    Attributes:
        record_errors: (index in the batch, message) of each record refused (KIP-467).
    """

    def __init__(self, code: ErrorCode, message: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def _invalid(message: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_RECORD, message)


def check_leader_batch(data: Buffer, config: LogConfig, origin: Origin, now_ms: int) -> CheckedBatch:
    """Checks the one batch in `data`; what follows it is cut off if it is no whole batch.

    Returns:
        The batch, writable and of exact size (in place where `data` is writable and needs no change of its records), and
        its attributes, last offset delta, max timestamp, producer id, producer epoch and base sequence.

    Raises:
        BrokerError: INVALID_RECORD, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP,
            UNSUPPORTED_COMPRESSION_TYPE, in Kafka's order of checks.
    """
    available = len(data)
    size = available
    if available < HEADER_SIZE or HEADER.unpack_from(data)[1] + LENGTH_OVERHEAD != available or data[16] != MAGIC:
        size = single_batch_size(data)
    base, _, _, _, crc, attributes, delta, base_timestamp, max_timestamp, producer_id, epoch, sequence, count = (
        HEADER.unpack_from(data)
    )
    if base != 0 and origin is Origin.CLIENT:
        raise _invalid(f"base offset is {base}, from a client it must be 0")
    if size > config.max_message_bytes:
        raise BrokerError(
            ErrorCode.MESSAGE_TOO_LARGE, f"batch of {size} bytes, max.message.bytes is {config.max_message_bytes}"
        )
    with memoryview(data) as whole, whole[_CRC_START:size] as covered:
        checksum = crc32c(covered)
    if checksum != crc:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"checksum of the batch is {checksum}, it says {crc}")
    if count <= 0 or delta + 1 != count:
        raise _invalid(f"last offset delta {delta} and record count {count} disagree")
    if origin is Origin.CLIENT:
        if attributes & ATTRIBUTE_CONTROL:
            raise _invalid("clients may not write control batches")
        if producer_id >= 0:
            if sequence < 0:
                raise _invalid(f"batch of producer {producer_id} has sequence {sequence}")
            if epoch < 0:
                raise _invalid(f"batch of producer {producer_id} has epoch {epoch}")
        elif attributes & ATTRIBUTE_TRANSACTIONAL:
            raise _invalid("transactional batch without a producer id")
    if attributes & COMPRESSION_MASK > Compression.ZSTD:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no codec has number {attributes & COMPRESSION_MASK}"
        )

    appends_time = config.message_timestamp_type == "LogAppendTime"
    if appends_time:
        if attributes & ATTRIBUTE_LOG_APPEND_TIME:
            raise _invalid_timestamp([(0, "a client may not set the timestamp type LogAppendTime")])
    elif max_timestamp != NO_TIMESTAMP:
        oldest, youngest = (
            now_ms - config.message_timestamp_before_max_ms,
            now_ms + config.message_timestamp_after_max_ms,
        )
        if max_timestamp > youngest or (base_timestamp < oldest and base_timestamp != NO_TIMESTAMP):
            _check_records(data, config, now_ms, always_times=True)
    # A coordinator's records are not looked at: this process built them a moment ago.
    if origin is Origin.CLIENT and (config.compacted or config.record_validation == "full"):
        _check_records(data, config, now_ms)
    batch = _writable(data, size)
    if config.compression_type != "producer" and attributes & COMPRESSION_MASK != _CODECS[config.compression_type]:
        batch = _recompressed(batch, config)
        attributes = (attributes & ~COMPRESSION_MASK) | _CODECS[config.compression_type]
        size = len(batch)
        max_timestamp = read_header(batch).max_timestamp
    if attributes & ATTRIBUTE_LOG_APPEND_TIME:
        attributes &= ~ATTRIBUTE_LOG_APPEND_TIME
        _clear_log_append_time(batch, attributes)
    if appends_time:
        stamp_log_append_time(batch, 0, read_header(batch), now_ms)
        attributes |= ATTRIBUTE_LOG_APPEND_TIME
        max_timestamp = now_ms
    if size > config.segment_bytes:
        raise BrokerError(
            ErrorCode.RECORD_LIST_TOO_LARGE, f"batch of {size} bytes, segment.bytes is {config.segment_bytes}"
        )
    return batch, attributes, delta, max_timestamp, producer_id, epoch, sequence


def check_replicated_batches(data: memoryview, next_offset: int) -> list[StoredBatch]:
    """The whole batches that a leader sent; positions are those in `data`. A batch cut off at the end is left out.

    Raises:
        BrokerError: CORRUPT_MESSAGE; UNKNOWN_SERVER_ERROR where offsets do not go on from `next_offset` upwards.
    """
    parsed: list[StoredBatch] = []
    position = 0
    while position + HEADER_SIZE <= len(data):
        batch = stored_batch(data, position, position)
        if batch is None:
            raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"no batch of magic {MAGIC} at byte {position}")
        if position + batch.size > len(data):
            break
        if not checksum_holds(data[position : position + batch.size]):
            raise BrokerError(
                ErrorCode.CORRUPT_MESSAGE, f"checksum of the batch at offset {batch.base_offset} is wrong"
            )
        if batch.base_offset < next_offset:
            raise BrokerError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"replicated batch begins at offset {batch.base_offset}, the log ends at {next_offset}",
            )
        parsed.append(batch)
        next_offset = batch.last_offset + 1
        position += batch.size
    return parsed


def _writable(data: Buffer, size: int) -> bytearray | memoryview:
    if isinstance(data, bytearray):
        return data if len(data) == size else data[:size]
    if isinstance(data, memoryview) and not data.readonly:
        return data if len(data) == size else data[:size]
    return bytearray(data if len(data) == size else memoryview(data)[:size])


def single_batch_size(data: Buffer) -> int:
    """Size of the one whole batch at the beginning of `data`. What follows it is forgiven if it is a batch cut off, as in Kafka.

    Raises:
        BrokerError: INVALID_RECORD: none, more than one, or of an old magic; CORRUPT_MESSAGE: lengths or magics that cannot be.
    """
    size = _whole_batch_size(data, 0)
    if size is None:
        raise _invalid(f"{len(data)} bytes hold no whole record batch")
    if data[16] != MAGIC:
        raise _invalid(f"batch of magic {data[16]}, only {MAGIC} is accepted")
    if _whole_batch_size(data, size) is not None:
        raise _invalid("more than one batch for a partition")
    if size < HEADER_SIZE:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"batch of {size} bytes, an empty one has {HEADER_SIZE}")
    return size


def _whole_batch_size(data: Buffer, position: int) -> int | None:
    left = len(data) - position
    if left < LENGTH_OVERHEAD:
        return None
    (length,) = _LENGTH.unpack_from(data, position + 8)
    if length < _LENGTH_MIN_OF_ANY_MAGIC:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"batch length {length}, even an old format has 14")
    if left < _MAGIC_POSITION + 1:
        return None
    magic = data[position + _MAGIC_POSITION]
    if magic > MAGIC:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"batch of magic {magic}, which does not exist")
    size = int(length) + LENGTH_OVERHEAD
    return size if size <= left else None


def _clear_log_append_time(batch: bytearray | memoryview, attributes: int) -> None:
    """Kafka takes such a batch for a topic of CreateTime, and gives it that topic's timestamp type."""
    _ATTRIBUTES.pack_into(batch, _CRC_START, attributes)
    with memoryview(batch) as whole, whole[_CRC_START:] as covered:
        _CRC.pack_into(batch, _CRC_POSITION, crc32c(covered))


def _invalid_timestamp(record_errors: list[tuple[int, str]]) -> RecordValidationError:
    message = "One or more records have been rejected due to invalid timestamp"
    return RecordValidationError(ErrorCode.INVALID_TIMESTAMP, message, record_errors)


def _decoded(data: Buffer) -> list[Record]:
    try:
        records: list[Record] = decode_records(data)
    except RemoteProtocolError as error:
        raise _invalid(f"records cannot be read: {error}") from error
    for index, record in enumerate(records):
        if not -(2**63) <= record.timestamp < 2**63:
            raise _invalid(f"record {index} has timestamp {record.timestamp}, which does not fit 64 bits")
    return records


def _check_records(data: Buffer, config: LogConfig, now_ms: int, *, always_times: bool = False) -> None:
    """Record by record: a compacted topic needs keys; where timestamps are looked at, offsets are too."""
    records = _decoded(data)
    errors: list[tuple[int, str]] = []
    times = 0
    full = always_times or config.record_validation == "full"
    by_create_time = config.message_timestamp_type != "LogAppendTime"
    oldest, youngest = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
    for index, record in enumerate(records):
        if config.compacted and record.key is None:
            errors.append((index, "a compacted topic takes no record without a key"))
        elif full:
            if record.offset != records[0].offset + index:
                raise _invalid(f"record {index} has offset delta {record.offset - records[0].offset}")
            timestamp = record.timestamp
            if by_create_time and timestamp != NO_TIMESTAMP and not oldest <= timestamp <= youngest:
                times += 1
                errors.append((index, f"timestamp {timestamp} is not within [{oldest}, {youngest}]"))
    if times:
        raise _invalid_timestamp(errors)
    if errors:
        shown = "; ".join(f"{index}: {text}" for index, text in errors[:_RECORD_ERRORS_MAX])
        message = f"{len(errors)} of {len(records)} records were refused: {shown}"
        raise RecordValidationError(ErrorCode.INVALID_RECORD, message, errors)


def _recompressed(data: bytearray | memoryview, config: LogConfig) -> bytearray:
    """The same batch under the topic's codec (compression.type)."""
    header = read_header(data)
    records = [NewRecord(r.key, r.value, r.timestamp, r.headers) for r in _decoded(data)]
    batch = build_batch(
        records,
        compression=_CODECS[config.compression_type],
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
    )
    if len(batch) > config.max_message_bytes:
        raise BrokerError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"batch of {len(batch)} bytes as {config.compression_type}, max.message.bytes is {config.max_message_bytes}",
        )
    return batch
