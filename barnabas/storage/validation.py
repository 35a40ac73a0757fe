"""Checks a batch before a leader appends it, and sets its header fields.
With record.validation=header, records are checked only if the topic is compacted or recompresses them, or if the
header's timestamps are outside of message.timestamp.{before,after}.max.ms.
"""

from __future__ import annotations

from typing import Final

from barnabas.errors import BarnabasError, BrokerError, ErrorCode, RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.protocol.batch_layout import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    ATTRIBUTES_OFFSET,
    BATCH_LENGTH_OFFSET,
    COMPRESSION_MASK,
    CRC_COVERS_FROM,
    CRC_OFFSET,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
    MAX_TIMESTAMP_OFFSET,
    NO_TIMESTAMP,
    pack_attributes,
    pack_crc,
    pack_max_timestamp,
    unpack_batch_length,
    unpack_header,
)
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.compression import Compression, DecompressedTooLarge
from barnabas.protocol.record_codec import RECORD_BYTES_MIN
from barnabas.protocol.record_walk import USUAL_BYTES_MAX, is_usual, walk_view
from barnabas.protocol.records import read_header, stamp_log_append_time
from barnabas.storage.inspection import Inspection, RecordValidationError, changes_codec
from barnabas.storage.log_config import AppendOrigin, LogConfig
from barnabas.storage.replay import StoredBatch, checksum_holds, stored_batch
from barnabas.storage.steps import INLINE_BYTES_MAX, SLICE_RECORDS

_LENGTH_MIN_OF_ANY_MAGIC: Final = 14  # of the formats before v2
# of a batch of more records, before it is called long: some 15,000 records of one length
WALK_COST_MAX: Final = SLICE_RECORDS // 4
# of a batch, before it is called long: copied and checksummed in a millisecond
CHECKED_BYTES_MAX: Final = 2 * 1024 * 1024
RECODED_BYTES_MAX: Final = 4_096  # of records, before the batch is called long: zstd's level 22 takes 0.7 ms for them


# attributes, last_offset_delta, max_timestamp, producer_id, producer_epoch, base_sequence, cost of the walk over its records
CheckedBatch = tuple[bytearray | memoryview, int, int, int, int, int, int, int]


class LongBatch(BarnabasError):
    """A batch takes too long to inspect in the loop. It was not changed or written."""


def _invalid(message: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_RECORD, message)


def check_leader_batch(data: Buffer | Inspection, config: LogConfig, origin: AppendOrigin, now_ms: int) -> CheckedBatch:
    """Checks the one batch in `data`. An incomplete batch after it is ignored, as in Kafka.

    Returns:
        The batch, writable and of exact size (the same buffer if possible), its attributes, last offset delta, max
        timestamp, producer id, epoch and base sequence, and the cost of the check of its records in this call.

    Raises:
        BrokerError: INVALID_RECORD, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP,
            UNSUPPORTED_COMPRESSION_TYPE, in Kafka's order of checks.
        LongBatch: call it again with a finished inspection.
    """
    inspection = None
    if isinstance(data, Inspection):
        inspection, config, data = data, data.config, data.batch
    size = len(data)
    if size < HEADER_SIZE:
        single_batch_size(data)
    (
        base,
        length,
        _,
        magic,
        crc,
        attributes,
        delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        epoch,
        sequence,
        count,
    ) = unpack_header(data)
    if length + LENGTH_OVERHEAD != size or magic != MAGIC:
        size = single_batch_size(data)
    if base != 0 and origin is AppendOrigin.CLIENT:
        raise _invalid(f"base offset is {base}, from a client it must be 0")
    if size > config.max_message_bytes:
        raise BrokerError(
            ErrorCode.MESSAGE_TOO_LARGE, f"batch of {size} bytes, max.message.bytes is {config.max_message_bytes}"
        )
    # A coordinator's records are not checked: this process has just built them.
    reads = origin is AppendOrigin.CLIENT and (config.record_validation != "header" or config.compacted)
    whole = data if data.__class__ is memoryview else memoryview(data)
    if inspection is not None:
        checksum = inspection.checksum
    elif reads and size > CHECKED_BYTES_MAX:
        raise LongBatch(f"batch of {size} bytes")
    else:
        checksum = crc32c(whole[CRC_COVERS_FROM:size])
    if checksum != crc:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"checksum of the batch is {checksum}, it says {crc}")
    if count <= 0 or delta + 1 != count:
        raise _invalid(f"last offset delta {delta} and record count {count} disagree")
    if origin is AppendOrigin.CLIENT:
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
    outside = False  # a timestamp of the header is not within the bounds of the topic
    if appends_time:
        if attributes & ATTRIBUTE_LOG_APPEND_TIME:
            message = "One or more records have been rejected due to invalid timestamp"
            faults = [(0, "a client may not set the timestamp type LogAppendTime")]
            raise RecordValidationError(ErrorCode.INVALID_TIMESTAMP, message, faults)
    elif max_timestamp != NO_TIMESTAMP:
        outside = max_timestamp > now_ms + config.message_timestamp_after_max_ms or (
            base_timestamp < now_ms - config.message_timestamp_before_max_ms and base_timestamp != NO_TIMESTAMP
        )
    cost = 0
    if inspection is None:
        recodes = config.compression_type != "producer" and changes_codec(attributes, config)
        if recodes or outside or reads:
            cost = -1
            if not (recodes or outside or attributes & (COMPRESSION_MASK | ATTRIBUTE_LOG_APPEND_TIME)):
                # Nearly every batch takes this path: an Inspection would double the cost of a small batch.
                cost = _walk_plain(whole[HEADER_SIZE:size], count, base_timestamp, max_timestamp, config, now_ms)
            if cost < 0:
                inspection = Inspection(whole, config, now_ms)
                if origin is AppendOrigin.CLIENT:
                    _inspect_short(inspection, count, recodes)
                else:
                    inspection.run()
                cost = inspection.cost
    batch = whole if whole is data and not whole.readonly and len(whole) == size else _writable(data, size)
    if inspection is not None:
        if inspection.error is not None:
            raise inspection.error
        if inspection.packed is not None:
            batch = inspection.packed
            size = len(batch)
            attributes = read_header(batch).attributes
        if inspection.max_timestamp != max_timestamp:
            max_timestamp = inspection.max_timestamp
            pack_max_timestamp(batch, MAX_TIMESTAMP_OFFSET, max_timestamp)
            _write_checksum(batch)
    if attributes & ATTRIBUTE_LOG_APPEND_TIME:  # Kafka accepts it for a topic of CreateTime, and sets that topic's type
        attributes &= ~ATTRIBUTE_LOG_APPEND_TIME
        pack_attributes(batch, ATTRIBUTES_OFFSET, attributes)
        _write_checksum(batch)
    if appends_time:
        stamp_log_append_time(batch, 0, read_header(batch), now_ms)
        attributes |= ATTRIBUTE_LOG_APPEND_TIME
        max_timestamp = now_ms
    if size > config.segment_bytes:
        raise BrokerError(
            ErrorCode.RECORD_LIST_TOO_LARGE, f"batch of {size} bytes, segment.bytes is {config.segment_bytes}"
        )
    return batch, attributes, delta, max_timestamp, producer_id, epoch, sequence, cost


def check_replicated_batches(data: memoryview, next_offset: int) -> list[StoredBatch]:
    """Whole batches from a leader, with positions in `data`; an incomplete last batch is ignored.

    Raises BrokerError: CORRUPT_MESSAGE; UNKNOWN_SERVER_ERROR if the offsets do not ascend from `next_offset`.
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
    if isinstance(data, bytearray) or (isinstance(data, memoryview) and not data.readonly):
        return data if len(data) == size else data[:size]
    return bytearray(data if len(data) == size else memoryview(data)[:size])


def single_batch_size(data: Buffer) -> int:
    """Size of the whole batch at the beginning of `data`. An incomplete one after it is ignored, as in Kafka.

    Raises BrokerError: INVALID_RECORD (none, several, old magic), CORRUPT_MESSAGE (impossible length or magic).
    """
    size = _whole_batch_size(data, 0)
    if size is None:
        raise _invalid(f"{len(data)} bytes hold no whole record batch")
    if data[MAGIC_OFFSET] != MAGIC:
        raise _invalid(f"batch of magic {data[MAGIC_OFFSET]}, only {MAGIC} is accepted")
    if _whole_batch_size(data, size) is not None:
        raise _invalid("more than one batch for a partition")
    if size < HEADER_SIZE:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"batch of {size} bytes, an empty one has {HEADER_SIZE}")
    return size


def _whole_batch_size(data: Buffer, position: int) -> int | None:
    left = len(data) - position
    if left < LENGTH_OVERHEAD:
        return None
    (length,) = unpack_batch_length(data, position + BATCH_LENGTH_OFFSET)
    if length < _LENGTH_MIN_OF_ANY_MAGIC:
        raise BrokerError(
            ErrorCode.CORRUPT_MESSAGE, f"batch length {length}, even an old format has {_LENGTH_MIN_OF_ANY_MAGIC}"
        )
    if left < MAGIC_OFFSET + 1:
        return None
    magic = data[position + MAGIC_OFFSET]
    if magic > MAGIC:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"batch of magic {magic}, which does not exist")
    size = int(length) + LENGTH_OVERHEAD
    return size if size <= left else None


def _write_checksum(batch: bytearray | memoryview) -> None:
    with memoryview(batch) as whole, whole[CRC_COVERS_FROM:] as covered:
        pack_crc(batch, CRC_OFFSET, crc32c(covered))


def _walk_plain(
    records: memoryview, count: int, base_timestamp: int, max_timestamp: int, config: LogConfig, now_ms: int
) -> int:
    """Cost of the check of uncompressed records; -1 if they contradict their header. Raises LongBatch."""
    size = len(records)
    if (
        count == 1
        and base_timestamp == max_timestamp
        and base_timestamp >= now_ms - config.message_timestamp_before_max_ms
        and not config.compacted
        and size < USUAL_BYTES_MAX
        and is_usual(bytes(records))
    ):
        return 0
    if count * RECORD_BYTES_MIN > size:
        return -1
    # Few records: an abandoned check must be repeated.
    cost_max = 2 * SLICE_RECORDS if count <= SLICE_RECORDS else WALK_COST_MAX
    try:
        following, end, lowest, highest, without_key, cost = walk_view(records, 0, 0, count, cost_max)
    except RemoteProtocolError:
        return -1
    if following < count:
        raise LongBatch(f"batch of {count} records")
    if (
        end != size
        or base_timestamp + highest != max_timestamp
        or base_timestamp + lowest < now_ms - config.message_timestamp_before_max_ms
        or (without_key and config.compacted)
    ):
        return -1
    return cost


def _inspect_short(inspection: Inspection, count: int, recodes: bool) -> None:
    """Inspects a batch at once. Raises LongBatch if it is not short enough."""
    if count > SLICE_RECORDS:
        raise LongBatch(f"batch of {count} records")
    try:
        inspection.unpack(RECODED_BYTES_MAX if recodes else INLINE_BYTES_MAX)
    except DecompressedTooLarge as error:
        raise LongBatch(str(error)) from None
    while not inspection.step():
        if inspection.cost > 2 * SLICE_RECORDS:
            raise LongBatch(f"batch of {count} records with many headers")
    inspection.pack()
