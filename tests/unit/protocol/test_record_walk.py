"""The walk over the lengths inside a batch: it accepts what the decoder accepts, and sees what the decoder sees."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from barnabas.errors import RemoteProtocolError
from barnabas.limits import RECORD_HEADERS_MAX
from barnabas.protocol.record_codec import NewRecord, Record, decode, encode, encode_kept, encode_varint
from barnabas.protocol.record_walk import check_count, deltas, is_usual, walk, walk_view

NOW = 1_700_000_000_000

texts = st.one_of(st.none(), st.binary(max_size=12), st.binary(min_size=60, max_size=140))
headers = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=8))), max_size=3)
records = st.builds(
    NewRecord, texts, texts, st.integers(NOW - 10, NOW + 10) | st.integers(0, 2 * NOW), headers.map(tuple)
)


def walked(data: bytes, count: int, slice_size: int = 10**9) -> tuple[int, int, int]:
    """Lowest and highest timestamp delta and the records without a key, found slice by slice.

    Raises:
        RemoteProtocolError: as the walk, or bytes follow the last record.
    """
    check_count(data, count)
    position, lowest, highest, without_key = 0, 2**64, -(2**64), 0
    for first in range(0, count, slice_size):
        stop = min(count, first + slice_size)
        number, position, low, high, missing, _ = walk(data, position, first, stop, 10**9)
        assert number == stop
        lowest, highest, without_key = min(lowest, low), max(highest, high), without_key + missing
    if position != len(data):
        raise RemoteProtocolError("bytes follow")
    return lowest, highest, without_key


def decoded(data: bytes, count: int) -> list[Record]:
    """What the decoder makes of it, its offset deltas checked beside it.

    Raises:
        RemoteProtocolError: as the decoder, or a gap.
    """
    found: list[Record] = decode(data, count, 0, 0, -1)
    if [record.offset for record in found] != list(range(count)):
        raise RemoteProtocolError("offset deltas have gaps")
    return found


def agree(data: bytes, count: int, slice_size: int) -> None:
    try:
        found = decoded(data, count)
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            walked(data, count, slice_size)
        return
    lowest, highest, without_key = walked(data, count, slice_size)
    if found:
        times = [record.timestamp for record in found]
        assert (lowest, highest) == (min(times), max(times))
    assert without_key == sum(record.key is None for record in found)
    seen, position = deltas(data, 0, count)
    assert seen == [(record.offset, record.timestamp, record.key is not None) for record in found]
    assert position == len(data)


@settings(max_examples=60)
@given(st.lists(records, max_size=12), st.integers(1, 13))
def test_what_was_encoded_is_accepted(rows: list[NewRecord], slice_size: int) -> None:
    data, _ = encode(rows, NOW)
    assert len(decoded(data, len(rows))) == len(rows)
    agree(data, len(rows), slice_size)


@settings(max_examples=300)
@given(
    st.lists(records, min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    st.integers(-3, 3),
    st.integers(-4, 4),
    st.integers(1, 7),
)
def test_the_walk_accepts_what_the_decoder_accepts(
    rows: list[NewRecord], changes: list[tuple[int, int]], more: int, longer: int, slice_size: int
) -> None:
    """Bytes changed anywhere, another count, a longer or a shorter end."""
    data = bytearray(encode(rows, NOW)[0])
    for place, value in changes:
        data[place % len(data)] = value
    whole = bytes(data + bytes(longer)) if longer >= 0 else bytes(data[:longer])
    agree(whole, len(rows) + more, slice_size)


def outcome(count: int, walking: Callable[[], tuple[int, int, int, int, int, int]]) -> tuple[int, ...] | None:
    """What a walk over all records found, without its cost; None if it refused them."""
    try:
        found = walking()
    except RemoteProtocolError:
        return None
    assert found[0] == count
    return found[:5]


@settings(max_examples=200)
@given(
    st.lists(records, min_size=1, max_size=50),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=2),
    st.integers(-1, 1),
    st.integers(20, 400),
)
def test_pieces_of_a_batch_are_checked_as_the_whole_is(
    rows: list[NewRecord], changes: list[tuple[int, int]], more: int, piece_bytes: int
) -> None:
    data = bytearray(encode(rows, NOW)[0])
    for place, value in changes:
        data[place % len(data)] = value
    count = max(len(rows) + more, 1)
    whole = outcome(count, lambda: walk(bytes(data), 0, 0, count, 10**9))
    assert outcome(count, lambda: walk_view(memoryview(data), 0, 0, count, 10**9, piece_bytes)) == whole


def test_pieces_of_many_equal_records_after_a_longer_one() -> None:
    rows = [NewRecord(bytes(60), None, NOW - 10, ()), *([NewRecord(None, None, NOW - 10, ())] * 31)]
    data = encode(rows, NOW)[0]
    assert walk_view(memoryview(data), 0, 0, 32, 10**9, 20)[:5] == walk(data, 0, 0, 32, 10**9)[:5]


@pytest.mark.parametrize("size", [1, 100, 5_000, 300_000])
def test_pieces_of_many_records(size: int) -> None:
    """Also of records that are longer than a piece; the cost stays limited."""
    count = 600_000 // (size + 10)
    data = encode([NewRecord(None, bytes(size), NOW + number // 5) for number in range(count)], NOW)[0]
    for piece_bytes in (4_096, 65_536, 131_072, 2**62):
        assert walk_view(memoryview(data), 0, 0, count, 10**9, piece_bytes)[:5] == walk(data, 0, 0, count, 10**9)[:5]
    for place in range(12):
        wrong = data[:place] + b"\x82" + data[place + 1 :]
        whole = outcome(count, partial(walk, wrong, 0, 0, count, 10**9))
        assert outcome(count, partial(walk_view, memoryview(wrong), 0, 0, count, 10**9)) == whole
    if size == 1:
        reached, *_, cost = walk_view(memoryview(data), 0, 0, count, 200, 65_536)
        assert 0 < reached < count
        assert 200 <= cost < 400


@settings(max_examples=300)
@given(
    st.builds(NewRecord, texts, texts | st.integers(8_180, 8_200).map(bytes), st.just(NOW), headers.map(tuple)),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 255)), max_size=2),
    st.integers(-1, 1),
)
def test_the_usual_record_is_what_the_decoder_accepts(
    row: NewRecord, changes: list[tuple[int, int]], longer: int
) -> None:
    data = bytearray(encode([row], NOW)[0])
    for place, value in changes:
        data[place % len(data)] = value
    whole = bytes(data + bytes(longer)) if longer >= 0 else bytes(data[:longer])
    usual = is_usual(whole)
    if usual:
        (found,) = decoded(whole, 1)
        assert found.timestamp == 0
    if not changes and not longer:
        small = len(row.key or b"") + len(row.value or b"") < 8_000
        assert usual or not small or row.value is None or row.headers


@st.composite
def runs(draw: st.DrawFn) -> list[NewRecord]:
    """Stretches of records of the same lengths, whose timestamps move, and others between them."""
    rows: list[NewRecord] = []
    for _ in range(draw(st.integers(1, 3))):
        like = draw(records)
        step = draw(st.sampled_from([0, 1, 30, -1]))
        count = draw(st.sampled_from([1, 33, 70, 110]))
        rows += [like._replace(timestamp=NOW + step * (number // 8)) for number in range(count)]
    return rows


@settings(max_examples=150)
@given(
    runs(),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=2),
    st.sampled_from([0, 0, 0, 1, -1]),
    st.sampled_from([0, 0, 0, 1, -1, -5]),
    st.sampled_from([32, 33, 64, 1_000]),
)
def test_runs_of_records_of_the_same_lengths(
    rows: list[NewRecord], changes: list[tuple[int, int]], more: int, longer: int, slice_size: int
) -> None:
    data = bytearray(encode(rows, NOW)[0])
    for place, value in changes:
        data[place % len(data)] = value
    whole = bytes(data + bytes(longer)) if longer >= 0 else bytes(data[:longer])
    agree(whole, len(rows) + more, slice_size)


@pytest.mark.parametrize("first", [0, 40, 60, 63, 64, 8_100, 8_191, 8_192, 16_300, 2**20 - 40, 2**20 - 1, 2**20])
def test_any_byte_of_a_run_may_be_wrong(first: int) -> None:
    """At every width of the offset deltas: a run is what the walk record by record makes of it."""
    count = 72
    pieces = []
    for delta in range(first, first + count):
        body = b"\x00" + encode_varint(delta % 5 * 40) + encode_varint(delta) + b"\x02k\x04vv\x00"
        pieces.append(encode_varint(len(body)) + body)
    data = b"".join(pieces)

    def one_by_one(data: bytes) -> tuple[int, int, int, int] | None:
        position, lowest, highest, without_key = 0, 2**64, -(2**64), 0
        try:
            for number in range(first, first + count):
                _, position, low, high, missing, _ = walk(data, position, number, number + 1, 10**9)
                lowest, highest, without_key = min(lowest, low), max(highest, high), without_key + missing
        except RemoteProtocolError:
            return None
        return position, lowest, highest, without_key

    def at_once(data: bytes) -> tuple[int, int, int, int] | None:
        try:
            return walk(data, 0, first, first + count, 10**9)[1:5]
        except RemoteProtocolError:
            return None

    whole = one_by_one(data)
    assert whole is not None
    assert at_once(data) == whole
    for place in range(len(data)):
        for flip in (0x01, 0x80):
            changed = data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :]
            assert at_once(changed) == one_by_one(changed), (place, flip)


@settings(max_examples=150)
@given(
    st.sampled_from(
        [(0, 63), (64, 8_191), (8_192, 2**20 - 1), (2**20, 2**21), (60, 70), (8_000, 9_000), (-3, 60), (-90, 9_000)]
    ),
    st.sampled_from(["as they come", "ascending", "descending", "one"]),
    st.integers(32, 300),
    st.randoms(use_true_random=False),
)
def test_timestamps_of_a_run(span: tuple[int, int], order: str, count: int, random: Random) -> None:
    """Whatever their width and order: the lowest and the highest are found, in any slices."""
    times = [random.choice((span[0], span[1], random.randint(*span))) for _ in range(count)]
    if order == "one":
        times = times[:1] * count
    elif order != "as they come":
        times.sort(reverse=order == "descending")
    data, _ = encode([NewRecord(None, b"v", NOW + time) for time in times], NOW)
    for slice_size in (count, 40):
        assert walked(data, count, slice_size) == (min(times), max(times), count)


def lengths(*sizes: int) -> bytes:
    """Records whose values have these lengths."""
    return encode([NewRecord(None, bytes(size), NOW) for size in sizes], NOW)[0]


def test_the_walk_limits_itself_by_its_cost() -> None:
    count = 20_000
    for name, data, each in (
        ("one length", lengths(*[100] * count), 0.2),
        ("runs as short as can be", lengths(*[10 + number // 32 % 2 for number in range(count)]), 2.0),
        ("no runs", lengths(*[10 + number % 2 for number in range(count)]), 1.1),
    ):
        whole = walk(data, 0, 0, count, 10**9)
        assert whole[:2] == (count, len(data)), name
        assert whole[5] <= each * count, name
        position = number = cost = pieces = 0
        while number < count:
            number, position, *_, spent = walk(data, position, number, count, 100)
            cost, pieces = cost + spent, pieces + 1
            assert spent <= 150 + count // 16, name  # what one look at columns goes beyond it
        assert position == len(data), name
        assert pieces > 1 or name == "one length"
        assert cost >= whole[5] // 2, name


def test_headers_count_towards_the_cost_and_have_a_limit() -> None:
    def record(number: int, headers: int) -> NewRecord:
        return NewRecord(None, b"v", NOW + number, (("", None),) * headers)

    data, _ = encode([record(number, RECORD_HEADERS_MAX) for number in range(40)], NOW)
    position = number = cost = pieces = 0
    while number < 40:
        number, position, *_, spent = walk(data, position, number, 40, 4_096)
        cost, pieces = cost + spent, pieces + 1
    assert position == len(data)
    assert pieces > 1
    assert cost >= 40 * RECORD_HEADERS_MAX // 32  # the compiled loop passes 32 at the cost of one
    with pytest.raises(RemoteProtocolError, match="record has 16385 headers, 16384 are the most"):
        walk(encode([record(0, RECORD_HEADERS_MAX + 1)], NOW)[0], 0, 0, 1, 10**9)


@settings(max_examples=200)
@given(st.binary(max_size=60), st.integers(-1, 9), st.integers(1, 4))
@example(b"\x0c\x00\x00\x00\x01\x01\x00" * 2, 2, 1)  # the second record's delta is 0 again
def test_any_bytes(data: bytes, count: int, slice_size: int) -> None:
    agree(data, count, slice_size)


def test_a_count_that_the_bytes_cannot_hold_costs_nothing() -> None:
    with pytest.raises(RemoteProtocolError, match="claims 2147483647 records in 7 bytes"):
        check_count(encode([NewRecord(None, None, NOW)], NOW)[0], 2**31 - 1)


def test_gaps_are_refused_from_producers_and_read_from_logs() -> None:
    kept = encode_kept([Record(5, NOW, b"k", None, ()), Record(9, NOW + 3, None, b"v", ())], 5, NOW)
    with pytest.raises(RemoteProtocolError, match="record 1 has offset delta 4"):
        walk(kept, 0, 0, 2, 10**9)
    assert deltas(kept, 0, 2) == ([(0, 0, True), (4, 3, False)], len(kept))
    assert deltas(kept, 0, 1)[0] == [(0, 0, True)]


@pytest.mark.parametrize("delta", [0, 1, 63, 64, 8191, 8192, 2**20 - 1, 2**20])
def test_offset_deltas_of_every_width(delta: int) -> None:
    body = b"\x00\x00" + encode_varint(delta) + b"\x01\x01\x00"
    record = encode_varint(len(body)) + body
    assert walk(record, 0, delta, delta + 1, 10**9)[1] == len(record)
    with pytest.raises(RemoteProtocolError):
        walk(record, 0, delta + 1, delta + 2, 10**9)
