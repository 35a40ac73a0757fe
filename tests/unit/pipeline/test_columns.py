"""Record batches into Arrow columns, held against the decoder that makes an object of every record."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.client.consumer.core.read_committed import AbortedFilter
from barnabas.client.consumer.ranges import Chunk, PlacedBatch, deliverable
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.batch_layout import HEADER_SIZE
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, build_end_txn_marker, decode_records, iter_batches, read_header

pytest.importorskip("pyarrow")
from barnabas.pipeline.columns import COLUMNS, Piece, arrow_schema, decode

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def plain_rows(log: bytes, start: int, end: int) -> list[dict[str, Any]]:
    """The rows of a log without transactions, one object at a time."""
    rows = []
    for position, header in iter_batches(log):
        for record in decode_records(log, position, header):
            if start <= record.offset < end:
                kind = header.timestamp_type
                if kind == 0 and record.timestamp == -1 and header.max_timestamp == -1:
                    kind = -1
                rows.append(
                    {
                        "key": record.key,
                        "value": record.value,
                        "topic": "t",
                        "partition": 7,
                        "offset": record.offset,
                        "timestamp": EPOCH + timedelta(milliseconds=record.timestamp),
                        "timestampType": kind,
                        "headers": [{"key": k, "value": v} for k, v in record.headers] or None,
                    }
                )
    return rows


def rows_of(log: bytes, start: int = 0, end: int = 1 << 60) -> list[dict[str, Any]]:
    table = decode([Piece(deliverable(log, 0), start, end, "t", 7)], COLUMNS)
    if table is None:
        return []
    assert table.schema == arrow_schema(COLUMNS)
    table.validate(full=True)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def log_of(*batches: list[NewRecord], **options: Any) -> bytes:
    log = bytearray()
    offset = 0
    for records in batches:
        log += build_batch(records, base_offset=offset, **options)
        offset += len(records)
    return bytes(log)


def records(count: int, size: int, *, at: int = 1_700_000_000_000, step: int = 1) -> list[NewRecord]:
    return [NewRecord(b"k%06d" % i, bytes(size), at + i * step) for i in range(count)]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("size", [0, 1, 55, 56, 100, 8_000, 9_000])
def test_records_of_one_length(size: int, codec: int) -> None:
    log = log_of(records(300, size), records(3, size), records(1, size), compression=codec)
    assert rows_of(log) == plain_rows(log, 0, 1 << 60)


def test_records_of_many_lengths() -> None:
    rng = random.Random(5)
    mixed = [
        NewRecord(
            None if i % 7 == 0 else rng.randbytes(rng.randrange(40)),
            None if i % 11 == 0 else rng.randbytes(rng.choice([0, 3, 100, 100, 100, 20_000])),
            1_700_000_000_000 + rng.randrange(-5_000, 5_000_000),
        )
        for i in range(3_000)
    ]
    log = log_of(mixed[:50], mixed[50:2_000], mixed[2_000:])
    assert rows_of(log) == plain_rows(log, 0, 1 << 60)


small = st.binary(max_size=5)
headers = st.lists(st.tuples(st.text(max_size=3), st.none() | small), max_size=4)
made = st.builds(NewRecord, st.none() | small, st.none() | small, st.integers(-1, 2**42), headers)


@settings(max_examples=150)
@given(
    st.lists(st.lists(made, min_size=1, max_size=40), min_size=1, max_size=4), st.integers(0, 60), st.integers(0, 60)
)
def test_any_records_in_any_range(batches: list[list[NewRecord]], start: int, length: int) -> None:
    log = log_of(*batches)
    assert rows_of(log, start, start + length) == plain_rows(log, start, start + length)


def test_log_append_time_and_no_time() -> None:
    log = log_of(records(5, 3), log_append_time_ms=1_800_000_000_123)
    assert {(row["timestamp"], row["timestampType"]) for row in rows_of(log)} == {
        (EPOCH + timedelta(milliseconds=1_800_000_000_123), 1)
    }
    log = log_of([NewRecord(b"k", b"v", -1)])
    assert [(row["timestamp"], row["timestampType"]) for row in rows_of(log)] == [
        (EPOCH - timedelta(milliseconds=1), -1)
    ]


def test_only_the_columns_that_were_asked_for_in_their_order() -> None:
    table = decode([Piece(deliverable(log_of(records(4, 2)), 0), 1, 3, "t", 0)], ("offset", "value"))
    assert table.to_pydict() == {"offset": [1, 2], "value": [b"\0\0", b"\0\0"]}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.lists(made, min_size=1, max_size=20), st.integers(0, 25), st.integers(0, 25)), max_size=5))
def test_pieces_of_several_partitions_are_decoded_together(logs: list[tuple[list[NewRecord], int, int]]) -> None:
    pieces = [
        Piece(deliverable(log_of(found, compression=i % 2), 0), start, start + length, "tu"[i % 2], i)
        for i, (found, start, length) in enumerate(logs)
    ]
    tables = [decode([each], COLUMNS) for each in pieces]
    rows = [row for table in tables if table is not None for row in table.to_pylist()]
    together = decode(pieces, COLUMNS) if pieces else None
    assert (together.to_pylist() if together is not None else []) == rows


def test_records_beyond_the_end_are_not_decoded() -> None:
    chunk = deliverable(log_of(records(5, 10), records(5, 10)), 0, end=5)
    assert (len(chunk.batches), chunk.next_offset) == (1, 5)
    (header, start, end) = chunk.batches[0]
    data = chunk.data[: end - 1] + b"\xff"  # the last record is broken
    broken = Chunk(data, [PlacedBatch(header, start, end)], 5)
    assert len(decode([Piece(broken, 0, 4, "t", 0)], ("offset", "value"))) == 4
    with pytest.raises(RemoteProtocolError):
        decode([Piece(broken, 0, 5, "t", 0)], COLUMNS)


def test_aborted_and_control_batches_are_left_out() -> None:
    log = bytearray()
    for producer, first in ((1, 0), (2, 3), (1, 6)):
        log += build_batch(records(3, 4), base_offset=first, producer_id=producer, transactional=True)
    log += build_end_txn_marker(1, 0, commit=False, coordinator_epoch=0, timestamp=0, base_offset=9)
    log += build_batch(records(2, 4), base_offset=10, producer_id=1, transactional=True)
    log += build_end_txn_marker(1, 0, commit=True, coordinator_epoch=0, timestamp=0, base_offset=12)
    chunk = deliverable(log, 0, AbortedFilter([(1, 0)]))
    assert chunk.next_offset == 13
    table = decode([Piece(chunk, 0, 100, "t", 0)], ("offset",))
    assert table.to_pydict()["offset"] == [3, 4, 5, 10, 11]
    assert len(decode([Piece(deliverable(log, 0), 0, 100, "t", 0)], ("offset",))) == 11


def test_a_batch_that_is_cut_off_waits_for_the_next_answer() -> None:
    log = log_of(records(5, 10), records(5, 10))
    chunk = deliverable(log[:-1], 0)
    assert (len(chunk.batches), chunk.next_offset) == (1, 5)
    assert deliverable(log[:30], 0) == Chunk(b"", [], 0)


def test_a_wrong_checksum_is_told() -> None:
    log = bytearray(log_of(records(5, 10)))
    log[-2] ^= 1
    with pytest.raises(RemoteProtocolError, match="checksum of the batch at offset 0"):
        deliverable(log, 0)
    assert len(deliverable(log, 0, check_crcs=False).batches) == 1


@settings(max_examples=300)
@given(st.integers(0, 400), st.integers(0, 255), st.integers(1, 60))
def test_broken_records_raise_and_nothing_else(where: int, byte: int, claimed: int) -> None:
    log = log_of([NewRecord(b"key", b"v" * (i % 3) * 20, 5, [("h", b"x")]) for i in range(20)])
    data = bytearray(log[HEADER_SIZE:])
    data[where % len(data)] = byte
    header = read_header(log)._replace(record_count=claimed)
    chunk = Chunk(bytes(data), [PlacedBatch(header, 0, len(data))], 20)
    try:
        table = decode([Piece(chunk, 0, 100, "t", 0)], COLUMNS)
    except RemoteProtocolError:
        return
    table.validate(full=False)


def test_an_empty_range() -> None:
    assert decode([Piece(deliverable(log_of(records(5, 1)), 0), 9, 12, "t", 0)], COLUMNS) is None
    assert decode([Piece(Chunk(b"", [], 0), 0, 12, "t", 0)], COLUMNS) is None
