"""What a leader refuses, and the changes it makes to what it takes."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace

import pytest

from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, RECORD_ERRORS_MAX
from barnabas.ports import Buffer
from barnabas.protocol.compression import Compression, compress
from barnabas.protocol.record_codec import NewRecord, Record, encode_kept
from barnabas.protocol.records import (
    build_batch,
    build_end_txn_marker,
    crc_ok,
    decode_records,
    encode_records,
    frame_batch,
    read_header,
)
from barnabas.storage.inspection import Inspection, RecordValidationError
from barnabas.storage.log_config import AppendOrigin, LogConfig
from barnabas.storage.steps import INLINE_BYTES_MAX, SLICE_RECORDS
from barnabas.storage.validation import WALK_COST_MAX, LongBatch, check_leader_batch, check_replicated_batches
from tests.support.storage.batches import CONFIG, NOW, idempotent, plain
from tests.support.storage.changed_fields import changed


def refusal(
    data: Buffer | Inspection, config: LogConfig = CONFIG, origin: AppendOrigin = AppendOrigin.CLIENT
) -> ErrorCode | None:
    try:
        check_leader_batch(data, config, origin, NOW)
    except BrokerError as error:
        return error.code
    return None


INVALID = ErrorCode.INVALID_RECORD
MEBIBYTE = 1024 * 1024


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", INVALID),
        (b"short", INVALID),
        (plain()[:-1], INVALID),
        (bytes(11), INVALID),
        (bytes(30), ErrorCode.CORRUPT_MESSAGE),
        (changed(plain(), batch_length=14), ErrorCode.CORRUPT_MESSAGE),
        (changed(plain(), magic=3), ErrorCode.CORRUPT_MESSAGE),
        (changed(plain(), magic=-1), ErrorCode.CORRUPT_MESSAGE),
        (changed(plain(), magic=0), INVALID),
        (plain() + bytes(12), ErrorCode.CORRUPT_MESSAGE),
        (plain() + plain(), INVALID),
        (changed(plain(), batch_length=48), ErrorCode.CORRUPT_MESSAGE),
        (changed(plain(), batch_length=-1), ErrorCode.CORRUPT_MESSAGE),
        (changed(plain(), magic=1), INVALID),
        (changed(plain(), base_offset=1), INVALID),
        (plain()[:-1] + b"!", ErrorCode.CORRUPT_MESSAGE),
        (changed(plain(2), record_count=1), INVALID),
        (changed(plain(2), record_count=3), INVALID),
        (changed(plain(1), record_count=0, last_offset_delta=-1), INVALID),
        (changed(plain(), attributes=0x20), INVALID),
        (build_end_txn_marker(1, 0, commit=True, coordinator_epoch=0, timestamp=NOW), INVALID),
        (idempotent(5, -1), INVALID),
        (idempotent(5, 0, epoch=-1), INVALID),
        (changed(plain(), attributes=0x10), INVALID),
        (changed(plain(), attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (plain(timestamp=NOW + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_refused(data: bytes | bytearray, code: ErrorCode) -> None:
    assert refusal(data) == code


@pytest.mark.parametrize(
    "data",
    [
        plain(),
        plain(3),
        plain(timestamp=0),
        plain(timestamp=NOW + 3_600_000),
        plain(timestamp=-1),
        idempotent(5, 0),
        bytes(plain()),
    ],
)
def test_taken(data: bytes | bytearray) -> None:
    assert refusal(data) is None


def test_bytes_that_are_no_whole_batch_after_the_first_are_cut_off() -> None:
    batch = plain(2)
    for tail in (b"x", bytes(11), plain()[:-1], plain()[:12]):
        taken = check_leader_batch(batch + tail, CONFIG, AppendOrigin.CLIENT, NOW)[0]
        assert bytes(taken) == bytes(batch)


def test_sizes() -> None:
    batch = plain(size=100)
    assert refusal(batch, replace(CONFIG, max_message_bytes=len(batch))) is None
    assert refusal(batch, replace(CONFIG, max_message_bytes=len(batch) - 1)) == ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(batch, replace(CONFIG, segment_bytes=len(batch) - 1)) == ErrorCode.RECORD_LIST_TOO_LARGE


def test_coordinators_may_do_what_clients_may_not() -> None:
    assert refusal(changed(plain(), base_offset=1), origin=AppendOrigin.COORDINATOR) is None
    assert refusal(idempotent(5, -1, transactional=True), origin=AppendOrigin.COORDINATOR) is None


def test_old_timestamps_are_refused_where_the_topic_says_so() -> None:
    config = replace(CONFIG, message_timestamp_before_max_ms=1000)
    assert refusal(plain(timestamp=NOW - 1000), config) is None
    assert refusal(plain(timestamp=NOW - 1001), config) == ErrorCode.INVALID_TIMESTAMP


def test_a_writable_buffer_is_used_in_place_and_another_copied() -> None:
    batch = plain()
    assert check_leader_batch(batch, CONFIG, AppendOrigin.CLIENT, NOW)[0] is batch
    view = memoryview(batch)
    assert check_leader_batch(view, CONFIG, AppendOrigin.CLIENT, NOW)[0] is view
    frozen = bytes(batch)
    copied = check_leader_batch(frozen, CONFIG, AppendOrigin.CLIENT, NOW)[0]
    assert isinstance(copied, bytearray)
    assert copied == frozen


def test_log_append_time_is_stamped_and_checksummed() -> None:
    config = replace(CONFIG, message_timestamp_type="LogAppendTime")
    batch, attributes, _, max_timestamp, *_ = check_leader_batch(
        plain(2, timestamp=5), config, AppendOrigin.CLIENT, NOW
    )
    header = read_header(batch)
    assert header.timestamp_type == 1
    assert attributes == header.attributes
    assert header.max_timestamp == max_timestamp == NOW
    assert crc_ok(batch, 0, header)
    assert {record.timestamp for record in decode_records(batch)} == {NOW}


def test_the_timestamp_type_is_the_topics() -> None:
    batch = changed(plain(2), attributes=0x08)
    taken, attributes, *_ = check_leader_batch(batch, CONFIG, AppendOrigin.CLIENT, NOW)
    header = read_header(taken)
    assert header.timestamp_type == 0
    assert attributes == header.attributes
    assert crc_ok(taken, 0, header)
    config = replace(CONFIG, message_timestamp_type="LogAppendTime")
    assert refusal(changed(plain(2), attributes=0x08), config) == ErrorCode.INVALID_TIMESTAMP


def test_each_record_out_of_time_is_named() -> None:
    late = [NewRecord(b"k", b"", NOW + n) for n in (0, 3_600_001, 5, 3_600_000, 4_000_000)]
    with pytest.raises(RecordValidationError) as raised:
        check_leader_batch(build_batch(late), CONFIG, AppendOrigin.CLIENT, NOW)
    assert raised.value.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in raised.value.record_errors] == [1, 4]


@pytest.mark.parametrize("codec", list(Compression))
def test_records_of_a_compacted_topic_need_keys(codec: Compression) -> None:
    config = replace(CONFIG, cleanup_policy=frozenset({"compact"}))
    assert refusal(plain(3, compression=codec), config) is None
    records = [NewRecord(key, b"v", NOW) for key in (b"k", None, b"", None)]
    with pytest.raises(RecordValidationError) as raised:
        check_leader_batch(build_batch(records, compression=codec), config, AppendOrigin.CLIENT, NOW)
    assert raised.value.code == INVALID
    assert [index for index, _ in raised.value.record_errors] == [1, 3]


@pytest.mark.parametrize(("name", "codec"), [("uncompressed", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)])
def test_the_topic_may_choose_the_codec(name: str, codec: int) -> None:
    config = replace(CONFIG, compression_type=name)
    for source in Compression:
        original = build_batch(
            [NewRecord(b"k%d" % n, b"v" * n, NOW + n, [("h", b"x")]) for n in range(5)],
            compression=source,
            producer_id=3,
            producer_epoch=1,
            base_sequence=8,
            transactional=True,
        )
        before = decode_records(original)
        batch, attributes, delta, _, *producer, _ = check_leader_batch(original, config, AppendOrigin.CLIENT, NOW)
        assert attributes & 7 == read_header(batch).compression == codec
        assert decode_records(batch) == before
        assert crc_ok(batch, 0, read_header(batch))
        assert (delta, *producer) == (4, 3, 1, 8)
        assert read_header(batch).is_transactional


def claiming(payload: bytes, count: int, codec: int = 0, **fields: int) -> bytearray:
    """A batch around any payload whose header claims `count` records of NOW."""
    header = read_header(plain())._replace(attributes=codec, last_offset_delta=count - 1, record_count=count, **fields)
    return frame_batch(header, compress(codec, payload))


THREE = bytes(encode_records([NewRecord(b"k", b"v", NOW + n, [("h", b"x")]) for n in range(3)]).data)
ONE = bytes(encode_records([NewRecord(b"k", b"v", NOW)]).data)
GAPS = encode_kept([Record(0, NOW, b"k", b"v", ()), Record(2, NOW, b"k", b"v", ())], 0, NOW)


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (ONE, 2**31 - 1),
        (THREE, 4),
        (THREE, 2),
        (THREE[:-1], 3),
        (THREE + b"\0", 3),
        (b"", 1),
        (GAPS, 2),
        (b"\x01" + ONE[1:], 1),
        (b"\x40" + ONE[1:], 1),
    ],
)
def test_a_header_that_lies_about_its_records_is_refused_on_every_topic(payload: bytes, count: int, codec: int) -> None:
    batch = claiming(payload, count, codec)
    for config in (
        CONFIG,
        replace(CONFIG, message_timestamp_type="LogAppendTime"),
        replace(CONFIG, compression_type="lz4"),
    ):
        refused = INVALID if count <= SLICE_RECORDS else None
        if refused is None:
            with pytest.raises(LongBatch):
                check_leader_batch(batch, config, AppendOrigin.CLIENT, NOW)
        assert inspected(batch, config) == INVALID
        assert refused is None or refusal(batch, config) == refused


def inspected(batch: bytearray, config: LogConfig = CONFIG) -> ErrorCode | None:
    """The refusal of a batch that was inspected beforehand."""
    return refusal(inspection_of(batch, config))


def inspection_of(batch: bytearray, config: LogConfig = CONFIG) -> Inspection:
    inspection = Inspection(batch, config, NOW)
    inspection.run()
    return inspection


def test_a_68_byte_batch_that_claims_two_billion_records() -> None:
    record = bytes(encode_records([NewRecord(None, None, NOW)]).data)
    batch = claiming(record, 2**31 - 1)
    assert len(batch) == 68
    assert inspected(batch) == INVALID


def test_validation_of_the_header_takes_what_the_header_says() -> None:
    header = replace(CONFIG, record_validation="header")
    assert refusal(claiming(THREE, 4), header) is None
    assert refusal(claiming(THREE, 4), replace(header, cleanup_policy=frozenset({"compact"}))) == INVALID
    late = claiming(THREE, 3, max_timestamp=NOW + 10**8)
    assert refusal(late, header) is None  # the records are read: they are not late
    assert read_header(late).max_timestamp == NOW + 2


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("claimed", [NOW - 10**9, NOW, NOW + 1_000, NOW + 10**8])
def test_the_header_gets_the_largest_timestamp_of_the_records(claimed: int, codec: int) -> None:
    """As in Kafka: a header that lies about it could keep a segment from retention, or end it early."""
    batch, *_ = taken = check_leader_batch(
        claiming(THREE, 3, codec, max_timestamp=claimed), CONFIG, AppendOrigin.CLIENT, NOW
    )
    header = read_header(batch)
    assert header.max_timestamp == taken[3] == NOW + 2
    assert crc_ok(batch, 0, header)


def test_a_record_out_of_time_behind_a_header_that_is_not() -> None:
    late = build_batch([NewRecord(b"k", b"", NOW), NewRecord(b"k", b"", NOW + 4_000_000), NewRecord(b"k", b"", NOW)])
    assert refusal(changed(late, max_timestamp=NOW)) == ErrorCode.INVALID_TIMESTAMP


# -- long batches


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_is_judged_the_same_at_once_and_beforehand(codec: int) -> None:
    compacted = replace(CONFIG, cleanup_policy=frozenset({"compact"}))
    timed = replace(CONFIG, message_timestamp_before_max_ms=1000)
    for config in (CONFIG, compacted, timed, replace(CONFIG, compression_type="zstd")):
        for key in (b"k", None):
            for timestamp in (NOW, NOW - 2_000, -1):
                batch = plain(200, key=key, timestamp=timestamp, compression=codec, size=1)
                assert inspected(bytearray(batch), config) == refusal(batch, config)


def test_a_long_batch_is_taken_after_its_inspection() -> None:
    batch = plain(3 * SLICE_RECORDS - 1, size=1, compression=Compression.ZSTD)
    with pytest.raises(LongBatch):
        check_leader_batch(batch, CONFIG, AppendOrigin.CLIENT, NOW)
    inspection = inspection_of(batch, replace(CONFIG, compression_type="lz4"))
    taken, attributes, delta, max_timestamp, *_ = check_leader_batch(inspection, CONFIG, AppendOrigin.CLIENT, NOW)
    assert (attributes & 7, delta, max_timestamp) == (Compression.LZ4, 3 * SLICE_RECORDS - 2, NOW + delta)
    assert decode_records(taken) == decode_records(batch)


def test_many_records_of_one_length_are_taken_at_once() -> None:
    batch = plain(10_000, size=50)
    *_, cost = check_leader_batch(batch, CONFIG, AppendOrigin.CLIENT, NOW)
    assert 0 < cost <= WALK_COST_MAX
    late = changed(plain(10_000, size=50), max_timestamp=NOW)
    with pytest.raises(LongBatch):  # there is more to say about it
        check_leader_batch(late, CONFIG, AppendOrigin.CLIENT, NOW)
    assert inspected(late) is None


def test_many_records_of_different_lengths_are_long() -> None:
    batch = build_batch([NewRecord(b"k", bytes(number % 7), NOW) for number in range(40_000)])
    with pytest.raises(LongBatch):
        check_leader_batch(batch, CONFIG, AppendOrigin.CLIENT, NOW)
    assert inspected(batch) is None


def test_few_records_that_grow_when_decompressed_are_long_too() -> None:
    batch = plain(2, size=INLINE_BYTES_MAX, compression=Compression.ZSTD)
    with pytest.raises(LongBatch):
        check_leader_batch(batch, CONFIG, AppendOrigin.CLIENT, NOW)
    assert inspected(batch) is None


def test_a_batch_that_the_topic_recodes_is_long_unless_it_is_small() -> None:
    """The slowest levels take 0.2 microseconds for a byte, so the decision does not depend on the number of records."""
    config = replace(CONFIG, compression_type="zstd", compression_zstd_level=22)
    for codec in (Compression.NONE, Compression.LZ4):
        with pytest.raises(LongBatch):
            check_leader_batch(plain(1, size=8_000, compression=codec), config, AppendOrigin.CLIENT, NOW)
        *_, cost = check_leader_batch(plain(1, size=3_000, compression=codec), config, AppendOrigin.CLIENT, NOW)
        assert cost >= 1_000  # a turn of the loop takes few such batches
    assert refusal(plain(1, size=8_000), config, AppendOrigin.COORDINATOR) is None


def test_a_large_record_is_inspected_without_a_copy() -> None:
    """Python's lock is held during a copy: 100 MB take 100 ms."""
    config = replace(CONFIG, max_message_bytes=100_000_000, segment_bytes=200_000_000)
    batch = build_batch([NewRecord(b"k", bytes(32 * MEBIBYTE), NOW, (("h", b"v"),)), NewRecord(None, b"", NOW + 5)])
    with pytest.raises(LongBatch):
        check_leader_batch(batch, config, AppendOrigin.CLIENT, NOW)
    inspection = Inspection(batch, config, NOW)
    tracemalloc.start()
    inspection.run()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4 * MEBIBYTE
    assert check_leader_batch(inspection, config, AppendOrigin.CLIENT, NOW)[2:4] == (1, NOW + 5)
    damaged = inspection_of(batch[:-1] + b"!", config)
    assert refusal(damaged, config) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_bombs_are_too_large(codec: int) -> None:
    """MESSAGE_TOO_LARGE makes a producer that meant it cut its batch."""
    bytes_ = plain(1, size=BATCH_BYTES_MAX, compression=codec)
    assert inspected(bytes_, replace(CONFIG, max_message_bytes=4_000_000)) == ErrorCode.MESSAGE_TOO_LARGE
    assert inspected(bytes_, replace(CONFIG, max_message_bytes=2 * BATCH_BYTES_MAX)) is None
    seven = b"\x0c\0\0\0\x01\x01\0"
    records = claiming(seven * (BATCH_RECORDS_MAX + 1), BATCH_RECORDS_MAX + 1, codec)
    assert inspected(records, replace(CONFIG, max_message_bytes=4_000_000)) == ErrorCode.MESSAGE_TOO_LARGE


def test_no_more_refused_records_are_listed_than_an_answer_takes() -> None:
    config = replace(CONFIG, cleanup_policy=frozenset({"compact"}))
    with pytest.raises(RecordValidationError) as raised:
        check_leader_batch(plain(4_000, key=None), config, AppendOrigin.CLIENT, NOW)
    assert [index for index, _ in raised.value.record_errors] == list(range(RECORD_ERRORS_MAX))
    assert len(raised.value.message or "") < 300


def test_replicated_batches_go_on_upwards_and_a_partial_one_is_left_out() -> None:
    first, second = plain(2), plain(3)
    struct.pack_into(">q", first, 0, 10)
    struct.pack_into(">q", second, 0, 12)
    parsed = check_replicated_batches(memoryview(bytes(first + second[:-1])), 10)
    assert [(batch.base_offset, batch.last_offset, batch.position) for batch in parsed] == [(10, 11, 0)]
    parsed = check_replicated_batches(memoryview(bytes(first + second)), 5)
    assert [batch.last_offset for batch in parsed] == [11, 14]
    for data, next_offset, code in (
        (first + second, 11, ErrorCode.UNKNOWN_SERVER_ERROR),
        (second + first, 0, ErrorCode.UNKNOWN_SERVER_ERROR),
        (first[:-1] + b"!", 0, ErrorCode.CORRUPT_MESSAGE),
        (bytes(100), 0, ErrorCode.CORRUPT_MESSAGE),
    ):
        with pytest.raises(BrokerError) as raised:
            check_replicated_batches(memoryview(bytes(data)), next_offset)
        assert raised.value.code == code


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_a_batch_of_many_headers_is_long(codec: Compression) -> None:
    """Its records are few, and the check of their headers takes long."""
    rows = [NewRecord(b"k", b"v", NOW, (("", None),) * 8_000) for _ in range(12)]
    batch = build_batch(rows, compression=codec)
    with pytest.raises(LongBatch):
        check_leader_batch(batch, CONFIG, AppendOrigin.CLIENT, NOW)
    inspection = inspection_of(batch)
    assert inspection.error is None
    assert check_leader_batch(inspection, CONFIG, AppendOrigin.CLIENT, NOW)[2] == 11
