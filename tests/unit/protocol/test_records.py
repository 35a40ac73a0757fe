"""Record batches: golden bytes of Kafka and librdkafka, aiokafka as second judge, round trips, hostile input."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from barnabas.errors import LocalProtocolError, RemoteProtocolError
from barnabas.limits import SEQUENCE_MAX
from barnabas.protocol.batch_layout import CREATE_TIME, HEADER_SIZE, LOG_APPEND_TIME
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.record_codec import NewRecord, Record, decode, decode_values, encode_kept, single
from barnabas.protocol.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_LEADER_CHANGE,
    BatchHeader,
    build_batch,
    build_control_batch,
    build_end_txn_marker,
    crc_ok,
    decode_records,
    encode_values_in_slices,
    iter_batches,
    read_control,
    read_header,
    stamp,
    stamp_log_append_time,
)
from barnabas.work import finished

GOLDEN = Path(__file__).parents[2] / "golden" / "records"
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
T = 1_700_000_000_000

LIBRDKAFKA_RECORDS = [
    NewRecord(b"k", b"v", T),
    NewRecord(None, b"no key", T + 1),
    NewRecord(b"tombstone", None, T + 2),
    NewRecord(b"", b"", T + 3),
    NewRecord(
        b"headers",
        b"with headers",
        T + 4,
        [("a", b"1"), ("a", b"2"), ("empty", b""), ("null", None), ("ümläut", b"\xff\x00")],
    ),
    NewRecord(b"back in time", b"x" * 300, T - 100_000),
    *(NewRecord(b"key-%d" % n, b"the same text over and over " * 20, T + n * 1000) for n in range(40)),
]

keys_and_values = st.none() | st.binary(max_size=200)
new_records = st.builds(
    NewRecord,
    keys_and_values,
    keys_and_values,
    st.integers(min_value=-1, max_value=2**42),
    st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=20)), max_size=4).map(tuple),
)


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.bin").read_bytes()


def as_new(records: list[Record]) -> list[NewRecord]:
    return [NewRecord(record.key, record.value, record.timestamp, record.headers) for record in records]


def rebuild(batch: bytes, header: BatchHeader) -> bytes:
    return bytes(
        build_batch(
            as_new(decode_records(batch)),
            base_offset=header.base_offset,
            leader_epoch=header.leader_epoch,
            compression=header.compression,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
            control=header.is_control,
        )
    )


# --- golden bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", range(5), ids=CODECS)
def test_batches_of_librdkafka(codec: int) -> None:
    batch = golden(f"librdkafka-{CODECS[codec]}")
    header = read_header(batch)
    assert crc_ok(batch, 0, header)
    assert (header.compression, header.size_bytes, header.record_count) == (codec, len(batch), 46)
    assert (header.max_timestamp, header.base_timestamp, header.timestamp_type) == (T + 39_000, T, CREATE_TIME)
    records = decode_records(batch)
    assert [record.offset for record in records] == list(range(46))
    assert as_new(records) == [record._replace(headers=tuple(record.headers)) for record in LIBRDKAFKA_RECORDS]


@pytest.mark.parametrize("codec", range(5), ids=CODECS)
def test_batches_of_the_java_producer(codec: int) -> None:
    batch = golden(f"java-{CODECS[codec]}")
    header = read_header(batch)
    assert crc_ok(batch, 0, header)
    assert (header.compression, header.base_sequence, header.last_sequence) == (codec, 0, 29)
    assert header.producer_id >= 0
    assert [(record.key, record.value) for record in decode_records(batch)] == [
        (b"key-%d" % n, b"value number %d of the java producer, the same text" % n) for n in range(1, 31)
    ]


@pytest.mark.parametrize("name", ["librdkafka-none", "java-none", "transactions", "leader-change"])
def test_ours_are_byte_for_byte_theirs(name: str) -> None:
    log = golden(name)
    batches = [(log[at : at + header.size_bytes], header) for at, header in iter_batches(log)]
    assert b"".join(batch for batch, _ in batches) == log
    for batch, header in batches:
        assert rebuild(batch, header) == batch


def test_transactions_and_their_markers() -> None:
    log = golden("transactions")
    batches = list(iter_batches(log))
    assert all(crc_ok(log, at, header) and header.is_transactional for at, header in batches)
    assert [header.is_control for _, header in batches] == [False, True] * 3
    markers = [(at, header) for at, header in batches if header.is_control]
    controls = [read_control(decode_records(log, at)[0]) for at, _ in markers]
    assert [control.type for control in controls] == [CONTROL_COMMIT, CONTROL_ABORT, CONTROL_COMMIT]
    for (at, header), control in zip(markers, controls, strict=True):
        ours = build_end_txn_marker(
            header.producer_id,
            header.producer_epoch,
            commit=control.type == CONTROL_COMMIT,
            coordinator_epoch=control.coordinator_epoch,
            timestamp=header.base_timestamp,
            base_offset=header.base_offset,
            leader_epoch=header.leader_epoch,
        )
        assert ours == log[at : at + header.size_bytes]


def test_the_controller_s_leader_change() -> None:
    batch = golden("leader-change")
    header = read_header(batch)
    (record,) = decode_records(batch)
    assert (header.is_control, header.is_transactional) == (True, False)
    assert read_control(record).type == CONTROL_LEADER_CHANGE
    assert record.value is not None
    ours = build_control_batch(
        [(CONTROL_LEADER_CHANGE, record.value)], timestamp=record.timestamp, leader_epoch=header.leader_epoch
    )
    assert ours == batch


def test_log_append_time_overrides_the_records_own() -> None:
    batch = golden("log-append-time")
    header = read_header(batch)
    assert header.timestamp_type == LOG_APPEND_TIME
    assert {record.timestamp for record in decode_records(batch)} == {header.max_timestamp}


# --- aiokafka as second judge -----------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(records=st.lists(new_records, min_size=1, max_size=20), codec=st.integers(0, 4), offset=st.integers(0, 2**60))
def test_aiokafka_reads_ours(records: list[NewRecord], codec: int, offset: int) -> None:
    batch = build_batch(
        records,
        base_offset=offset,
        compression=codec,
        producer_id=7,
        producer_epoch=3,
        base_sequence=11,
        transactional=True,
    )
    theirs = DefaultRecordBatch(bytes(batch))
    assert theirs.validate_crc()
    assert (theirs.base_offset, theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (offset, 7, 3, 11)
    assert (theirs.is_transactional, theirs.is_control_batch, theirs.compression_type) == (True, False, codec)
    assert theirs.max_timestamp == max(record.timestamp for record in records)
    assert [
        (r.offset - offset, r.timestamp, r.key, r.value, [tuple(header) for header in r.headers]) for r in theirs
    ] == [(n, r.timestamp, r.key, r.value, list(r.headers)) for n, r in enumerate(records)]


@settings(max_examples=60)
@given(records=st.lists(new_records, min_size=1, max_size=20), codec=st.integers(0, 4))
def test_ours_reads_aiokafka(records: list[NewRecord], codec: int) -> None:
    assume(records[0].timestamp != -1)  # its builder takes a first timestamp of -1 for none yet
    builder = DefaultRecordBatchBuilder(2, codec, 1, 9, 1, 4, 1_000_000)
    for n, record in enumerate(records):
        assert builder.append(n, record.timestamp, record.key, record.value, list(record.headers)) is not None
    batch = bytes(builder.build())
    header = read_header(batch)
    assert crc_ok(batch, 0, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 1, 4)
    assert as_new(decode_records(batch)) == records
    if header.compression == 0:
        assert rebuild(batch, header) == batch


# --- round trips and header -----------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(records=st.lists(new_records, min_size=1, max_size=30), codec=st.integers(0, 4))
def test_what_is_built_is_read(records: list[NewRecord], codec: int) -> None:
    batch = build_batch(records, compression=codec)
    assert as_new(decode_records(batch)) == records
    assert crc_ok(batch, 0, read_header(batch))


@pytest.mark.parametrize("size", [0, 63, 64, 127, 128, 1_022, 1_023, 1_024, 8_191, 8_192, 70_000, 2_100_000])
def test_lengths_at_the_varints_edges(size: int) -> None:
    records = [NewRecord(bytes(size), bytes(size), T), NewRecord(None, b"", T + size, (("h", bytes(size)),))]
    assert as_new(decode_records(build_batch(records))) == records


def test_many_records_and_wide_timestamps() -> None:
    records = [NewRecord(None, b"", timestamp) for timestamp in (0, 2**62, -(2**62), -1, T)] * 1_000
    assert as_new(decode_records(build_batch(records))) == records


def test_header_keys_that_are_no_utf8_survive() -> None:
    records = [NewRecord(None, None, 0, [("\udcff\udc80x", b"")])]
    assert decode_records(build_batch(records))[0].headers == (("\udcff\udc80x", b""),)


def test_several_batches_and_a_torn_tail() -> None:
    first = build_batch([NewRecord(b"a", b"", 1)] * 3, base_offset=10)
    second = build_batch([NewRecord(b"b", b"", 1)] * 2, base_offset=13)
    log = bytes(first + second)
    for end in range(len(log) + 1):
        found = [(at, header.base_offset, header.next_offset) for at, header in iter_batches(log[:end])]
        whole = [(0, 10, 13), (len(first), 13, 15)]
        assert found == whole[: (end >= len(first)) + (end == len(log))]
        torn = memoryview(log)[:end]
        assert crc_ok(torn, 0, read_header(log)) == (end >= len(first))


def test_stamping_keeps_the_checksum() -> None:
    batch = build_batch([NewRecord(b"a", b"b", T)] * 5, leader_epoch=-1)
    room = bytearray(7) + batch
    stamp(memoryview(room), 7, 2**40, 12)
    header = read_header(room, 7)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (2**40, 2**40 + 4, 12)
    assert crc_ok(room, 7, header)
    assert [record.offset for record in decode_records(room, 7)] == [2**40 + n for n in range(5)]


def test_log_append_time_is_stamped_with_a_new_checksum() -> None:
    batch = build_batch([NewRecord(b"a", b"b", T), NewRecord(b"a", b"b", T + 9)])
    stamp_log_append_time(batch, 0, read_header(batch), T + 500)
    header = read_header(batch)
    assert crc_ok(batch, 0, header)
    assert (header.timestamp_type, header.max_timestamp, header.base_timestamp) == (LOG_APPEND_TIME, T + 500, T)
    assert {record.timestamp for record in decode_records(batch)} == {T + 500}
    built = build_batch([NewRecord(b"a", b"b", T), NewRecord(b"a", b"b", T + 9)], log_append_time_ms=T + 500)
    assert built == batch


def test_header_fields_and_bits() -> None:
    batch = build_batch(
        [NewRecord(None, None, 5)] * 4, producer_id=1, producer_epoch=2, base_sequence=SEQUENCE_MAX - 1, compression=4
    )
    header = read_header(batch)
    assert header.last_sequence == 1  # MAX-1, MAX, 0, 1
    assert header.size_bytes == len(batch)
    assert (header.is_control, header.is_transactional, header.has_delete_horizon) == (False, False, False)
    assert read_header(build_batch([NewRecord(None, None, 5)])).last_sequence == -1
    horizon = bytearray(batch)
    horizon[22] |= 0x40
    assert read_header(horizon).has_delete_horizon


def test_a_checksum_sees_every_byte_after_it() -> None:
    batch = build_batch([NewRecord(b"key", b"value", T)])
    for position in range(17, len(batch)):
        broken = bytearray(batch)
        broken[position] ^= 0x01
        assert not crc_ok(broken, 0, read_header(broken))


def test_an_empty_batch_is_our_bug() -> None:
    with pytest.raises(LocalProtocolError, match="at least one"):
        build_batch([])


# --- hostile input ----------------------------------------------------------------------------------------------------


def raw_batch(body: bytes, count: int, attributes: int = 0) -> bytes:
    tail = struct.pack(">hiqqqhii", attributes, count - 1, T, T, -1, -1, -1, count) + body
    return struct.pack(">qiibI", 0, 9 + len(tail), 0, 2, crc32c(tail)) + tail


@pytest.mark.parametrize("size", range(HEADER_SIZE))
def test_a_header_cut_off(size: int) -> None:
    batch = bytes(build_batch([NewRecord(b"a", b"b", T)]))
    with pytest.raises(RemoteProtocolError, match="bytes left"):
        read_header(batch[:size])
    assert list(iter_batches(batch[:size])) == []


@pytest.mark.parametrize("length", [48, 0, -1, -(2**31)])
def test_a_batch_length_below_an_empty_batch(length: int) -> None:
    batch = build_batch([NewRecord(b"a", b"b", T)])
    struct.pack_into(">i", batch, 8, length)
    with pytest.raises(RemoteProtocolError, match=f"batch length {length}"):
        list(iter_batches(batch))


def test_a_batch_length_beyond_the_buffer() -> None:
    batch = build_batch([NewRecord(b"a", b"b", T)])
    struct.pack_into(">i", batch, 8, 2**31 - 1)
    assert list(iter_batches(batch)) == []
    assert not crc_ok(batch, 0, read_header(batch))
    with pytest.raises(RemoteProtocolError, match="are left"):
        decode_records(batch)


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_another_format(magic: int) -> None:
    batch = build_batch([NewRecord(b"a", b"b", T)])
    struct.pack_into(">b", batch, 16, magic)
    with pytest.raises(RemoteProtocolError, match=f"magic {magic}"):
        decode_records(batch)


@pytest.mark.parametrize("count", [-1, -(2**31), 0, 1, 3, 10, 2**31 - 1])
def test_a_record_count_that_is_wrong(count: int) -> None:
    batch = build_batch([NewRecord(b"a", b"b", T)] * 2)
    struct.pack_into(">i", batch, 57, count)
    with pytest.raises(RemoteProtocolError):
        decode_records(batch)


RECORD = b"\x00\x00\x00\x02k\x02v\x00"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"\x01" + RECORD, "record of -1 bytes"),
        (b"\x12" + RECORD, "record of 9 bytes"),
        (b"\x0e" + RECORD, "its length says"),
        (b"\xff" * 11 + RECORD, "longer than ten"),
        (b"\xff" * 9 + b"\x7f" + RECORD, "exceeds 64 bits"),
        (b"\x10\x00\x00\x00\x7ek\x02v\x00", "ends at byte|middle of"),
        (b"\x10\x00\x00\x00\x02k\x7ev\x00", "ends at byte|middle of"),
        (b"\x10\x00\x00\x00\xfe\xff\xff\x7fk", "ends at byte|middle of"),
        (b"\x10\x00\x00\x00\x02k\x02v\x02", "claims 1 headers in 0 bytes"),
        (b"\x10\x00\x00\x00\x02k\x02v\x01", "claims -1 headers"),
        (b"\x18\x00\x00\x00\x02k\x02v\xfe\xff\xff\xff\x0f", "claims 2147483647 headers"),
        (b"\x14\x00\x00\x00\x02k\x02v\x02\x01\x01", "header key of -1 bytes"),
        (b"\x14\x00\x00\x00\x02k\x02v\x02\x06\x01", "header key of 3 bytes"),
        (b"\x14\x00\x00\x00\x02k\x02v\x02\x00\x06", "header value of 3 bytes"),
        (b"\x10" + RECORD + b"\x00", "1 bytes follow"),
        (b"\x10\x00\x00\x00\x02k\x02\x80\x80", "middle of a record"),
    ],
)
def test_hostile_varints_and_lengths(body: bytes, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        decode_records(raw_batch(body, 1))


def test_the_hostile_cases_begin_from_a_good_one() -> None:
    assert decode_records(raw_batch(b"\x10" + RECORD, 1)) == [Record(0, T, b"k", b"v", ())]


def test_a_codec_that_does_not_exist() -> None:
    with pytest.raises(RemoteProtocolError, match="codec 5"):
        decode_records(raw_batch(b"\x10" + RECORD, 1, attributes=5))


@pytest.mark.parametrize("codec", range(1, 5), ids=CODECS[1:])
def test_a_bomb_stays_within_the_bound(codec: int) -> None:
    bomb = build_batch([NewRecord(None, bytes(4_000_000), T)], compression=codec)
    with pytest.raises(RemoteProtocolError, match="exceed"):
        decode_records(bomb, size_bytes_max=1_000_000)
    assert len(decode_records(bomb, size_bytes_max=4_001_000)) == 1


@settings(max_examples=300)
@given(data=st.data(), codec=st.integers(0, 4))
def test_flipped_bytes_raise_one_error_only(data: st.DataObject, codec: int) -> None:
    batch = build_batch([NewRecord(b"key", b"value" * 20, T, [("h", b"v")])] * 5, compression=codec)
    for position in data.draw(st.lists(st.integers(0, len(batch) - 1), min_size=1, max_size=5)):
        batch[position] ^= data.draw(st.integers(1, 255))
    try:
        for position, header in iter_batches(batch):
            decode_records(batch, position, header, size_bytes_max=1_000_000)
    except RemoteProtocolError:
        pass


@settings(max_examples=300)
@given(body=st.binary(max_size=120), count=st.integers(-2, 20))
def test_noise_raises_one_error_only(body: bytes, count: int) -> None:
    try:
        decode_records(raw_batch(body, count))
    except RemoteProtocolError:
        pass


def test_control_records_too_short() -> None:
    for key, value in ((None, b""), (b"\0\0\0", b"\0" * 6), (b"\0\0\0\1", b"\0" * 5), (b"\0\0\0\0", None)):
        with pytest.raises(RemoteProtocolError, match="without a"):
            read_control(Record(3, T, key, value, ()))


@given(
    st.builds(
        Record,
        st.integers(0, 200),
        st.integers(T, T + 200),
        st.none() | st.binary(max_size=100) | st.integers(8_000, 9_000).map(bytes),
        st.none() | st.binary(max_size=100) | st.integers(8_000, 9_000).map(bytes),
        st.just(()) | st.just((("h", b"v"),)),
    ),
    st.data(),
)
@settings(max_examples=300)
def test_a_single_record_is_read_as_by_decode(record: Record, data: st.DataObject) -> None:
    """Also where bytes are wrong, and where other records follow."""
    whole = bytearray(encode_kept([record], 0, T))
    damaged = data.draw(st.booleans())
    if damaged:
        for _ in range(data.draw(st.integers(1, 3))):
            whole[data.draw(st.integers(0, min(len(whole), 30) - 1))] = data.draw(st.integers(0, 255))
    around = data.draw(st.binary(max_size=20))
    found = single(around + bytes(whole) + around, len(around), len(around) + len(whole))
    if found is not None:
        (read,) = decode(bytes(whole), 1, 0, T, -1)
        assert found == (read.offset, read.key, read.value)
    elif not damaged:
        usual = record.key is not None and not record.headers and record.offset < 64 and record.timestamp < T + 64
        assert not usual or len(whole) > 8_000


@given(
    st.lists(
        st.builds(
            Record,
            st.sampled_from([0, 1, 63, 64, 8_191, 8_192, 1 << 21]),
            st.sampled_from([T, T + 63, T + 64, T + 9_000, T - 1]),
            st.none() | st.binary(max_size=100),
            st.binary(max_size=100) | st.integers(8_180, 8_200).map(bytes),
            st.just(()),
        ),
        max_size=5,
    ),
    st.sampled_from(["whole", "null value", "headers", "damaged", "cut off", "too long"]),
    st.data(),
)
@settings(max_examples=300)
def test_values_alone_are_those_of_decode(records: list[Record], kind: str, data: st.DataObject) -> None:
    if kind == "null value":
        records.append(Record(0, T, b"k", None, ()))
    elif kind == "headers":
        records.append(Record(0, T, b"k", b"v", (("h", b"v"),)))
    whole = bytearray(encode_kept(records, 0, T))
    if kind == "damaged" and whole:
        whole[data.draw(st.integers(0, min(len(whole), 30) - 1))] = data.draw(st.integers(0, 255))
    elif kind == "cut off":
        del whole[-1:]
    elif kind == "too long":
        whole.append(0)
    found = decode_values(bytes(whole), len(records))
    if found is not None:
        assert found == [record.value for record in decode(bytes(whole), len(records), 0, T, -1)]
    assert kind == "damaged" or (found is not None) == (kind == "whole" or (kind == "cut off" and not records))


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1_100])
def test_values_encoded_in_slices_are_those_of_one_batch(count: int) -> None:
    values = [b"v%d" % number for number in range(count)]
    work = encode_values_in_slices(values, 7)
    slices = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            encoded = end.value
            break
        slices += 1
    assert slices == count // 64
    assert build_batch(encoded) == build_batch([NewRecord(None, value, 7) for value in values])
    with pytest.raises(LocalProtocolError):
        finished(encode_values_in_slices([], 7))
