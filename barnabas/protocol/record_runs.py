"""Checks runs of records of equal lengths, one column of bytes at a time: ten times as fast as a loop in plain Python.

Where all lengths of a record are those of the record before, each of its bytes lies at the same distance from the record's
beginning. A slice with that step holds one byte of every record: C code compares it with the one byte that it must repeat, or
with the bytes that consecutive offset deltas have. The pieces that are compared grow, so that a run of any length is found.

Driven by: `record_walk`, where it is not compiled. Invariant: accepts only what the loop there accepts, and finds what it finds;
timestamps before the first record's and records with headers are left to the loop.
"""

from __future__ import annotations

from barnabas.protocol.record_codec import varint

__all__ = ["run"]

_PIECE_MIN = 32  # records that are compared first
# The varints of offset deltas, byte by byte: of one byte up to 63; of more, the first and second byte, which repeat after 8,192.
_ONLY = bytes(range(0, 128, 2))
_FIRST = bytes(128 | 2 * (delta & 63) for delta in range(8_192))
_LAST = bytes(delta >> 6 for delta in range(8_192))
_SECOND = bytes(128 | byte for byte in _LAST)
_PARITY = bytes(byte & 1 for byte in range(256))  # of a varint's first byte: 1 where the number is negative


def run(data: bytes, position: int, number: int, stop: int) -> tuple[int, int, int, int, int]:
    """Checks records `number` to `stop` − 1, which begin at `position`, as far as each of their lengths is that of the first.

    Returns:
        The number of the record after them, `number` itself where there is no run, and what `record_walk.walk` returns.

    Raises:
        RemoteProtocolError, IndexError: the first record is malformed.
    """
    start = position
    length, body = varint(data, start)
    times = body + 1
    _, offsets = varint(data, times)
    _, key_length_at = varint(data, offsets)
    key_length, key = varint(data, key_length_at)
    value_length_at = key + max(key_length, 0)
    value_length, value = varint(data, value_length_at)
    end = value + max(value_length, 0) + 1
    size = end - start
    lowest, highest, first = 2**64, -(2**64), number
    if end != body + length or data[end - 1] or number >> 20:
        return number, position, lowest, highest, 0
    constant = [*range(start, body), *range(key_length_at, key), *range(value_length_at, value), end - 1]
    # Up to there the varint of the offset delta keeps its width, and its third byte.
    stop = min(stop, 64 if number < 64 else (number | 8_191) + 1)
    count = _PIECE_MIN
    while True:
        count = min(count, stop - number, (len(data) - position) // size)
        end = position + count * size
        shift = position - start
        at = number & 8_191
        if number < 64:
            expected = [_ONLY[number : number + count]]
        elif number < 8_192:
            expected = [_FIRST[at : at + count], _LAST[at : at + count]]
        else:
            expected = [_FIRST[at : at + count], _SECOND[at : at + count], bytes([number >> 13 & 127]) * count]
        if (
            count <= 0
            or [data[shift + byte : end : size] for byte in range(offsets, key_length_at)] != expected
            or any(data[shift + byte : end : size].count(data[byte]) != count for byte in constant)
        ):
            break
        columns = [data[shift + byte : end : size] for byte in range(offsets - 1, times - 1, -1)]
        if (
            max(columns[0]) > 127
            or min(b"".join(columns[1:]), default=128) < 128
            or 1 in columns[-1].translate(_PARITY)
        ):
            break  # timestamps of other widths, or before the first one's
        encoded = set(zip(*columns, strict=True))  # the last byte first: they are ordered as their values are
        lowest = min(lowest, varint(bytes(reversed(min(encoded))), 0)[0])
        highest = max(highest, varint(bytes(reversed(max(encoded))), 0)[0])
        position, number, count = end, number + count, 2 * count
    return number, position, lowest, highest, number - first if key_length < 0 else 0
