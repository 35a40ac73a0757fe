"""Record codec: reads and writes the records of a batch (KIP-98, KIP-82). Compiled by mypyc if possible (setup.py).
A record: length, attributes (int8), timestamp delta, offset delta, key, value, headers; all varints are zigzag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from barnabas.errors import RemoteProtocolError

RECORD_BYTES_MIN = 7  # length, attributes, two deltas, two lengths, header count: one byte each
_HEADER_BYTES_MIN = 2  # key length, value length


class Record(NamedTuple):
    """A consumed record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class NewRecord(NamedTuple):
    """A record for a new batch. `timestamp` in milliseconds since the Unix epoch, or -1."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Sequence[tuple[str, bytes | None]] = ()


def decode(
    data: bytes,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int,
    cls: type[tuple[Any, ...]] = Record,
    tail: tuple[Any, ...] = (),
) -> list[Any]:
    """Decodes the `count` records that fill `data` (decompressed).

    Args:
        base_timestamp: in milliseconds.
        append_time: timestamp of every record if the log assigned it (LogAppendTime), else -1.
        cls: tuple class of the results; its first fields are those of `Record`.
        tail: values of the further fields, the same for every record (a consumer's topic and partition).

    Raises:
        RemoteProtocolError: count, lengths and bytes disagree.
    """
    if count < 0 or count * RECORD_BYTES_MIN > len(data):
        raise RemoteProtocolError(f"batch claims {count} records in {len(data)} bytes")
    try:
        return _decode(data, count, base_offset, base_timestamp, append_time, cls, tail)
    except IndexError:
        raise RemoteProtocolError("records end in the middle of a record") from None


def decode_values(data: bytes, count: int) -> list[bytes] | None:
    """The values of all records, in half the time of `decode`; None for null values, headers or malformed input."""
    values: list[bytes] = []
    size = len(data)
    position = 0
    if count < 0 or count * RECORD_BYTES_MIN > size:
        return None
    try:
        for _ in range(count):
            raw = data[position]
            position += 1
            if raw > 127:
                byte = data[position]
                if byte < 128:
                    raw += (byte << 7) - 128
                    position += 1
                else:
                    raw, position = varint_tail(data, position, raw)
            end = position + (raw >> 1)
            negative = raw & 1
            position += 2  # attributes, first byte of the timestamp delta
            if data[position - 1] > 127:
                if data[position] < 128:
                    position += 1
                else:
                    raw, position = varint_tail(data, position, 0)
            if data[position] < 128:  # offset delta
                position += 1
            elif data[position + 1] < 128:
                position += 2
            else:
                raw, position = varint_tail(data, position + 1, 0)
            raw = data[position]  # length of the key
            position += 1
            if raw > 127:
                raw, position = varint_tail(data, position, raw)
            if not raw & 1:
                position += raw >> 1
            raw = data[position]
            position += 1
            if raw > 127:
                byte = data[position]
                if byte < 128:
                    raw += (byte << 7) - 128
                    position += 1
                else:
                    raw, position = varint_tail(data, position, raw)
            start = position
            position += raw >> 1
            if (raw | negative) & 1 or position + 1 != end or data[position]:
                return None
            values.append(data[start:position])
            position = end
    except (IndexError, RemoteProtocolError):
        return None
    return values if position == size else None


def single(data: bytes, position: int, end: int) -> tuple[int, bytes, bytes | None] | None:
    """Offset delta, key, value of a record of the most frequent form (key, no headers, short numbers), else None."""
    try:
        length = data[position]
        position += 1
        if length > 127:
            length += (data[position] << 7) - 128
            position += 1
            if data[position - 1] > 127:
                return None
        if length & 1 or position + (length >> 1) != end:
            return None
        delta = data[position + 2]
        key_length = data[position + 3]
        if data[position + 1] > 127 or delta > 127 or (delta | key_length) & 1:
            return None
        position += 4
        if key_length > 127:
            key_length += (data[position] << 7) - 128
            position += 1
            if data[position - 1] > 127:
                return None
        key_end = position + (key_length >> 1)
        value_length = data[key_end]
        value_start = key_end + 1
        if value_length > 127:
            value_length += (data[value_start] << 7) - 128
            value_start += 1
            if data[value_start - 1] > 127:
                return None
        # An odd number is a negative length, which means null.
        value_end = value_start if value_length & 1 else value_start + (value_length >> 1)
        if value_end + 1 != end or data[value_end]:
            return None
    except IndexError:
        return None
    value = None if value_length & 1 else data[value_start:value_end]
    return delta >> 1, data[position:key_end], value


def _decode(
    data: bytes,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int,
    cls: type[tuple[Any, ...]],
    tail: tuple[Any, ...],
) -> list[Any]:
    """Inlines varints of one and two bytes: most are so short. IndexError at the end of `data`."""
    records: list[Any] = []
    new = tuple.__new__
    size = len(data)
    position = 0
    for _ in range(count):
        raw = data[position]
        position += 1
        if raw > 127:
            byte = data[position]
            if byte < 128:
                raw += (byte << 7) - 128
                position += 1
            else:
                raw, position = varint_tail(data, position, raw)
        end = position + (raw >> 1)
        if raw & 1 or end > size:
            raise RemoteProtocolError(f"record of {(raw >> 1) ^ -(raw & 1)} bytes where {size - position} are left")
        position += 1  # attributes of a record: none are defined

        raw = data[position]
        position += 1
        if raw > 127:
            byte = data[position]
            if byte < 128:
                raw += (byte << 7) - 128
                position += 1
            else:
                raw, position = varint_tail(data, position, raw)
        timestamp = base_timestamp + ((raw >> 1) ^ -(raw & 1)) if append_time < 0 else append_time

        raw = data[position]
        position += 1
        if raw > 127:
            byte = data[position]
            if byte < 128:
                raw += (byte << 7) - 128
                position += 1
            else:
                raw, position = varint_tail(data, position, raw)
        offset = base_offset + ((raw >> 1) ^ -(raw & 1))

        key = value = None
        raw = data[position]
        position += 1
        if raw > 127:
            byte = data[position]
            if byte < 128:
                raw += (byte << 7) - 128
                position += 1
            else:
                raw, position = varint_tail(data, position, raw)
        if not raw & 1:
            start = position
            position += raw >> 1
            key = data[start:position]

        raw = data[position]
        position += 1
        if raw > 127:
            byte = data[position]
            if byte < 128:
                raw += (byte << 7) - 128
                position += 1
            else:
                raw, position = varint_tail(data, position, raw)
        if not raw & 1:
            start = position
            position += raw >> 1
            value = data[start:position]

        headers: Sequence[tuple[str, bytes | None]] = ()
        if data[position]:
            headers, position = _decode_headers(data, position, end)
        else:
            position += 1
        if position != end:
            raise RemoteProtocolError(f"record ends at byte {position}, its length says {end}")
        records.append(new(cls, (offset, timestamp, key, value, headers) + tail))  # noqa: RUF005 (unpacking is slower)
    if position != size:
        raise RemoteProtocolError(f"{size - position} bytes follow the {count} records that the batch claims")
    return records


def _decode_headers(data: bytes, position: int, end: int) -> tuple[Sequence[tuple[str, bytes | None]], int]:
    """Headers after their count. Keys are UTF-8; other bytes become surrogates, which encode to the same bytes."""
    count, position = varint(data, position)
    if count < 0 or count * _HEADER_BYTES_MIN > end - position:
        raise RemoteProtocolError(f"record claims {count} headers in {end - position} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, position = varint(data, position)
        if length < 0 or position + length > end:
            raise RemoteProtocolError(f"header key of {length} bytes where {end - position} are left")
        key = data[position : position + length].decode("utf-8", "surrogateescape")
        position += length
        length, position = varint(data, position)
        value = None
        if length >= 0:
            if position + length > end:
                raise RemoteProtocolError(f"header value of {length} bytes where {end - position} are left")
            value = data[position : position + length]
            position += length
        headers.append((key, value))
    return tuple(headers), position


def varint(data: bytes, position: int) -> tuple[int, int]:
    """Zigzag varint, and the position after it."""
    raw = data[position]
    position += 1
    if raw > 127:
        raw, position = varint_tail(data, position, raw)
    return (raw >> 1) ^ -(raw & 1), position


def varint_tail(data: bytes, position: int, first: int) -> tuple[int, int]:
    """Rest of a varint after its byte `first`, without undoing zigzag; at most ten bytes, as for int64."""
    raw = first & 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise RemoteProtocolError(f"varint before byte {position} is longer than ten bytes")
    if raw >> 64:
        raise RemoteProtocolError(f"varint before byte {position} exceeds 64 bits")
    return raw, position


def encode_varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    if 127 < raw < 1 << 14:  # the usual ones outside of `_VARINTS`
        return bytes((raw & 0x7F | 0x80, raw >> 7))
    out = bytearray()
    while raw > 127:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


# Most lengths and deltas are small: their varints are in this table.
_VARINTS = tuple(encode_varint(value) for value in range(1_024))


def encode(records: Sequence[NewRecord], base_timestamp: int, first_delta: int = 0) -> tuple[bytes, int]:
    """Encodes records with consecutive offset deltas; returns the bytes and the highest timestamp."""
    small = _VARINTS
    known = len(small)
    out: list[bytes] = []
    max_timestamp = base_timestamp
    for delta, (key, value, timestamp, headers) in enumerate(records, first_delta):
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        elapsed = timestamp - base_timestamp
        if key is None:
            key_length, key = b"\x01", b""
        else:
            size = len(key)
            key_length = small[size] if size < known else encode_varint(size)
        if value is None:
            value_length, value = b"\x01", b""
        else:
            size = len(value)
            value_length = small[size] if size < known else encode_varint(size)
        body = b"".join(
            (
                b"\x00",
                small[elapsed] if 0 <= elapsed < known else encode_varint(elapsed),
                small[delta] if delta < known else encode_varint(delta),
                key_length,
                key,
                value_length,
                value,
                _encode_headers(headers) if headers else b"\x00",
            )
        )
        size = len(body)
        out.append(small[size] if size < known else encode_varint(size))
        out.append(body)
    return b"".join(out), max_timestamp


def spans(data: bytes, count: int) -> list[tuple[int, int]]:
    """(start, end) of each of `count` records in `data`, which `decode` has accepted."""
    found = []
    position = 0
    for _ in range(count):
        start = position
        length, position = varint(data, position)
        position += length
        found.append((start, position))
    return found


def record_starts(data: bytes, position: int, end: int, count: int) -> tuple[list[int], int]:
    """Starts of `count` consecutive records, and the position after them. Raises RemoteProtocolError beyond `end`."""
    starts = []
    for _ in range(count):
        starts.append(position)
        if position >= end:
            raise RemoteProtocolError("a batch ends before its last record")
        raw = data[position]  # read here: a call of `varint` for each record doubles the time
        position += 1
        if raw > 127:
            byte = data[position]
            if byte < 128:
                raw += (byte << 7) - 128
                position += 1
            else:
                raw, position = varint_tail(data, position, raw)
        length = (raw >> 1) ^ -(raw & 1)
        position += length
        if length < RECORD_BYTES_MIN - 1 or position > end:
            raise RemoteProtocolError(f"record of {length} bytes where {end - position + length} are left")
    return starts, position


def encode_kept(records: Sequence[Record], base_offset: int, base_timestamp: int) -> bytes:
    """Encodes records with their offsets and timestamps, for a batch from which others were removed."""
    out: list[bytes] = []
    for offset, timestamp, key, value, headers in records:
        body = b"".join(
            (
                b"\x00",
                encode_varint(timestamp - base_timestamp),
                encode_varint(offset - base_offset),
                _encode_bytes(key),
                _encode_bytes(value),
                _encode_headers(headers),
            )
        )
        out.append(encode_varint(len(body)))
        out.append(body)
    return b"".join(out)


def _encode_bytes(value: bytes | None) -> bytes:
    return b"\x01" if value is None else encode_varint(len(value)) + value


def _encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    out = [encode_varint(len(headers))]
    for key, value in headers:
        name = key.encode("utf-8", "surrogateescape")
        out.append(encode_varint(len(name)))
        out.append(name)
        out.append(_encode_bytes(value))
    return b"".join(out)
