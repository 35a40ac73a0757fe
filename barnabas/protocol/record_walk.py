"""Record checker: validates the records of a batch without building them. Compiled by mypyc if possible (setup.py).
In Python `record_runs` checks runs of equal records. Malformed input raises only RemoteProtocolError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from barnabas.errors import RemoteProtocolError
from barnabas.limits import RECORD_HEADERS_MAX
from barnabas.protocol import record_codec
from barnabas.protocol.record_codec import RECORD_BYTES_MIN, varint
from barnabas.protocol.record_runs import equal_run

if TYPE_CHECKING:
    from mypy_extensions import i64  # an int in Python, a machine word in mypyc; `_tail` keeps each number below 2**60

USUAL_BYTES_MAX: Final = 1 << 14  # of a record whose length has two bytes; `is_usual` is False for larger ones
_VARINT_BYTES_MAX: Final = 10
_HEADER_BYTES_MIN: Final = 2  # key length, value length
_COMPILED: Final = not str(record_codec.__file__).endswith(".py")
_LOOP: Final = 32 if _COMPILED else 1  # records in the loop that cost 1
_RUN_MIN: Final = 2**62 if _COMPILED else 32  # records; for fewer, comparing columns costs more than the loop
_PAUSE_MAX: Final = 1_024  # records that the loop checks before columns are compared again
_PIECE_BYTES: Final = 128 * 1024 if _COMPILED else 2**62  # of a batch, copied at once; long pieces make runs faster
_COPIED_BYTES_MAX: Final = 2**62 if _COMPILED else 2_048  # of a record on average
_RUN_COST: Final = 24  # of one comparison of columns
_CHEAP: Final = 16  # records of a run that cost as much as one in the loop
_HEADERS_MAX: Final = 4_096 * _LOOP  # in one call of the loop, or those of one record: each costs as much as a record
_TAIL_BITS: Final = 56  # read of a long varint; lengths and offset deltas have no more
_HUGE: Final = 1 << 60  # replaces a number with more bits, before zigzag decoding


def check_count(data: bytes | memoryview, count: int) -> None:
    """Raises RemoteProtocolError if `data` is too short for the claimed number of records."""
    if count < 0 or count * RECORD_BYTES_MIN > len(data):
        raise RemoteProtocolError(f"batch claims {count} records in {len(data)} bytes")


def walk(
    data: bytes, position: int, first: int, stop: int, cost_max: int, partial: bool = False
) -> tuple[int, int, int, int, int, int]:
    """Checks records `first` to `stop` − 1 from `position` on, by Kafka's rules; ends early at `cost_max`.

    A cost of 1 is one record in Python's loop, half a microsecond. `partial`: more of the batch follows `data`; the
    walk ends before the first record that ends less than ten bytes before the end of `data`.

    Returns:
        Number and position of the next record; lowest and highest timestamp delta of the checked records (undefined if
        there are none); how many of them have no key; their cost.

    Raises:
        RemoteProtocolError: lengths do not add up, or an offset delta is not the number of its record.
    """
    limit = len(data) - _VARINT_BYTES_MAX if partial else len(data)
    try:
        if partial or stop - first < _RUN_MIN:  # columns are compared in whole batches only
            if _COMPILED or partial:
                stop = min(stop, first + max(cost_max, 1) * _LOOP)
            following, position, lowest, highest, without_key, headers = _walk(data, position, first, stop, limit)
            return following, position, lowest, highest, without_key, (following - first + headers) // _LOOP
        return _walk_by_runs(data, position, first, stop, cost_max, limit)
    except IndexError:
        raise RemoteProtocolError("records end in the middle of a record") from None


def walk_view(
    records: memoryview, position: int, first: int, stop: int, cost_max: int, piece_bytes: int = _PIECE_BYTES
) -> tuple[int, int, int, int, int, int]:
    """As `walk`, for a view. Copies `piece_bytes` (≥ 20) at a time: larger copies evict the CPU's cache."""
    size = len(records)
    if size - position <= piece_bytes:
        rest = records[position:]
        # Python reads the same from a view, which costs less than a copy if the records are long.
        data = cast(bytes, rest) if len(rest) > (stop - first) * _COPIED_BYTES_MAX else bytes(rest)
        number, end, lowest, highest, without_key, cost = walk(data, 0, first, stop, cost_max)
        return number, position + end, lowest, highest, without_key, cost
    without_key = cost = 0
    lowest, highest = 2**64, -(2**64)
    while first < stop and cost < cost_max:
        data = bytes(records[position : position + piece_bytes])
        partial = position + len(data) < size
        number, end, low, high, missing, spent = walk(data, 0, first, stop, cost_max - cost, partial)
        if number == first:
            end, low, missing, spent = _walk_long(records, position, first)
            number, end, high = first + 1, end - position, low
        first = number
        position += end
        lowest, highest = min(lowest, low), max(highest, high)
        without_key += missing
        cost += spent
    return first, position, lowest, highest, without_key, cost


def _walk_long(records: memoryview, position: int, number: int) -> tuple[int, int, int, int]:
    """Checks a record longer than a piece, without a copy: its end, timestamp delta, whether it lacks a key, cost."""
    try:
        length, position = _number_at(records, position)
        end = position + length
        if length < 0 or end > len(records):
            raise RemoteProtocolError(f"record of {length} bytes where {len(records) - position} are left")
        delta, position = _number_at(records, position + 1)
        offset, position = _number_at(records, position)
        if offset != number:
            raise RemoteProtocolError(f"record {number} has offset delta {offset}")
        key, position = _number_at(records, position)
        value, position = _number_at(records, position + max(key, 0))
        position += max(value, 0)
        count, after = _number_at(records, position)
        if count < 0 or count * _HEADER_BYTES_MIN > end - after:
            raise RemoteProtocolError(f"record claims {count} headers in {end - after} bytes")
        if count > RECORD_HEADERS_MAX:
            raise RemoteProtocolError(f"record has {count} headers, {RECORD_HEADERS_MAX} are the most")
        position = after
        for _ in range(count):
            length, position = _number_at(records, position)
            if length < 0 or position + length > end:
                raise RemoteProtocolError(f"header key of {length} bytes where {end - position} are left")
            length, position = _number_at(records, position + length)
            position += max(length, 0)
    except IndexError:
        raise RemoteProtocolError("records end in the middle of a record") from None
    if position != end:
        raise _wrong_end(position, end)
    return end, delta, 1 if key < 0 else 0, 1 + count


def _number_at(records: memoryview, position: int) -> tuple[int, int]:
    value, size = varint(bytes(records[position : position + _VARINT_BYTES_MAX]), 0)
    return value, position + size


def is_usual(data: bytes) -> bool:
    """Whether `data` is one well-formed record with a value, no headers, deltas 0, and lengths of one or two bytes."""
    try:
        raw: i64 = data[0]
        at: i64 = 1
        if raw > 127:
            if data[1] > 127:
                return False
            raw += (data[1] << 7) - 128
            at = 2
        if raw & 1 or at + (raw >> 1) != len(data) or data[at + 1] or data[at + 2]:
            return False
        at += 4
        raw = data[at - 1]
        if raw > 127:
            if data[at] > 127:
                return False
            raw += (data[at] << 7) - 128
            at += 1
        if raw != 1:  # it has a key
            if raw & 1:
                return False
            at += raw >> 1
        raw = data[at]
        at += 1
        if raw > 127:
            if data[at] > 127:
                return False
            raw += (data[at] << 7) - 128
            at += 1
        return not raw & 1 and at + (raw >> 1) == len(data) - 1 and not data[len(data) - 1]
    except IndexError:
        return False


def _walk_by_runs(
    data: bytes, position: int, first: int, stop: int, cost_max: int, limit: int
) -> tuple[int, int, int, int, int, int]:
    lowest, highest, without_key = 2**64, -(2**64), 0
    pause = _RUN_MIN
    cost = 0
    while first < stop and cost < cost_max:
        following = first
        if stop - first >= _RUN_MIN:
            following, after, low, high, missing = equal_run(data, position, first, stop)
            cost += _RUN_COST + (following - first) // _CHEAP
        if following > first:
            pause = _RUN_MIN
        else:
            following, after, low, high, missing, headers = _walk(
                data, position, first, min(stop, first + pause), limit
            )
            if following == first:
                break
            pause = min(2 * pause, _PAUSE_MAX)
            cost += following - first + headers
        lowest, highest, without_key = min(lowest, low), max(highest, high), without_key + missing
        first, position = following, after
        if position > limit:
            break
    return first, position, lowest, highest, without_key, cost


def _walk(data: bytes, position: i64, first: i64, stop: i64, limit: i64) -> tuple[i64, i64, i64, i64, i64, i64]:
    """Inlines varints of one and two bytes: most are so short. IndexError at the end of `data`."""
    size: i64 = len(data)
    lowest: i64 = 2**63 - 1
    highest: i64 = -(2**63)
    seen: i64 = -1  # encoded timestamp delta of the previous record: most records repeat it
    without_key: i64 = 0
    headers: i64 = 0
    count: i64
    number: i64
    begin: i64
    end: i64
    raw: i64
    byte: i64
    delta: i64
    for number in range(first, stop):
        begin = position
        raw = data[position]
        position += 1
        if raw > 127:
            byte = data[position]
            if byte < 128:
                raw += (byte << 7) - 128
                position += 1
            else:
                raw, position = _tail(data, position, raw)
        end = position + (raw >> 1)
        if raw & 1 or end > limit:
            if limit < size and not raw & 1:
                return number, begin, lowest, highest, without_key, headers
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
                begin = position - 1
                raw, position = _tail(data, position, raw)
                if raw == _HUGE:
                    delta, position = varint(data, begin)
                    if delta > highest:
                        highest = delta
                    if delta < lowest:
                        lowest = delta
                    raw = seen
        if raw != seen:
            delta = (raw >> 1) ^ -(raw & 1)
            if delta > highest:
                highest = delta
            if delta < lowest:
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
                raw, position = _tail(data, position, raw)
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
                raw, position = _tail(data, position, raw)
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
                raw, position = _tail(data, position, raw)
        if not raw & 1:
            position += raw >> 1

        if data[position]:
            count, position = _walk_headers(data, position, end)
            if position != end:
                raise _wrong_end(position, end)
            headers += count
            if headers >= _HEADERS_MAX:
                return number + 1, position, lowest, highest, without_key, headers
        else:
            position += 1
            if position != end:
                raise _wrong_end(position, end)
    return stop, position, lowest, highest, without_key, headers


def _wrong_end(position: int, end: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"record ends at byte {position}, its length says {end}")


def _walk_headers(data: bytes, position: i64, end: i64) -> tuple[i64, i64]:
    count: i64
    length: i64
    count, position = _number(data, position)
    if count < 0 or count * _HEADER_BYTES_MIN > end - position:
        raise RemoteProtocolError(f"record claims {count} headers in {end - position} bytes")
    if count > RECORD_HEADERS_MAX:
        raise RemoteProtocolError(f"record has {count} headers, {RECORD_HEADERS_MAX} are the most")
    for _ in range(count):
        length, position = _number(data, position)
        if length < 0 or position + length > end:
            raise RemoteProtocolError(f"header key of {length} bytes where {end - position} are left")
        position += length
        length, position = _number(data, position)
        if length >= 0:
            if position + length > end:
                raise RemoteProtocolError(f"header value of {length} bytes where {end - position} are left")
            position += length
    return count, position


def _number(data: bytes, position: i64) -> tuple[i64, i64]:
    raw: i64 = data[position]
    position += 1
    if raw > 127:
        raw, position = _tail(data, position, raw)
    return (raw >> 1) ^ -(raw & 1), position


def _tail(data: bytes, position: i64, first: i64) -> tuple[i64, i64]:
    """Rest of a varint after `first`, without undoing zigzag, and the position after it; _HUGE above _TAIL_BITS."""
    raw: i64 = first & 0x7F
    shift: i64 = 7
    byte: i64
    while True:
        byte = data[position]
        position += 1
        if shift < _TAIL_BITS:
            raw |= (byte & 0x7F) << shift
        elif byte & 0x7F:
            raw = _HUGE
        if byte < 128:
            return raw, position
        shift += 7
        if shift > 63:
            raise RemoteProtocolError(f"varint before byte {position} is longer than ten bytes")


def deltas(data: bytes, position: int, count: int) -> tuple[list[tuple[int, int, bool]], int]:
    """(offset delta, timestamp delta, has a key) of `count` records, gaps allowed; then the position after the last."""
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
