"""Columnar decoder: chunks of `client.ranges` to Arrow columns, without a Python object per record. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barnabas.client.consumer.ranges import Chunk, PlacedBatch
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.batch_layout import ATTRIBUTE_LOG_APPEND_TIME, NO_TIMESTAMP
from barnabas.protocol.record_codec import record_starts

IntArray = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
ARROW_TYPES: dict[str, Any] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", _HEADER)),
}
COLUMNS = tuple(ARROW_TYPES)
_RUN_MIN = 24  # records; it is slower to search for shorter runs than to read their records one by one
_ONE_BY_ONE = 512
_NO_TIMESTAMP_TYPE = -1


def arrow_schema(columns: Sequence[str]) -> Any:
    return pa.schema([pa.field(name, ARROW_TYPES[name]) for name in columns])


def decode(chunk: Chunk, start: int, end: int, topic: str, partition: int, columns: Sequence[str]) -> Any:
    """An Arrow record batch of the offsets [start, end); None without records. Raises RemoteProtocolError."""
    try:
        return _Decoder(chunk, start, end).table(topic, partition, columns)
    except IndexError as error:
        raise RemoteProtocolError("the last record of a batch is cut off") from error


class _Decoder:
    """Fields of one chunk: arrays with one element per record."""

    def __init__(self, chunk: Chunk, start: int, end: int) -> None:
        self.data = chunk.data
        self.bytes: ByteArray = np.frombuffer(chunk.data, np.uint8)
        batches = chunk.batches
        counts = np.array([batch.header.record_count for batch in batches], np.int64)
        starts = self._starts(batches)
        ends = np.append(starts[1:], 0)  # a record ends at the next record or at the end of its batch
        if len(counts):
            ends[np.cumsum(counts) - 1] = [batch.end for batch in batches]
        _, at = self._varints(starts)
        timestamp_deltas, at = self._varints(at + 1)  # skips the attributes of the record: none are defined
        offset_deltas, at = self._varints(at)
        self.offsets: IntArray = np.repeat([batch.header.base_offset for batch in batches], counts) + offset_deltas
        base = np.repeat([batch.header.base_timestamp for batch in batches], counts)
        self.timestamps: IntArray = base + timestamp_deltas
        self.timestamp_types = np.zeros(len(starts), np.int32)
        first = 0
        for batch in batches:
            header = batch.header
            if header.attributes & ATTRIBUTE_LOG_APPEND_TIME:
                self.timestamps[first : first + header.record_count] = header.max_timestamp
                self.timestamp_types[first : first + header.record_count] = 1
            elif header.max_timestamp == NO_TIMESTAMP and header.base_timestamp == NO_TIMESTAMP:
                self.timestamp_types[first : first + header.record_count] = _NO_TIMESTAMP_TYPE
            first += header.record_count
        self.key_lengths, self.key_starts = self._varints(at)
        at = self.key_starts + np.maximum(self.key_lengths, 0)
        self._check(at, ends)
        self.value_lengths, self.value_starts = self._varints(at)
        self.headers_at: IntArray = self.value_starts + np.maximum(self.value_lengths, 0)
        self._check(self.headers_at + 1, ends)
        self.ends = ends
        self._cut(start, end)

    def table(self, topic: str, partition: int, columns: Sequence[str]) -> Any:
        count = len(self.offsets)
        if not count:
            return None
        arrays = []
        for name in columns:
            if name == "key":
                arrays.append(self._taken(self.key_starts, self.key_lengths, pa.binary()))
            elif name == "value":
                arrays.append(self._taken(self.value_starts, self.value_lengths, pa.binary()))
            elif name == "topic":
                arrays.append(pa.repeat(pa.scalar(topic, pa.string()), count))
            elif name == "partition":
                arrays.append(pa.array(np.full(count, partition, np.int32)))
            elif name == "offset":
                arrays.append(pa.array(self.offsets))
            elif name == "timestamp":
                arrays.append(pa.array(self.timestamps * 1000).cast(ARROW_TYPES["timestamp"]))
            elif name == "timestampType":
                arrays.append(pa.array(self.timestamp_types))
            else:
                arrays.append(self._headers())
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))

    # -- places --------------------------------------------------------------------------------------------------------

    def _starts(self, batches: Sequence[PlacedBatch]) -> IntArray:
        found: list[IntArray] = []
        for batch in batches:
            position = batch.start
            left = batch.header.record_count
            if left > batch.end - batch.start:
                raise RemoteProtocolError(f"batch claims {left} records in {batch.end - batch.start} bytes")
            while left:
                run, stride = self._run(position, batch.end, left)
                if run >= _RUN_MIN or run == left:
                    found.append(np.arange(position, position + run * stride, stride))
                    position += run * stride
                    left -= run
                    continue
                count = min(left, _ONE_BY_ONE)
                starts, position = record_starts(self.data, position, batch.end, count)
                found.append(np.array(starts, np.int64))
                left -= count
            if position != batch.end:
                raise RemoteProtocolError(
                    f"{batch.end - position} bytes follow the {batch.header.record_count} records that the batch claims"
                )
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _run(self, position: int, end: int, left: int) -> tuple[int, int]:
        """Number of records from `position` with equal length, and their distance in bytes."""
        if position >= end:
            raise RemoteProtocolError("a batch ends before its last record")
        data = self.data
        length = data[position]
        width = 1
        if length > 127:
            second = data[position + 1]
            if second > 127:
                return 0, 0  # records of 8 KiB and more: one by one
            length = (length & 0x7F) | second << 7
            width = 2
        stride = width + (length >> 1)
        count = min(left, (end - position) // stride)
        if length & 1 or count == 0:
            return 0, 0  # malformed: record_starts raises the error
        rows = self.bytes[position : position + count * stride].reshape(count, stride)
        same = rows[:, 0] == rows[0, 0]
        if width == 2:
            same &= rows[:, 1] == rows[0, 1]
        return (count if same.all() else int(same.argmin())), stride

    def _varints(self, at: IntArray) -> tuple[IntArray, IntArray]:
        """Zigzag varints at these positions, and the positions after them."""
        data = self.bytes
        raw = data[at]
        at = at + 1
        value = raw.astype(np.int64)
        more = np.flatnonzero(raw > 127)
        shift = 7
        if len(more):
            value &= 0x7F
        while len(more):
            if shift > 63:
                raise RemoteProtocolError("a varint is longer than ten bytes")
            raw = data[at[more]]
            at[more] += 1
            value[more] |= (raw & np.uint8(0x7F)).astype(np.int64) << shift
            more = more[raw > 127]
            shift += 7
        # numpy's right shift copies the sign bit of a full 64-bit varint: mask it off.
        return ((value >> 1) & np.int64(0x7FFF_FFFF_FFFF_FFFF)) ^ -(value & 1), at

    def _check(self, at: IntArray, ends: IntArray) -> None:
        if len(at) and not bool((at <= ends).all()):
            raise RemoteProtocolError("a field of a record reaches beyond its record")

    def _cut(self, start: int, end: int) -> None:
        offsets = self.offsets
        if not len(offsets) or (offsets[0] >= start and offsets[-1] < end):
            return
        first, last = np.searchsorted(offsets, [start, end])
        for name in (
            "offsets",
            "timestamps",
            "timestamp_types",
            "key_lengths",
            "key_starts",
            "value_lengths",
            "value_starts",
            "headers_at",
            "ends",
        ):
            setattr(self, name, getattr(self, name)[first:last])

    # -- columns -------------------------------------------------------------------------------------------------------

    def _taken(self, starts: IntArray, lengths: IntArray, kind: Any) -> Any:
        """Copies byte ranges of the chunk into an Arrow array; length −1 is null."""
        count = len(starts)
        null = lengths < 0
        some_null = bool(null.any())
        if some_null and bool(null.all()):
            return pa.nulls(count, kind)
        bounds = np.empty(2 * count, np.int32)  # fields alternate with the gaps between them
        bounds[0::2] = starts
        bounds[1::2] = starts + np.maximum(lengths, 0)
        pieces = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(self.data)])
        wanted = np.arange(0, 2 * count, 2, dtype=np.int32)
        return pieces.take(pa.array(wanted, mask=null) if some_null else pa.array(wanted))

    def _headers(self) -> Any:
        """Lists of headers; null without headers. Decodes the first headers of all records, then the second ones, …"""
        counts, at = self._varints(self.headers_at)
        if bool((counts < 0).any()) or bool((counts * 2 > self.ends - at).any()):
            raise RemoteProtocolError("a record claims more headers than it has bytes for")
        total = int(counts.sum())
        if total == 0:
            return pa.nulls(len(counts), ARROW_TYPES["headers"])
        bounds = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=bounds[1:])
        fields = [np.empty(total, np.int64) for _ in range(4)]
        for turn in range(int(counts.max())):
            rows = np.flatnonzero(counts > turn)
            where = bounds[:-1][rows] + turn
            key_lengths, key_starts = self._varints(at[rows])
            value_lengths, value_starts = self._varints(key_starts + np.maximum(key_lengths, 0))
            at[rows] = value_starts + np.maximum(value_lengths, 0)
            if bool((key_lengths < 0).any()):
                raise RemoteProtocolError("a header has no key")
            self._check(at[rows], self.ends[rows])
            for field, found in zip(fields, (key_starts, key_lengths, value_starts, value_lengths), strict=True):
                field[where] = found
        keys = self._taken(fields[0], fields[1], pa.string())
        values = self._taken(fields[2], fields[3], pa.binary())
        pairs = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
        null = counts == 0
        return pa.ListArray.from_arrays(
            pa.array(bounds), pairs, type=ARROW_TYPES["headers"], mask=pa.array(null) if null.any() else None
        )
