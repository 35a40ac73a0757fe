"""Columnar decoder: chunks of `client.ranges` to Arrow columns, without a Python object per record. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barnabas.client.consumer.ranges import Chunk
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.batch_layout import ATTRIBUTE_LOG_APPEND_TIME, NO_TIMESTAMP
from barnabas.protocol.record_codec import record_starts
from barnabas.protocol.records import BatchHeader

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


class Piece(NamedTuple):
    """A chunk of one partition, of which the offsets [start, end) are wanted."""

    chunk: Chunk
    start: int
    end: int
    topic: str
    partition: int


def decode(pieces: Sequence[Piece], columns: Sequence[str]) -> Any:
    """An Arrow record batch of the pieces, in order; None without records. Raises RemoteProtocolError."""
    try:
        return _Decoder(pieces).table(columns)
    except IndexError as error:
        raise RemoteProtocolError("the last record of a batch is cut off") from error


class _Part(NamedTuple):
    """A batch that is decoded, at [start, end) of the decoder's data."""

    header: BatchHeader
    start: int
    end: int
    wanted: int  # number of its first records; the others lie beyond the wanted offsets
    owner: int  # number of its piece


def _parts(pieces: Sequence[Piece]) -> list[_Part]:
    found = []
    place = 0
    for owner, piece in enumerate(pieces):
        for header, start, end in piece.chunk.batches:
            if header.base_offset < piece.end and header.next_offset > piece.start:
                count = min(header.record_count, piece.end - header.base_offset)  # offsets increase within a batch
                found.append(_Part(header, start + place, end + place, count, owner))
        place += len(piece.chunk.data)
    return found


def _is_whole(part: _Part, piece: Piece) -> bool:
    return piece.start <= part.header.base_offset and part.header.next_offset <= piece.end


class _Decoder:
    """Fields of the pieces: arrays with one element per record."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self.data = pieces[0].chunk.data if len(pieces) == 1 else b"".join(piece.chunk.data for piece in pieces)
        self.bytes: ByteArray = np.frombuffer(self.data, np.uint8)
        parts = _parts(pieces)
        counts = np.array([part.wanted for part in parts], np.int64)
        starts, ends = self._bounds(parts)
        _, at = self._varints(starts)
        timestamp_deltas, at = self._varints(at + 1)  # skips the attributes of the record: none are defined
        offset_deltas, at = self._varints(at)
        self.offsets: IntArray = np.repeat([part.header.base_offset for part in parts], counts) + offset_deltas
        base = np.repeat([part.header.base_timestamp for part in parts], counts)
        self.timestamps: IntArray = base + timestamp_deltas
        self.timestamp_types = np.zeros(len(starts), np.int32)
        self.owners = np.repeat(np.array([part.owner for part in parts], np.int64), counts)
        first = 0
        for part in parts:
            header = part.header
            if header.attributes & ATTRIBUTE_LOG_APPEND_TIME:
                self.timestamps[first : first + part.wanted] = header.max_timestamp
                self.timestamp_types[first : first + part.wanted] = 1
            elif header.max_timestamp == NO_TIMESTAMP and header.base_timestamp == NO_TIMESTAMP:
                self.timestamp_types[first : first + part.wanted] = _NO_TIMESTAMP_TYPE
            first += part.wanted
        self.key_lengths, self.key_starts = self._varints(at)
        at = self.key_starts + np.maximum(self.key_lengths, 0)
        self._check(at, ends)
        self.value_lengths, self.value_starts = self._varints(at)
        self.headers_at: IntArray = self.value_starts + np.maximum(self.value_lengths, 0)
        self._check(self.headers_at + 1, ends)
        self.ends = ends
        if any(not _is_whole(part, pieces[part.owner]) for part in parts):
            self._cut()

    def table(self, columns: Sequence[str]) -> Any:
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
                arrays.append(self._topics())
            elif name == "partition":
                numbers = np.array([piece.partition for piece in self._pieces], np.int32)
                arrays.append(pa.array(numbers[self.owners]))
            elif name == "offset":
                arrays.append(pa.array(self.offsets))
            elif name == "timestamp":
                arrays.append(pa.array(self.timestamps * 1000).cast(ARROW_TYPES["timestamp"]))
            elif name == "timestampType":
                arrays.append(pa.array(self.timestamp_types))
            else:
                arrays.append(self._headers())
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))

    def _topics(self) -> Any:
        names = [piece.topic for piece in self._pieces]
        if len(set(names)) == 1:
            return pa.repeat(pa.scalar(names[0], pa.string()), len(self.offsets))
        return pa.array(names, pa.string()).take(pa.array(self.owners))

    # -- places --------------------------------------------------------------------------------------------------------

    def _bounds(self, parts: Sequence[_Part]) -> tuple[IntArray, IntArray]:
        """Starts and ends of all records."""
        found: list[IntArray] = []
        part_ends = []
        for part in parts:
            position = part.start
            left = part.wanted
            if part.header.record_count > part.end - part.start:
                raise RemoteProtocolError(
                    f"batch claims {part.header.record_count} records in {part.end - part.start} bytes"
                )
            while left:
                run, stride = self._run(position, part.end, left)
                if run >= _RUN_MIN or run == left:
                    found.append(np.arange(position, position + run * stride, stride))
                    position += run * stride
                    left -= run
                    continue
                count = min(left, _ONE_BY_ONE)
                places, position = record_starts(self.data, position, part.end, count)
                found.append(np.array(places, np.int64))
                left -= count
            if position != part.end and part.wanted == part.header.record_count:
                raise RemoteProtocolError(
                    f"{part.end - position} bytes follow the {part.wanted} records that the batch claims"
                )
            part_ends.append(position)
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        starts = np.concatenate(found)
        ends = np.append(starts[1:], 0)  # a record ends where the next begins, the last of a part where the part does
        ends[np.cumsum([part.wanted for part in parts]) - 1] = part_ends
        return starts, ends

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

    def _cut(self) -> None:
        """Leaves out the records beyond the wanted offsets."""
        first = np.array([piece.start for piece in self._pieces], np.int64)[self.owners]
        end = np.array([piece.end for piece in self._pieces], np.int64)[self.owners]
        wanted = (self.offsets >= first) & (self.offsets < end)
        for name in (
            "offsets",
            "owners",
            "timestamps",
            "timestamp_types",
            "key_lengths",
            "key_starts",
            "value_lengths",
            "value_starts",
            "headers_at",
            "ends",
        ):
            setattr(self, name, getattr(self, name)[wanted])

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
