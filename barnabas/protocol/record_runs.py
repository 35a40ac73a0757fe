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
# The first byte of the varint of a number that is not negative, where it is the only byte, and where more follow.
_ALONE = bytes(range(0, 128, 2))
_FOLLOWED = bytes(range(128, 256, 2))


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
        extent = _extent([data[shift + byte : end : size] for byte in range(times, offsets)])
        if extent is None:
            break  # timestamps of other widths, or before the first one's
        lowest, highest = min(lowest, extent[0]), max(highest, extent[1])
        position, number, count = end, number + count, 2 * count
    return number, position, lowest, highest, number - first if key_length < 0 else 0


def _extent(columns: list[bytes]) -> tuple[int, int] | None:
    """The lowest and the highest of the numbers whose varints lie in these columns, first bytes first; None where one is negative or
    of another width.

    Most timestamps of a batch have one or two bytes and ascend: then C code finds both without a look at each number.
    """
    *others, last = columns
    if not last.isascii() or columns[0].translate(None, _FOLLOWED if others else _ALONE):
        return None
    if not others:
        seen = set(last)
        return min(seen) >> 1, max(seen) >> 1
    if len(others) == 1:
        seen = set(last)
        least, most = min(seen), max(seen)
        low, high = _firsts(others[0], last, least), _firsts(others[0], last, most)
        if low and high:
            return _number(min(low), least), _number(max(high), most)
    elif min(map(min, others)) < 128:
        return None
    encoded = set(zip(*reversed(columns), strict=True))  # the last byte first: they are ordered as their values are
    return _number(*reversed(min(encoded))), _number(*reversed(max(encoded)))


def _firsts(first: bytes, last: bytes, edge: int) -> set[int]:
    """The first bytes of the varints of two bytes whose last byte is `edge`; none where other varints lie between them."""
    start, stop = last.index(edge), last.rindex(edge) + 1
    return set(first[start:stop]) if last.count(edge, start, stop) == stop - start else set()


def _number(*encoded: int) -> int:
    return varint(bytes(encoded), 0)[0]
