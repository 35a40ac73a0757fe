"""Inspection of the records of one produced batch (Kafka's LogValidator), in the loop if short, else in a thread."""

from __future__ import annotations

from typing import Final

from barnabas.errors import BrokerError, ErrorCode, RemoteProtocolError
from barnabas.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, RECORD_ERRORS_MAX
from barnabas.ports import Buffer
from barnabas.protocol.batch_layout import (
    ATTRIBUTE_LOG_APPEND_TIME,
    COMPRESSION_MASK,
    CRC_COVERS_FROM,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    NO_TIMESTAMP,
    struct_of,
)
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.compression import Compression, DecompressedTooLarge, compress, decompress
from barnabas.protocol.record_walk import check_count, deltas, walk, walk_view
from barnabas.protocol.records import frame_batch, read_header
from barnabas.storage.log_config import LogConfig
from barnabas.storage.steps import SLICE_RECORDS

CODECS: Final = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
_FIELDS: Final = struct_of("batch_length", "attributes", "base_timestamp", "max_timestamp", "record_count")
_SHOWN_MAX: Final = 3  # rejected records that the message describes
COPIED_BYTES_MAX: Final = 16 * 1024 * 1024  # of uncompressed records: one copy holds Python's lock for up to 20 ms
PIECE_BYTES: Final = 1024 * 1024  # of longer ones
UNPACKED_BYTES_PER_COST: Final = 256  # decompressed: 0.5 to 1 ms for 256 KiB
PACKED_BYTES_PER_COST: Final = 3  # compressed at the slowest level


class RecordValidationError(BrokerError):
    """Rejection of a batch; `record_errors` are (index, message) of at most RECORD_ERRORS_MAX records (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def changes_codec(attributes: int, config: LogConfig) -> bool:
    return config.compression_type != "producer" and attributes & COMPRESSION_MASK != CODECS[config.compression_type]


class Inspection:
    """Checks the records of one batch, which it does not change.

    `run` does everything: `unpack` decompresses, `step` checks the next SLICE_RECORDS records until it returns True,
    `pack` recompresses.

    Args:
        batch: must not change before `unpack`.
        config: of the topic; the append uses the same configuration.

    Attributes:
        cost: of all parts so far, in the units of `record_walk.walk`.
        error: why the batch is rejected, or None.
        max_timestamp: in milliseconds; -1 if no record has one.
        checksum: of the batch, after `run`.
        packed: the recompressed batch after `pack`; None if the topic keeps the producer's codec.
    """

    __slots__ = (
        "_base_timestamp",
        "_by_create_time",
        "_codec",
        "_count",
        "_faults",
        "_late",
        "_next",
        "_oldest",
        "_position",
        "_records",
        "_size",
        "_youngest",
        "batch",
        "checksum",
        "config",
        "cost",
        "error",
        "max_timestamp",
        "packed",
    )

    def __init__(self, batch: Buffer, config: LogConfig, now_ms: int) -> None:
        length, attributes, base_timestamp, max_timestamp, count = _FIELDS.unpack_from(batch)
        self.batch = batch
        self._size = length + LENGTH_OVERHEAD
        self.config = config
        self.cost = 0
        self.error: BrokerError | None = None
        self.checksum = 0
        self.packed: bytearray | None = None
        self._codec = attributes & COMPRESSION_MASK
        self._count = count
        self._base_timestamp = base_timestamp
        self._by_create_time = not attributes & ATTRIBUTE_LOG_APPEND_TIME
        self.max_timestamp = NO_TIMESTAMP if self._by_create_time else max_timestamp
        checks_times = self._by_create_time and config.message_timestamp_type != "LogAppendTime"
        self._oldest = now_ms - config.message_timestamp_before_max_ms if checks_times else -(2**63)
        self._youngest = now_ms + config.message_timestamp_after_max_ms if checks_times else 2**63
        self._records: bytes | memoryview = b""
        self._position = self._next = 0
        self._faults: list[tuple[int, str]] = []
        self._late = False  # at least one record is rejected for its timestamp

    def run(self) -> None:
        """Runs all parts; any thread may call it."""
        with memoryview(self.batch) as whole, whole[CRC_COVERS_FROM : self._size] as covered:
            self.checksum = crc32c(covered)
        self.unpack()
        while not self.step():
            pass
        self.pack()

    def unpack(self, size_bytes_max: int = 0) -> None:
        """Decompresses. Raises DecompressedTooLarge above `size_bytes_max` (0: the topic's limit, which sets `error`)."""
        bound = size_bytes_max or max(BATCH_BYTES_MAX, self.config.max_message_bytes)
        packed = memoryview(self.batch)[HEADER_SIZE : self._size]
        try:
            if not self._codec and COPIED_BYTES_MAX < len(packed) <= bound:
                self._records = packed
            else:
                self._records = decompress(self._codec, packed, bound)
            if self._codec:
                self.cost += len(self._records) // UNPACKED_BYTES_PER_COST
            check_count(self._records, self._count)
        except DecompressedTooLarge as error:
            if size_bytes_max:
                raise
            self.error = BrokerError(ErrorCode.MESSAGE_TOO_LARGE, str(error))
        except RemoteProtocolError as error:
            self._refuse(error)
        else:
            if self._count > BATCH_RECORDS_MAX:
                self.error = BrokerError(
                    ErrorCode.MESSAGE_TOO_LARGE, f"batch of {self._count} records, {BATCH_RECORDS_MAX} are the most"
                )

    def step(self) -> bool:
        """Checks the next records. Returns whether the check is over."""
        if self.error is not None:
            return True
        first = self._next
        stop = min(first + SLICE_RECORDS, self._count)
        start = self._position
        try:
            records = self._records
            stop, self._position, lowest, highest, without_key, cost = (
                walk(records, start, first, stop, SLICE_RECORDS)
                if isinstance(records, bytes)
                else walk_view(records, start, first, stop, SLICE_RECORDS, PIECE_BYTES)
            )
            if stop == self._count and self._position != len(self._records):
                left = len(self._records) - self._position
                raise RemoteProtocolError(f"{left} bytes follow the {stop} records that the batch claims")
        except RemoteProtocolError as error:
            self._refuse(error)
            return True
        self._next = stop
        self.cost += cost
        lowest += self._base_timestamp
        highest += self._base_timestamp
        if self._by_create_time:
            if lowest < -(2**63) or highest >= 2**63:
                self._refuse(RemoteProtocolError(f"timestamps {lowest} to {highest} do not fit 64 bits"))
                return True
            self.max_timestamp = max(self.max_timestamp, highest)
        if (without_key and self.config.compacted) or lowest < self._oldest or highest > self._youngest:
            self._note_faults(start, first, stop)
        if stop < self._count and len(self._faults) < RECORD_ERRORS_MAX:
            return False
        if self._faults:
            self.error = self._refusal()
        return True

    def pack(self) -> None:
        config, records = self.config, self._records
        if self.error is None and changes_codec(self._codec, config):
            codec = CODECS[config.compression_type]
            header = read_header(self.batch)
            attributes = header.attributes & ~COMPRESSION_MASK | codec
            packed = frame_batch(
                header._replace(attributes=attributes), compress(codec, records, config.compression_level)
            )
            self.cost += len(records) // PACKED_BYTES_PER_COST
            if len(packed) <= config.max_message_bytes:
                self.packed = packed
            else:
                self.error = BrokerError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"batch of {len(packed)} bytes as {config.compression_type}, max.message.bytes is {config.max_message_bytes}",
                )
        self._records = b""

    def _refuse(self, error: RemoteProtocolError) -> None:
        self.error = BrokerError(ErrorCode.INVALID_RECORD, f"records cannot be read: {error}")

    def _note_faults(self, position: int, first: int, stop: int) -> None:
        found, _ = deltas(bytes(self._records[position : self._position]), 0, stop - first)
        compacted = self.config.compacted
        for index, (_, delta, has_key) in enumerate(found, start=first):
            timestamp = self._base_timestamp + delta
            if compacted and not has_key:
                self._faults.append((index, "a compacted topic takes no record without a key"))
            elif timestamp != NO_TIMESTAMP and not self._oldest <= timestamp <= self._youngest:
                self._late = True
                self._faults.append((index, f"timestamp {timestamp} is not within [{self._oldest}, {self._youngest}]"))
            if len(self._faults) >= RECORD_ERRORS_MAX:
                return

    def _refusal(self) -> RecordValidationError:
        faults = self._faults
        if self._late:
            message = "One or more records have been rejected due to invalid timestamp"
            return RecordValidationError(ErrorCode.INVALID_TIMESTAMP, message, faults)
        shown = "; ".join(f"{index}: {text}" for index, text in faults[:_SHOWN_MAX])
        many = f"{len(faults)} of {self._count} records" if len(faults) < RECORD_ERRORS_MAX else "too many records"
        return RecordValidationError(ErrorCode.INVALID_RECORD, f"{many} were refused: {shown}", faults)
