"""Checks the lengths inside a batch and builds no record: loops that mypyc compiles where it can (setup.py).

Pure functions over the decompressed records of one batch; the format is described in `record_codec`. `walk` holds what a
producer wrote to Kafka's rules: lengths add up exactly, offset deltas run from 0 upwards without a gap. `deltas` reads
batches as they lie in a log, where the cleaner may have left gaps.

Invariants: malformed input raises only RemoteProtocolError; a run of `walk` over consecutive ranges accepts the records that
`record_codec.decode` accepts and whose offsets are right. Both can be called for a part of the records, so that a caller can limit
the work of one call; `walk` limits itself by what it costs. Follows KIP-98 (record format) and Kafka's LogValidator.
"""

from __future__ import annotations

from typing import Final

from barnabas.errors import RemoteProtocolError
from barnabas.protocol import record_codec
from barnabas.protocol.record_codec import RECORD_BYTES_MIN, varint, varint_tail
from barnabas.protocol.record_runs import run

__all__ = ["check_count", "deltas", "walk"]

_HEADER_BYTES_MIN = 2  # key length, value length
_COMPILED: Final = not str(record_codec.__file__).endswith(".py")
_LOOP: Final = 16 if _COMPILED else 1  # records in the loop that cost 1
_RUN_MIN: Final = 1_024 if _COMPILED else 32  # records; for fewer a look at the columns costs more than the loop
_RUNS_FROM: Final = (
    64 if _COMPILED else 0
)  # a run ends where offset deltas get wider: the first one would be a short one
_PAUSE_MAX: Final = 32 * _RUN_MIN  # records that are walked one by one before the next look
_RUN_COST: Final = 24  # of one look
_CHEAP: Final = (
    16  # records of a run, or records in the compiled loop, that cost as much as one in the loop of plain Python
)


def check_count(data: bytes, count: int) -> None:
    """Raises RemoteProtocolError if that number of records does not fit into `data`."""
    if count < 0 or count * RECORD_BYTES_MIN > len(data):
        raise RemoteProtocolError(f"batch claims {count} records in {len(data)} bytes")


def walk(data: bytes, position: int, first: int, stop: int, cost_max: int) -> tuple[int, int, int, int, int, int]:
    """Checks the records `first` to `stop` − 1 of a batch, which begin at `position`, until that has cost `cost_max` or a little more.

    A cost of 1 is that of one record in the loop of plain Python, half a microsecond.

    Returns:
        The number of the next record and its position, the lowest and highest timestamp delta of those before it, how many of them
        have no key, and what they have cost.

    Raises:
        RemoteProtocolError: lengths do not add up, or an offset delta is not the number of its record.
    """
    try:
        if stop - first < _RUN_MIN:
            position, lowest, highest, without_key = _walk(data, position, first, stop)
            return stop, position, lowest, highest, without_key, (stop - first) // _LOOP
        lowest, highest, without_key = 2**64, -(2**64), 0
        pause = _RUN_MIN
        cost = 0
        while first < stop and cost < cost_max:
            following = first
            if stop - first >= _RUN_MIN and first >= _RUNS_FROM:
                following, after, low, high, missing = run(data, position, first, stop)
                cost += _RUN_COST + (following - first) // _CHEAP
            if following > first:
                pause = _RUN_MIN
            else:
                following = min(stop, first + pause if first >= _RUNS_FROM else _RUNS_FROM)
                pause = min(2 * pause, _PAUSE_MAX)
                after, low, high, missing = _walk(data, position, first, following)
                cost += (following - first) // _LOOP
            lowest, highest, without_key = min(lowest, low), max(highest, high), without_key + missing
            first, position = following, after
        return first, position, lowest, highest, without_key, cost
    except IndexError:
        raise RemoteProtocolError("records end in the middle of a record") from None


def _walk(data: bytes, position: int, first: int, stop: int) -> tuple[int, int, int, int]:
    """Varints of one and two bytes are read inline: most are. In zigzag an odd number is a negative one. IndexError at the end of `data`."""
    size = len(data)
    lowest = highest = 0
    seen = -1  # timestamp delta of the record before, as it is encoded: most repeat it
    without_key = 0
    for number in range(first, stop):
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
        if raw != seen:
            delta = (raw >> 1) ^ -(raw & 1)
            if seen < 0:
                lowest = highest = delta
            elif delta > highest:
                highest = delta
            elif delta < lowest:
                lowest = delta
            seen = raw

        raw = data[position]
        position += 1
        if raw > 127:
            byte = data[position]
            if byte < 128:
                raw += (byte << 7) - 128
                position += 1
            else:
                raw, position = varint_tail(data, position, raw)
        if raw != number << 1:
            raise RemoteProtocolError(f"record {number} has offset delta {(raw >> 1) ^ -(raw & 1)}")

        raw = data[position]
        position += 1
        if raw > 127:
            byte = data[position]
            if byte < 128:
                raw += (byte << 7) - 128
                position += 1
            else:
                raw, position = varint_tail(data, position, raw)
        if raw & 1:
            without_key += 1
        else:
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
        if not raw & 1:
            position += raw >> 1

        if data[position]:
            position = _walk_headers(data, position, end)
        else:
            position += 1
        if position != end:
            raise RemoteProtocolError(f"record ends at byte {position}, its length says {end}")
    return position, lowest, highest, without_key


def _walk_headers(data: bytes, position: int, end: int) -> int:
    """Passes over the headers of a record that ends at `end`, from their count on."""
    count, position = varint(data, position)
    if count < 0 or count * _HEADER_BYTES_MIN > end - position:
        raise RemoteProtocolError(f"record claims {count} headers in {end - position} bytes")
    for _ in range(count):
        length, position = varint(data, position)
        if length < 0 or position + length > end:
            raise RemoteProtocolError(f"header key of {length} bytes where {end - position} are left")
        position += length
        length, position = varint(data, position)
        if length >= 0:
            if position + length > end:
                raise RemoteProtocolError(f"header value of {length} bytes where {end - position} are left")
            position += length
    return position


def deltas(data: bytes, position: int, count: int) -> tuple[list[tuple[int, int, bool]], int]:
    """Of the `count` records from `position` on: offset delta, timestamp delta, whether there is a key; and the position after them.

    Only the beginning of each record is read: keys, values and headers are passed over by the record's length.

    Raises:
        RemoteProtocolError: a record reaches beyond `data`.
    """
    found: list[tuple[int, int, bool]] = []
    size = len(data)
    try:
        for _ in range(count):
            length, position = varint(data, position)
            end = position + length
            if length < RECORD_BYTES_MIN - 1 or end > size:
                raise RemoteProtocolError(f"record of {length} bytes where {size - position} are left")
            timestamp, position = varint(data, position + 1)
            offset, position = varint(data, position)
            key_length, position = varint(data, position)
            if position > end:
                raise RemoteProtocolError(f"record ends at byte {end}, its key begins at {position}")
            found.append((offset, timestamp, key_length >= 0))
            position = end
    except IndexError:
        raise RemoteProtocolError("records end in the middle of a record") from None
    return found, position
