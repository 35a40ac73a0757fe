"""Columnar encoder: Arrow columns to record batches, without a Python object per record."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barnabas.client import EncodedRecords
from barnabas.protocol.record_codec import NewRecord, encode

BATCH_BYTES_MAX = 512 * 1024  # of a record batch, by default
_OVERHEAD_MAX = 24  # most bytes of a record besides key and value
_SEED = 0x9747B28C
_M = np.uint32(0x5BD1E995)


def as_binary(column: pa.Array) -> pa.Array:
    """Strings or bytes as bytes with 64-bit offsets."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.large_binary())


def lengths_of(column: pa.Array) -> np.ndarray:
    """Length in bytes of each value of an `as_binary` column; −1 for null."""
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(offsets)
    if column.null_count:
        lengths[~np.asarray(column.is_valid())] = -1
    return lengths


def partitions_of_keys(keys: pa.Array, partition_count: int) -> np.ndarray:
    """Partition of each key (`as_binary`, without nulls), as by Java's default partitioner."""
    hashes = np.empty(len(keys), dtype=np.uint32)
    if len(keys):
        data = np.frombuffer(keys.buffers()[2], dtype=np.uint8) if keys.buffers()[2] is not None else _NO_BYTES
        starts = np.frombuffer(keys.buffers()[1], dtype=np.int64)[keys.offset : keys.offset + len(keys)]
        lengths = lengths_of(keys)
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            hashes[rows] = _murmur2(data, starts[rows], int(length))
    return ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partition_count)).astype(np.int64)


_NO_BYTES = np.empty(0, dtype=np.uint8)


def _murmur2(data: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """murmur2 of keys of equal length, all at once."""
    words, rest = length >> 2, length & 3
    with np.errstate(over="ignore"):
        h = np.full(len(starts), _SEED ^ length, dtype=np.uint32)
        for word in range(words):
            k = _little_endian(data, starts + 4 * word, 4) * _M
            h = (h * _M) ^ ((k ^ (k >> np.uint32(24))) * _M)
        if rest:
            h = (h ^ _little_endian(data, starts + 4 * words, rest)) * _M
        h = (h ^ (h >> np.uint32(13))) * _M
        h ^= h >> np.uint32(15)
    return h


def _little_endian(data: np.ndarray, starts: np.ndarray, count: int) -> np.ndarray:
    found: np.ndarray = data[starts].astype(np.uint32)
    for place in range(1, count):
        found |= data[starts + place].astype(np.uint32) << np.uint32(8 * place)
    return found


def row_bytes(keys: pa.Array | None, values: pa.Array, headers: pa.Array | None) -> np.ndarray:
    """The most bytes that each row needs as a record. Arguments as of `encode_rows`."""
    sizes: np.ndarray = np.maximum(lengths_of(values), 0) + _OVERHEAD_MAX
    if keys is not None:
        sizes += np.maximum(lengths_of(keys), 0)
    if headers is not None and headers.null_count < len(headers):
        sizes += [
            sum(len(each["key"]) * 4 + len(each["value"] or b"") + 16 for each in listed or ())
            for listed in headers.to_pylist()
        ]
    return sizes


def encode_rows(
    keys: pa.Array | None,
    values: pa.Array,
    headers: pa.Array | None,
    timestamp_ms: int,
    bytes_max: int = BATCH_BYTES_MAX,
) -> Iterator[EncodedRecords]:
    """Encodes the rows as batches of at most `bytes_max` bytes, in order; a longer record gets a batch of its own.

    Args:
        keys, values: `as_binary`; null means a record without key or value.
        headers: lists of structs (key, value).
        timestamp_ms: timestamp of every record.
    """
    if headers is not None and headers.null_count == len(headers):
        headers = None
    value_lengths = lengths_of(values)
    key_lengths = lengths_of(keys) if keys is not None else np.full(len(values), -1, dtype=np.int64)
    for start, end in _cut(np.cumsum(row_bytes(keys, values, headers)), bytes_max):
        part, count = slice(start, end), end - start
        key_part = keys.slice(start, count) if keys is not None else None
        value_part = values.slice(start, count)
        if headers is not None:
            yield _encode_one_by_one(key_part, value_part, headers.slice(start, count), timestamp_ms)
        else:
            data = _join(key_part, key_lengths[part], value_part, value_lengths[part])
            yield EncodedRecords(data, count, timestamp_ms, timestamp_ms)


def _cut(ends: np.ndarray, bytes_max: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows that fit one batch; `ends` are the cumulative sizes of the rows."""
    start, taken = 0, 0
    while start < len(ends):
        end = max(start + 1, int(np.searchsorted(ends, taken + bytes_max, side="right")))
        yield start, end
        start, taken = end, int(ends[end - 1])


def _join(keys: pa.Array | None, key_lengths: np.ndarray, values: pa.Array, value_lengths: np.ndarray) -> memoryview:
    count = len(values)
    deltas = _zigzag(np.arange(count, dtype=np.int64))
    key_sizes, value_sizes = _zigzag(key_lengths), _zigzag(value_lengths)
    before = 2 + _width(deltas) + _width(key_sizes)  # attributes, timestamp delta, offset delta, key length
    body = before + np.maximum(key_lengths, 0) + _width(value_sizes) + np.maximum(value_lengths, 0) + 1
    zeros = np.zeros(count, dtype=np.uint64)
    head = _varints([_zigzag(body), zeros, zeros, deltas, key_sizes])
    tail = pa.scalar(b"\x00", pa.large_binary())  # no headers
    none = pa.scalar(b"", pa.large_binary())
    columns = [head, *([] if keys is None else [keys]), _varints([value_sizes]), values, tail, none]
    joined = pc.binary_join_element_wise(*columns, null_handling="replace", null_replacement="")
    end = int(np.frombuffer(joined.buffers()[1], dtype=np.int64)[count])
    return memoryview(joined.buffers()[2])[:end]


def _zigzag(numbers: np.ndarray) -> np.ndarray:
    return ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)


def _width(numbers: np.ndarray) -> np.ndarray:
    """Length in bytes of each zigzag-encoded number."""
    width = np.ones(len(numbers), dtype=np.int64)
    for bits in (7, 14, 21, 28):
        width += numbers >= np.uint64(1 << bits)
    return width


def _varints(columns: list[np.ndarray]) -> pa.Array:
    """For each row, the varints of its numbers as one binary value."""
    count = len(columns[0])
    widths = [_width(column) for column in columns]
    ends = np.cumsum(np.sum(widths, axis=0)) if count else np.empty(0, dtype=np.int64)
    offsets = np.concatenate(([0], ends)).astype(np.int64)
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    at = offsets[:-1].copy()
    for column, width in zip(columns, widths, strict=True):
        for place in range(int(width.max()) if count else 0):
            rows = slice(None) if place == 0 else np.flatnonzero(width > place)
            numbers = (column[rows] >> np.uint64(7 * place)) & np.uint64(0x7F)
            more = (width[rows] > place + 1).astype(np.uint64) << np.uint64(7)
            out[at[rows] + place] = (numbers | more).astype(np.uint8)
        at += width
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(out)])


def _encode_one_by_one(keys: pa.Array | None, values: pa.Array, headers: pa.Array, timestamp_ms: int) -> EncodedRecords:
    all_keys = keys.to_pylist() if keys is not None else [None] * len(values)
    records = [
        NewRecord(key, value, timestamp_ms, [(header["key"], header["value"]) for header in listed or ()])
        for key, value, listed in zip(all_keys, values.to_pylist(), headers.to_pylist(), strict=True)
    ]
    data, max_timestamp = encode(records, timestamp_ms)
    return EncodedRecords(data, len(records), timestamp_ms, max_timestamp)
