"""Long reads of a log, whose bytes are loaded in slices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, iter_batches
from barnabas.storage.long_reads import NOTHING_AHEAD, READ_BYTES_MAX, LongRead, ReadAhead
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.segment import LogSlice
from barnabas.testing.world.disks import FaultyMemoryDisk
from barnabas.work import SLICE, finished
from tests.support.storage.batches import CONFIG, NOW, append, open_log, plain

MEBIBYTE = 1024 * 1024
LARGE_BATCHES = replace(CONFIG, max_message_bytes=3 * READ_BYTES_MAX)


def large(letter: bytes, size_bytes: int = READ_BYTES_MAX) -> bytearray:
    return build_batch([NewRecord(None, letter * size_bytes, NOW)])


@pytest.fixture
def log(disk: FaultyMemoryDisk) -> PartitionLog:
    """A short batch, a long one and a short one."""
    log = open_log(disk, LARGE_BATCHES)
    append(log, plain())
    log.append_as_follower(_at(1, large(b"a")), now_ms=NOW)
    append(log, plain())
    return log


def _at(offset: int, batch: bytearray) -> bytearray:
    batch[:8] = offset.to_bytes(8, "big")
    return batch


def read(log: PartitionLog, ahead: ReadAhead | None, offset: int = 1, max_bytes: int = 1_000) -> LogSlice:
    return log.read(offset, max_bytes, end_offset=log.log_end_offset, ahead=ahead)


def announced(log: PartitionLog, ahead: ReadAhead = NOTHING_AHEAD, max_bytes: int = 1_000) -> ReadAhead:
    with pytest.raises(LongRead) as found:
        read(log, ahead, max_bytes=max_bytes)
    return found.value.ahead


@pytest.mark.parametrize("max_bytes", [1, 1_000, MEBIBYTE, READ_BYTES_MAX, 2 * READ_BYTES_MAX])
def test_a_long_read_returns_what_a_read_at_once_returns(log: PartitionLog, max_bytes: int) -> None:
    ahead = announced(log, max_bytes=max_bytes)
    finished(ahead.load())
    found, expected = read(log, ahead, max_bytes=max_bytes), read(log, None, max_bytes=max_bytes)
    assert (bytes(found.records), *found[1:]) == (bytes(expected.records), *expected[1:])
    assert len(found.records) > READ_BYTES_MAX


def test_a_short_read_needs_no_load(log: PartitionLog) -> None:
    assert [read(log, NOTHING_AHEAD, offset).first_offset for offset in (0, 2)] == [0, 2]
    assert read(log, NOTHING_AHEAD, 0, max_bytes=READ_BYTES_MAX).next_offset == 1


def test_a_read_of_many_short_batches_is_long(disk: FaultyMemoryDisk) -> None:
    log = open_log(disk, LARGE_BATCHES)
    for _ in range(10):
        append(log, plain(size=MEBIBYTE))
    with pytest.raises(LongRead) as found:
        read(log, NOTHING_AHEAD, 0, max_bytes=9 * MEBIBYTE)
    finished(found.value.ahead.load())
    part = read(log, found.value.ahead, 0, max_bytes=9 * MEBIBYTE)
    assert [header.base_offset for _, header in iter_batches(bytes(part.records))] == list(range(8))
    assert read(log, NOTHING_AHEAD, 0, max_bytes=8 * MEBIBYTE).next_offset == 7


def test_a_slice_of_the_load_is_short(disk: FaultyMemoryDisk, log: PartitionLog) -> None:
    reads = disk.watch("pread", path="*.log")
    ahead = announced(log)
    before = reads.hits
    steps = list(ahead.load())
    assert set(steps) == {SLICE}
    assert reads.hits - before == len(steps) == READ_BYTES_MAX // MEBIBYTE + 1


def test_batches_that_are_appended_meanwhile_do_not_matter(log: PartitionLog) -> None:
    ahead = announced(log, max_bytes=3 * READ_BYTES_MAX)
    work = ahead.load()
    next(work)
    append(log, plain())
    finished(work)
    found = read(log, ahead, max_bytes=3 * READ_BYTES_MAX)
    assert (found.first_offset, found.next_offset) == (1, 3)


def test_bytes_of_a_log_that_was_truncated_meanwhile_are_loaded_again(log: PartitionLog) -> None:
    ahead = announced(log)
    work = ahead.load()
    for _ in range(4):
        next(work)
    log.truncate_to(1)
    log.append_as_follower(_at(1, large(b"b")), now_ms=NOW)
    finished(work)
    again = announced(log, ahead)
    finished(again.load())
    assert bytes(read(log, again).records) == log.read(1, 1, end_offset=2).records
    assert b"a" * 100 not in bytes(read(log, again).records)


def test_records_that_are_deleted_meanwhile_are_out_of_range(log: PartitionLog) -> None:
    log.roll(NOW)
    append(log, plain())
    ahead = announced(log)
    work = ahead.load()
    next(work)
    log.delete_records_before(3)
    log.apply_retention(NOW, high_watermark=4)
    assert len(log.segments) == 1
    finished(work)
    with pytest.raises(BrokerError) as refused:
        read(log, ahead)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_read_raises_the_error_of_the_disk(disk: FaultyMemoryDisk, log: PartitionLog) -> None:
    ahead = announced(log)
    work = ahead.load()
    next(work)
    disk.fail("pread", path="*.log")
    finished(work)
    disk.heal()
    with pytest.raises(OSError, match="Input/output error"):
        read(log, ahead)
    finished(announced(log).load())


def test_a_long_batch_is_searched_for_a_time_in_many_turns(log: PartitionLog) -> None:
    log.delete_records_before(1)
    work, slices, in_thread = log.offset_for_timestamp(NOW, end_offset=3), 0, 0
    try:
        while True:
            step = next(work)
            if isinstance(step, int):
                slices += 1
            else:
                step()
                in_thread += 1
    except StopIteration as end:
        found = end.value
    assert (found.offset, found.timestamp) == (1, NOW)
    assert slices > READ_BYTES_MAX // MEBIBYTE
    assert in_thread == 1


def test_a_search_in_a_long_batch_that_is_truncated_meanwhile_finds_nothing(log: PartitionLog) -> None:
    log.delete_records_before(1)
    work = log.offset_for_timestamp(NOW, end_offset=3)
    next(work)
    log.truncate_to(1)
    assert finished(work) is None
