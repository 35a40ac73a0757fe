"""The partition log as its replica sees it: append, read, look up, roll, retain, truncate."""

from __future__ import annotations

import errno
import random
from dataclasses import replace

import pytest

from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.checksum import crc32c
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, decode_records, iter_batches, read_control
from barnabas.storage.aborted import AbortedTxn
from barnabas.storage.log_config import AppendOrigin, LogConfig
from barnabas.storage.partition_log import PartitionLog
from barnabas.testing.world.disks import FaultyMemoryDisk
from barnabas.work import finished
from tests.support.storage.batches import (
    CONFIG,
    NOW,
    append,
    append_transactional,
    end_transaction,
    idempotent,
    open_log,
    plain,
    small_segments,
)
from tests.support.storage.reading import offsets, values

HOUR_MS = 3_600_000


class TestAppend:
    def test_offsets_follow_one_another(self, log: PartitionLog) -> None:
        infos = [append(log, plain(count)) for count in (1, 3, 2)]
        assert [(info.base_offset, info.last_offset) for info in infos] == [(0, 0), (1, 3), (4, 5)]
        assert log.log_end_offset == 6
        assert log.size_bytes == sum(info.size_bytes for info in infos)
        assert not any(info.duplicate for info in infos)
        assert values(log) == [0, 1, 2, 3, 4, 5]

    def test_a_refused_batch_leaves_no_trace(self, log: PartitionLog, disk: FaultyMemoryDisk) -> None:
        append(log, idempotent(5, 0))
        changes = disk.watch("change")
        before = (log.log_end_offset, log.size_bytes, log.producers.to_snapshot())
        for batch in (plain()[:-1] + b"!", idempotent(5, 7), idempotent(6, 0, transactional=True)):
            with pytest.raises(BrokerError):
                append(log, batch)
        assert (log.log_end_offset, log.size_bytes, log.producers.to_snapshot()) == before
        assert changes.hits == 0

    def test_a_repeated_batch_is_answered_with_its_first_offset(self, log: PartitionLog) -> None:
        append(log, plain(3))
        first = append(log, idempotent(5, 0, 4))
        append(log, plain())
        again = append(log, idempotent(5, 0, 4))
        assert again.duplicate
        assert (again.base_offset, again.last_offset) == (first.base_offset, first.last_offset) == (3, 6)
        assert log.log_end_offset == 8

    def test_leader_epochs_are_stamped_and_noted(self, log: PartitionLog) -> None:
        append(log, plain(2), leader_epoch=3)
        append(log, plain(2), leader_epoch=5)
        found = log.read(0, 1000, end_offset=4)
        assert [header.leader_epoch for _, header in iter_batches(found.records)] == [3, 5]
        assert log.epochs.entries == [(3, 0), (5, 2)]
        assert log.epochs.end_offset_for_epoch(4, log.log_end_offset) == (3, 2)

    def test_log_append_time_is_told(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, replace(CONFIG, message_timestamp_type="LogAppendTime"))
        info = append(log, plain(timestamp=5), now_ms=NOW + 7)
        assert (info.log_append_time_ms, info.max_timestamp) == (NOW + 7, NOW + 7)
        assert append(open_log(FaultyMemoryDisk()), plain()).log_append_time_ms == -1

    def test_a_failed_write_can_be_repeated(self, log: PartitionLog, disk: FaultyMemoryDisk) -> None:
        append(log, idempotent(5, 0))
        disk.fail("pwrite", number=errno.ENOSPC, done="half")
        with pytest.raises(OSError, match="space"):
            append(log, idempotent(5, 1, 2))
        assert log.log_end_offset == 1
        assert append(log, idempotent(5, 1)).base_offset == 1
        log.close()
        assert disk.size("t-0/00000000000000000000.log") == log.size_bytes
        assert values(open_log(disk, clean=True)) == [0, 1]

    def test_control_batches_are_for_append_marker_alone(self, log: PartitionLog) -> None:
        info = end_transaction(log, 5, commit=False, coordinator_epoch=9)
        assert (info.base_offset, info.last_offset) == (0, 0)
        (record,) = decode_records(log.read(0, 1000, end_offset=1).records)
        control = read_control(record)
        assert (control.type, control.coordinator_epoch) == (0, 9)

    def test_a_follower_takes_offsets_epochs_and_producers_as_they_come(self, log: PartitionLog) -> None:
        append(log, plain(2), leader_epoch=1)
        append_transactional(log, 5, 0, 3)
        append_transactional(log, 6, 0, 1)
        end_transaction(log, 5, commit=False, leader_epoch=2)
        end_transaction(log, 6, leader_epoch=2)
        fetched = log.read(0, 10_000, end_offset=log.log_end_offset).records
        follower = open_log(FaultyMemoryDisk())
        info = follower.append_as_follower(fetched, now_ms=NOW)
        assert (info.base_offset, info.last_offset, info.size_bytes) == (0, 7, len(fetched))
        assert follower.read(0, 10_000, end_offset=8) == log.read(0, 10_000, end_offset=8)
        assert follower.epochs.entries == log.epochs.entries
        assert follower.producers.to_snapshot() == log.producers.to_snapshot()
        assert follower.aborted_transactions(0, 100) == log.aborted_transactions(0, 100) != []
        with pytest.raises(BrokerError):
            follower.append_as_follower(fetched, now_ms=NOW)

    def test_a_follower_writes_once_a_segment(self, log: PartitionLog) -> None:
        for n in range(20):
            append(log, plain(3, timestamp=NOW + n))
        append_transactional(log, 5, 0)
        end_transaction(log, 5, commit=False)
        fetched = log.read(0, 100_000, end_offset=log.log_end_offset).records
        for config in (CONFIG, small_segments(), small_segments(900, segment_ms=7)):
            disk = FaultyMemoryDisk()
            follower = open_log(disk, config)
            changes = disk.watch("change")
            follower.append_as_follower(fetched, now_ms=NOW)
            segments = [name for name in disk.listdir("t-0") if name.endswith(".log")]
            assert values(follower) == list(range(62))
            assert follower.aborted_transactions(0, 100) == log.aborted_transactions(0, 100)
            assert follower.size_bytes == log.size_bytes == sum(disk.size(f"t-0/{name}") for name in segments)
            assert all(disk.size(f"t-0/{name}") <= config.segment_bytes for name in segments)
            if config is CONFIG:
                assert changes.hits == 1
            follower.close()
            assert values(open_log(disk, config, clean=True)) == list(range(62))

    def test_a_follower_keeps_what_was_written_before_a_failure(self, log: PartitionLog) -> None:
        for _ in range(9):
            append(log, plain(3))
        fetched = log.read(0, 100_000, end_offset=27).records
        disk = FaultyMemoryDisk()
        follower = open_log(disk, small_segments())
        disk.fail("pwrite", path="*.log*", nth=2)
        with pytest.raises(OSError, match="output error"):
            follower.append_as_follower(fetched, now_ms=NOW)
        assert follower.log_end_offset == 9
        assert values(follower) == list(range(9))
        follower.append_as_follower(log.read(9, 100_000, end_offset=27).records, now_ms=NOW)
        assert values(follower) == list(range(27))

    def test_the_raft_log_writes_control_batches_without_a_producer(self, log: PartitionLog) -> None:
        batch = plain()
        batch[22] |= 0x20
        batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
        assert append(log, batch, origin=AppendOrigin.RAFT).base_offset == 0


class TestRead:
    @pytest.fixture
    def log(self, disk: FaultyMemoryDisk) -> PartitionLog:
        log = open_log(disk, small_segments())
        for _ in range(20):
            append(log, plain(3))
        return log

    def test_every_offset_is_found_in_memory_and_on_disk(self, log: PartitionLog, disk: FaultyMemoryDisk) -> None:
        log.close()
        for each in (log, open_log(disk, small_segments(), clean=True), open_log(disk, small_segments())):
            for offset in range(60):
                found = each.read(offset, 1, end_offset=60)
                assert offset in offsets(found)
                assert found.first_offset == offset - offset % 3
                assert found.next_offset == found.first_offset + 3
            assert values(each) == list(range(60))

    def test_bounds(self, log: PartitionLog) -> None:
        assert log.read(60, 1000, end_offset=60) == (b"", 60, 60)
        assert log.read(30, 1000, end_offset=30) == (b"", 30, 30)
        assert log.read(0, 1, end_offset=60, at_least_one=False) == (b"", 0, 0)
        for offset in (-1, 61):
            with pytest.raises(BrokerError) as raised:
                log.read(offset, 1000, end_offset=60)
            assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE

    @pytest.mark.parametrize("from_disk", [False, True])
    def test_slices_are_whole_batches_within_both_bounds(
        self, log: PartitionLog, disk: FaultyMemoryDisk, from_disk: bool
    ) -> None:
        if from_disk:
            log.close()
            log = open_log(disk, small_segments(), clean=True)
        rng = random.Random(1)
        for _ in range(300):
            offset, end, limit = rng.randrange(61), rng.randrange(61), rng.randrange(1200)
            found = log.read(offset, limit, end_offset=end)
            seen = offsets(found)
            if offset >= end:
                assert not seen
                continue
            assert seen[0] <= offset < seen[-1] + 1 == found.next_offset
            assert seen == list(range(found.first_offset, found.next_offset))
            assert max(seen) - max(seen) % 3 < end  # the last batch begins below the end
            assert len(found.records) <= limit or len(seen) == 3

    def test_a_sequential_reader_gets_each_byte_once(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, replace(CONFIG, segment_bytes=10_000_000))
        for _ in range(30):
            append(log, plain(1, size=30_000))
        steps: list[int] = []
        total = offset = 0
        while offset < 30:
            found = log.read(offset, 100_000, end_offset=30)
            total += len(found.records)
            steps.append(found.next_offset - offset)
            offset = found.next_offset
        assert total == log.size_bytes
        assert steps == [3] * 10

    def test_larger_than_asked_for_comes_whole(self, log: PartitionLog) -> None:
        append(log, plain(1, size=390 - 80))
        assert offsets(log.read(60, 10, end_offset=61)) == [60]


class TestTransactions:
    def test_the_worked_table_of_read_committed(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, small_segments(900))
        for _ in range(100):
            append(log, plain())
        sequences = {10: 0, 11: 0, 12: 0}

        def write(producer_id: int) -> None:
            append_transactional(log, producer_id, sequences[producer_id])
            sequences[producer_id] += 1

        append(log, plain())  # 100
        for producer_id in (10, 10, 11, 12):  # 101..104
            write(producer_id)
        append(log, plain())  # 105
        for producer_id in (11, 12, 12):  # 106..108
            write(producer_id)
        assert log.last_stable_offset(109) == 101
        assert log.first_unstable_offset == 101
        end_transaction(log, 11, commit=False)  # 109
        assert log.last_stable_offset(110) == 101
        end_transaction(log, 12, commit=True)  # 110
        write(11)  # 111
        end_transaction(log, 10, commit=False)  # 112
        assert log.last_stable_offset(113) == 111
        end_transaction(log, 11, commit=False)  # 113
        assert log.last_stable_offset(113) == 111  # its marker is not below the high watermark
        assert log.last_stable_offset(114) == 114
        expected = [
            AbortedTxn(11, 103, 109, 101),
            AbortedTxn(10, 101, 112, 111),
            AbortedTxn(11, 111, 113, 114),
        ]
        assert log.aborted_transactions(0, 114) == expected
        assert log.aborted_transactions(110, 114) == expected[1:]
        assert log.aborted_transactions(0, 103) == [expected[1]]
        assert log.aborted_transactions(113, 114) == [expected[2]]
        assert log.aborted_transactions(114, 200) == []
        log.close()
        for clean in (True, False):
            assert open_log(disk, small_segments(900), clean=clean).aborted_transactions(0, 114) == expected

    def test_a_batch_without_verification_is_refused(self, log: PartitionLog) -> None:
        with pytest.raises(BrokerError) as raised:
            append(log, idempotent(5, 0, transactional=True))
        assert raised.value.code == ErrorCode.INVALID_TXN_STATE
        for origin in (AppendOrigin.CLIENT, AppendOrigin.COORDINATOR):
            with pytest.raises(BrokerError):
                append(log, idempotent(5, 0, transactional=True), origin=origin)
        unverified = open_log(FaultyMemoryDisk(), replace(CONFIG, transaction_partition_verification_enable=False))
        assert append(unverified, idempotent(5, 0, transactional=True)).base_offset == 0

    def test_within_a_transaction_no_guard_is_needed(self, log: PartitionLog) -> None:
        append_transactional(log, 5, 0)
        assert log.producers.has_ongoing_transaction(5, 0)
        assert log.producers.verification_guard(5, 0, 1, supports_epoch_bump=False) is None
        append(log, idempotent(5, 1, transactional=True))
        end_transaction(log, 5)
        assert not log.producers.has_ongoing_transaction(5, 0)
        with pytest.raises(BrokerError):
            append(log, idempotent(5, 2, transactional=True))

    def test_the_stable_offset_never_lies_below_the_log_start(self, log: PartitionLog) -> None:
        append_transactional(log, 5, 0)
        append(log, plain(5))
        log.delete_records_before(3)
        assert log.last_stable_offset(6) == 3
        assert log.first_unstable_offset == 3


class TestLookups:
    @pytest.fixture
    def log(self, disk: FaultyMemoryDisk) -> PartitionLog:
        log = open_log(disk, small_segments())
        for n in range(20):
            append(log, plain(3, timestamp=NOW - 1_000_000 + n * 100))
        return log

    @pytest.mark.parametrize(
        ("after", "offset", "at"),
        [(-5000, 0, 0), (0, 0, 0), (1, 1, 1), (3, 3, 100), (100, 3, 100), (1902, 59, 1902), (1903, None, 0)],
    )
    def test_the_first_record_that_is_as_young(
        self, log: PartitionLog, disk: FaultyMemoryDisk, after: int, offset: int | None, at: int
    ) -> None:
        log.close()
        for each in (log, open_log(disk, small_segments(), clean=True)):
            found = finished(each.offset_for_timestamp(NOW - 1_000_000 + after, end_offset=60))
            if offset is None:
                assert found is None
            else:
                assert found == (offset, NOW - 1_000_000 + at, 0)

    def test_timestamps_out_of_order(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, small_segments())
        for timestamp in (500, 100, 900, 300, 900, 200):
            append(log, plain(timestamp=timestamp, size=100))
        found = [finished(log.offset_for_timestamp(t, end_offset=6)) for t in (0, 101, 501, 900, 901)]
        assert [each and each.offset for each in found] == [0, 0, 2, 2, None]
        largest = finished(log.max_timestamp_offset(6))
        assert largest is not None
        assert (largest.offset, largest.timestamp) == (2, 900)
        assert finished(log.max_timestamp_offset(2)) is None
        assert finished(log.offset_for_timestamp(900, end_offset=2)) is None

    def test_what_was_deleted_is_not_found(self, log: PartitionLog) -> None:
        log.delete_records_before(31)
        found = finished(log.offset_for_timestamp(0, end_offset=60))
        assert found is not None
        assert found.offset == 31

    @pytest.mark.parametrize("config", [CONFIG, small_segments()], ids=["one segment", "several segments"])
    @pytest.mark.parametrize("reopened", [False, True])
    def test_the_largest_timestamp_is_one_of_those_that_are_left(
        self, disk: FaultyMemoryDisk, config: LogConfig, reopened: bool
    ) -> None:
        log = open_log(disk, config)
        times = [500, 100, 900, 300, 602, 601, 600, 200, 601]
        for batch in (times[:1], times[1:2], times[2:3], times[3:4], times[4:7], times[7:8], times[8:]):
            append(log, build_batch([NewRecord(b"k", b"v" * 100, timestamp) for timestamp in batch]))
        for start in range(len(times) + 1):
            log.delete_records_before(start)
            if reopened:
                log.close()
                log = open_log(disk, config, clean=True, log_start_offset=start)
            found, left = finished(log.max_timestamp_offset(len(times))), times[start:]
            expected = (start + left.index(max(left)), max(left)) if left else None
            assert (found and (found.offset, found.timestamp)) == expected

    def test_an_empty_log_knows_no_timestamp(self) -> None:
        log = open_log(FaultyMemoryDisk())
        assert finished(log.offset_for_timestamp(0, end_offset=0)) is None
        assert finished(log.max_timestamp_offset(0)) is None
        append(log, plain(timestamp=-1))
        assert finished(log.max_timestamp_offset(1)) is None
