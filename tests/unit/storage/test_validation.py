"""What a leader refuses, and the changes it makes to what it takes."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from crc32c import crc32c

from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.compression import Compression
from barnabas.protocol.records import NewRecord, build_batch, build_end_txn_marker, crc_ok, decode_records, read_header
from barnabas.storage.log_config import LogConfig, Origin
from barnabas.storage.validation import RecordValidationError, check_leader_batch, check_replicated_batches
from tests.unit.storage.batches import CONFIG, NOW, idempotent, plain

FIELDS = {  # name -> (position, format)
    "base_offset": (0, ">q"),
    "batch_length": (8, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "record_count": (57, ">i"),
}


def changed(batch: bytearray, **fields: int) -> bytearray:
    """The batch with header fields overwritten and its checksum made right again."""
    for name, value in fields.items():
        position, layout = FIELDS[name]
        struct.pack_into(layout, batch, position, value)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def refusal(data: bytes | bytearray, config: LogConfig = CONFIG, origin: Origin = Origin.CLIENT) -> ErrorCode | None:
    try:
        check_leader_batch(data, config, origin, NOW)
    except BrokerError as error:
        return error.code
    return None


INVALID = ErrorCode.INVALID_RECORD


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
        taken = check_leader_batch(batch + tail, CONFIG, Origin.CLIENT, NOW)[0]
        assert bytes(taken) == bytes(batch)


def test_sizes() -> None:
    batch = plain(size=100)
    assert refusal(batch, replace(CONFIG, max_message_bytes=len(batch))) is None
    assert refusal(batch, replace(CONFIG, max_message_bytes=len(batch) - 1)) == ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(batch, replace(CONFIG, segment_bytes=len(batch) - 1)) == ErrorCode.RECORD_LIST_TOO_LARGE


def test_coordinators_may_do_what_clients_may_not() -> None:
    assert refusal(changed(plain(), base_offset=1), origin=Origin.COORDINATOR) is None
    assert refusal(idempotent(5, -1, transactional=True), origin=Origin.COORDINATOR) is None


def test_old_timestamps_are_refused_where_the_topic_says_so() -> None:
    config = replace(CONFIG, message_timestamp_before_max_ms=1000)
    assert refusal(plain(timestamp=NOW - 1000), config) is None
    assert refusal(plain(timestamp=NOW - 1001), config) == ErrorCode.INVALID_TIMESTAMP


def test_a_writable_buffer_is_used_in_place_and_another_copied() -> None:
    batch = plain()
    assert check_leader_batch(batch, CONFIG, Origin.CLIENT, NOW)[0] is batch
    view = memoryview(batch)
    assert check_leader_batch(view, CONFIG, Origin.CLIENT, NOW)[0] is view
    frozen = bytes(batch)
    copied = check_leader_batch(frozen, CONFIG, Origin.CLIENT, NOW)[0]
    assert isinstance(copied, bytearray)
    assert copied == frozen


def test_log_append_time_is_stamped_and_checksummed() -> None:
    config = replace(CONFIG, message_timestamp_type="LogAppendTime")
    batch, attributes, _, max_timestamp, *_ = check_leader_batch(plain(2, timestamp=5), config, Origin.CLIENT, NOW)
    header = read_header(batch)
    assert header.timestamp_type == 1
    assert attributes == header.attributes
    assert header.max_timestamp == max_timestamp == NOW
    assert crc_ok(batch, 0, header)
    assert {record.timestamp for record in decode_records(batch)} == {NOW}


def test_the_timestamp_type_is_the_topics() -> None:
    batch = changed(plain(2), attributes=0x08)
    taken, attributes, *_ = check_leader_batch(batch, CONFIG, Origin.CLIENT, NOW)
    header = read_header(taken)
    assert header.timestamp_type == 0
    assert attributes == header.attributes
    assert crc_ok(taken, 0, header)
    config = replace(CONFIG, message_timestamp_type="LogAppendTime")
    assert refusal(changed(plain(2), attributes=0x08), config) == ErrorCode.INVALID_TIMESTAMP


def test_each_record_out_of_time_is_named() -> None:
    late = [NewRecord(b"k", b"", NOW + n) for n in (0, 3_600_001, 5, 3_600_000, 4_000_000)]
    with pytest.raises(RecordValidationError) as raised:
        check_leader_batch(build_batch(late), CONFIG, Origin.CLIENT, NOW)
    assert raised.value.code == ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in raised.value.record_errors] == [1, 4]


@pytest.mark.parametrize("codec", list(Compression))
def test_records_of_a_compacted_topic_need_keys(codec: Compression) -> None:
    config = replace(CONFIG, cleanup_policy=frozenset({"compact"}))
    assert refusal(plain(3, compression=codec), config) is None
    records = [NewRecord(key, b"v", NOW) for key in (b"k", None, b"", None)]
    with pytest.raises(RecordValidationError) as raised:
        check_leader_batch(build_batch(records, compression=codec), config, Origin.CLIENT, NOW)
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
        batch, attributes, delta, _, *producer = check_leader_batch(original, config, Origin.CLIENT, NOW)
        assert attributes & 7 == read_header(batch).compression == codec
        assert decode_records(batch) == before
        assert crc_ok(batch, 0, read_header(batch))
        assert (delta, *producer) == (4, 3, 1, 8)
        assert read_header(batch).is_transactional


def test_full_validation_reads_every_record() -> None:
    full = replace(CONFIG, record_validation="full")
    broken = changed(plain(2)[:-1])
    struct.pack_into(">i", broken, 8, len(broken) - 12)
    changed(broken)
    assert refusal(broken) is None  # the documented deviation
    assert refusal(broken, full) == INVALID
    assert refusal(plain(2), full) is None
    late = build_batch([NewRecord(b"k", b"", NOW), NewRecord(b"k", b"", NOW + 4_000_000), NewRecord(b"k", b"", NOW)])
    assert refusal(changed(late, max_timestamp=NOW), full) == ErrorCode.INVALID_TIMESTAMP


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
