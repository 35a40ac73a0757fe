"""Fast encoder for many records with one timestamp and no headers: no Python code runs for a single record."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Final

from barnabas.errors import LocalProtocolError
from barnabas.protocol.record_codec import encode_varint
from barnabas.protocol.records import EncodedRecords

# length 5, attributes 1, timestamp delta 1, offset delta 5, key length 1 (5 with a key), value length 5, header count 1
VALUE_RECORD_OVERHEAD_MAX: Final = 19

_KEPT_MAX: Final = 4_096  # lengths of values that a table remembers


class _Before(dict[int, bytes]):
    """Bytes before the offset delta by value length, from the previous record's header count (0) on."""

    def __init__(self, delta_size: int) -> None:
        super().__init__()
        self._delta_size = delta_size

    def __missing__(self, length: int) -> bytes:
        # attributes, timestamp delta, key length and header count take a byte each
        body = 4 + self._delta_size + len(encode_varint(length)) + length
        found = b"\x00%b\x00\x00" % encode_varint(body)
        if len(self) < _KEPT_MAX:
            self[length] = found
        return found


class _After(dict[int, bytes]):
    """Bytes between offset delta and value, by value length: a null key and that length."""

    def __missing__(self, length: int) -> bytes:
        found = b"\x01" + encode_varint(length)
        if len(self) < _KEPT_MAX:
            self[length] = found
        return found


class _Prefix(dict[int, bytes]):
    """Bytes before the offset delta, by the size of the body after it; `delta_size` as above."""

    def __init__(self, delta_size: int) -> None:
        super().__init__()
        self._delta_size = delta_size

    def __missing__(self, rest: int) -> bytes:
        # attributes, timestamp delta and header count take a byte each
        found = b"\x00%b\x00\x00" % encode_varint(3 + self._delta_size + rest)
        if len(self) < _KEPT_MAX:
            self[rest] = found
        return found


class _Length(dict[int, bytes]):
    """Varint of a length."""

    def __missing__(self, length: int) -> bytes:
        found = encode_varint(length)
        if len(self) < _KEPT_MAX:
            self[length] = found
        return found


_PREFIX: Final = tuple(_Prefix(size) for size in range(6))
_LENGTH: Final = _Length()
_BEFORE: Final = tuple(_Before(size) for size in range(6))
_AFTER: Final = _After()
# The first offset delta whose varint has one more byte.
_DELTA_STEPS: Final = (64, 8_192, 1_048_576, 1 << 27, 1 << 34)
_deltas: list[bytes] = [bytes((delta << 1,)) for delta in range(64)]  # varints of the offset deltas so far


def encode_values(values: Sequence[bytes], timestamp: int) -> EncodedRecords:
    """As `encode_records`, one timestamp in ms since the Unix epoch. Raises LocalProtocolError without values."""
    count = len(values)
    if not count:
        raise LocalProtocolError("a batch needs at least one record")
    _know_deltas(count)
    lengths = list(map(len, values))
    parts: list[bytes] = [b""] * (4 * count)
    start = 0
    for size, step in enumerate(_DELTA_STEPS, start=1):
        end = min(step, count)
        parts[4 * start : 4 * end : 4] = map(_BEFORE[size].__getitem__, lengths[start:end])
        start = end
        if start == count:
            break
    parts[1::4] = _deltas[:count]
    parts[2::4] = map(_AFTER.__getitem__, lengths)
    parts[3::4] = values
    parts[0] = parts[0][1:]  # no previous record
    parts.append(b"\x00")
    return EncodedRecords(b"".join(parts), count, timestamp, timestamp)


def encode_pairs(keys: Sequence[bytes], values: Sequence[bytes], timestamp: int) -> EncodedRecords:
    count = len(values)
    if not count:
        raise LocalProtocolError("a batch needs at least one record")
    _know_deltas(count)
    key_lengths = list(map(_LENGTH.__getitem__, map(len, keys)))
    value_lengths = list(map(_LENGTH.__getitem__, map(len, values)))
    parts: list[bytes] = [b""] * (6 * count)
    parts[1::6] = _deltas[:count]
    parts[2::6] = key_lengths
    parts[3::6] = keys
    parts[4::6] = value_lengths
    parts[5::6] = values
    rests = list(
        map(add, map(add, map(len, key_lengths), map(len, keys)), map(add, map(len, value_lengths), map(len, values)))
    )
    start = 0
    for size, step in enumerate(_DELTA_STEPS, start=1):
        end = min(step, count)
        parts[6 * start : 6 * end : 6] = map(_PREFIX[size].__getitem__, rests[start:end])
        start = end
        if start == count:
            break
    parts[0] = parts[0][1:]  # no previous record
    parts.append(b"\x00")
    return EncodedRecords(b"".join(parts), count, timestamp, timestamp)


def _know_deltas(count: int) -> None:
    if len(_deltas) < count:
        _deltas.extend(map(encode_varint, range(len(_deltas), count)))
