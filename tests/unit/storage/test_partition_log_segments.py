"""PartitionLog: segments, retention, truncation and syncs."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.errors import BrokerError, ErrorCode
from barnabas.runtime.files import FileDisk
from barnabas.storage.opening import LogOpening
from barnabas.storage.partition_log import PartitionLog
from barnabas.testing.world.disks import FaultyMemoryDisk
from tests.support.storage.batches import (
    CONFIG,
    NOW,
    TOPIC_ID,
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


class TestSegments:
    def test_names_are_kafkas(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, small_segments())
        for _ in range(9):
            append(log, plain(3))
        append_transactional(log, 5, 0)
        end_transaction(log, 5, commit=False)
        log.close()
        names = disk.listdir("t-0")
        assert [name for name in names if not name[0].isdigit()] == [
            "leader-epoch-checkpoint",
            "partition.metadata",
        ]
        logs = [name for name in names if name.endswith(".log")]
        assert logs[:2] == ["00000000000000000000.log", "00000000000000000009.log"]
        for name in logs:
            assert name.replace(".log", ".index") in names
            assert name.replace(".log", ".timeindex") in names
        assert [name for name in names if name.endswith(".txnindex")] == [logs[-1].replace(".log", ".txnindex")]
        snapshots = [name for name in names if name.endswith(".snapshot")]
        assert snapshots == [name.replace(".log", ".snapshot") for name in logs[1:]] + ["00000000000000000029.snapshot"]
        assert disk.read("t-0/partition.metadata").startswith(b"version: 0\ntopic_id: AAEC")
        assert disk.read("t-0/leader-epoch-checkpoint") == b"0\n1\n0 0\n"

    def test_by_age_of_the_records(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, replace(CONFIG, segment_ms=1000))
        append(log, plain(timestamp=NOW))
        append(log, plain(timestamp=NOW + 1000))
        assert disk.listdir("t-0") == ["00000000000000000000.log", "partition.metadata"]
        append(log, plain(timestamp=NOW + 1001))
        assert "00000000000000000002.log" in disk.listdir("t-0")

    def test_by_age_of_the_segment_where_records_have_none(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, replace(CONFIG, segment_ms=1000))
        append(log, plain(timestamp=-1))
        append(log, plain(timestamp=-1), now_ms=NOW + 1000)
        append(log, plain(timestamp=-1), now_ms=NOW + 1001)
        assert "00000000000000000002.log" in disk.listdir("t-0")

    def test_by_full_index(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, replace(small_segments(10_000_000), segment_index_bytes=24))
        for _ in range(30):
            append(log, plain(1, size=100))
        assert len([name for name in disk.listdir("t-0") if name.endswith(".log")]) > 3
        assert values(log) == list(range(30))

    def test_when_relative_offsets_would_overflow(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk)
        append(log, plain())
        for base in (2**31 - 1, 2**31):
            batch = plain()
            batch[0:8] = base.to_bytes(8, "big")
            log.append_as_follower(batch, now_ms=NOW)
        assert [name for name in disk.listdir("t-0") if name.endswith(".log")] == [
            "00000000000000000000.log",
            f"{2**31:020d}.log",
        ]
        assert values(log, 1, 2**31 + 1) == [2**31 - 1, 2**31]

    def test_on_request_but_never_an_empty_one(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk)
        log.roll(NOW)
        append(log, plain())
        log.roll(NOW)
        log.roll(NOW)
        assert [name for name in disk.listdir("t-0") if name.endswith(".log")] == [
            "00000000000000000000.log",
            "00000000000000000001.log",
        ]

    def test_a_new_partition_costs_few_calls(self, disk: FaultyMemoryDisk) -> None:
        changes = disk.watch("change")
        open_log(disk, named=False)
        assert changes.hits <= 4  # mkdir, two files, one write


class TestRetention:
    @pytest.fixture
    def log(self, disk: FaultyMemoryDisk) -> PartitionLog:
        log = open_log(disk, small_segments(retention_ms=-1))
        for n in range(20):
            append(log, plain(3, timestamp=NOW + n * 1000))
        return log

    def test_by_time(self, log: PartitionLog, disk: FaultyMemoryDisk) -> None:
        log.reconfigure(small_segments(retention_ms=60_000, file_delete_delay_ms=500))
        assert log.apply_retention(NOW + 60_000, 60) == 0
        assert log.apply_retention(NOW + 62_002, 60) == 0
        assert log.apply_retention(NOW + 62_003, 60) == 1
        assert log.log_start_offset == 9
        assert "00000000000000000000.log.deleted" in disk.listdir("t-0")
        assert log.apply_retention(NOW + 62_502, 60) == 0
        assert log.take_deleted(NOW + 62_502) == []
        disk.remove(*log.take_deleted(NOW + 62_503))
        assert not [name for name in disk.listdir("t-0") if name.startswith("00000000000000000000.")]
        with pytest.raises(BrokerError):
            log.read(8, 100, end_offset=60)
        assert values(log, 9) == list(range(9, 60))

    def test_everything_may_be_too_old_and_the_log_goes_on(self, log: PartitionLog, disk: FaultyMemoryDisk) -> None:
        log.reconfigure(small_segments(retention_ms=1))
        assert log.apply_retention(NOW + 10**9, 60) == 7
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (60, 60, 0)
        assert append(log, plain()).base_offset == 60
        log.close()
        assert open_log(disk, small_segments(), clean=True).log_start_offset == 60

    def test_by_size(self, log: PartitionLog) -> None:
        segment = 3 * len(plain(3))
        log.reconfigure(small_segments(retention_ms=-1, retention_bytes=log.size_bytes - 2 * segment + 1))
        assert log.apply_retention(NOW, 60) == 1
        log.reconfigure(small_segments(retention_ms=-1, retention_bytes=log.size_bytes - 2 * segment))
        assert log.apply_retention(NOW, 60) == 2
        assert log.log_start_offset == 27

    def test_a_call_deletes_no_more_than_it_was_told_to(self, log: PartitionLog) -> None:
        log.reconfigure(small_segments(retention_ms=1))
        found = [log.apply_retention(NOW + 10**9, 60, segments_max=3) for _ in range(4)]
        assert found == [3, 3, 1, 0]
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (60, 60, 0)

    def test_nothing_above_the_high_watermark(self, log: PartitionLog) -> None:
        log.reconfigure(small_segments(retention_ms=1))
        assert log.apply_retention(NOW + 10**9, 26) == 2
        assert log.log_start_offset == 18

    def test_compacted_topics_keep_all_but_what_lies_below_the_log_start(self, log: PartitionLog) -> None:
        log.reconfigure(small_segments(retention_ms=1, cleanup_policy=frozenset({"compact"})))
        assert log.apply_retention(NOW + 10**9, 60) == 0
        log.delete_records_before(25)
        assert log.log_start_offset == 25
        assert log.apply_retention(NOW + 10**9, 60) == 2
        assert log.log_start_offset == 25
        assert values(log, 25) == list(range(25, 60))

    def test_delete_records(self, log: PartitionLog, disk: FaultyMemoryDisk) -> None:
        log.delete_records_before(13)
        log.delete_records_before(5)  # never back
        assert log.log_start_offset == 13
        assert log.epochs.entries == [(0, 13)]
        assert offsets(log.read(13, 1, end_offset=60)) == [12, 13, 14]
        for offset, code in ((12, ErrorCode.OFFSET_OUT_OF_RANGE), (61, ErrorCode.OFFSET_OUT_OF_RANGE)):
            with pytest.raises(BrokerError) as raised:
                log.read(offset, 1, end_offset=60)
            assert raised.value.code == code
        with pytest.raises(BrokerError):
            log.delete_records_before(61)
        log.close()
        assert open_log(disk, small_segments(), clean=True, log_start_offset=13).log_start_offset == 13


class TestTruncation:
    @pytest.fixture
    def log(self, disk: FaultyMemoryDisk) -> PartitionLog:
        log = open_log(disk, small_segments())
        for n in range(10):
            append(log, plain(3, timestamp=NOW + n), leader_epoch=n // 3)
        append_transactional(log, 5, 0, 2)
        end_transaction(log, 5, commit=False, leader_epoch=4)
        append_transactional(log, 6, 0, 2)
        return log

    @pytest.mark.parametrize("offset", range(36))
    def test_at_any_offset_it_is_as_if_no_more_had_been_written(
        self, log: PartitionLog, disk: FaultyMemoryDisk, offset: int
    ) -> None:
        whole = log.read(0, 1, end_offset=35)
        assert whole.records
        log.mark_synced(log.log_end_offset)
        log.truncate_to(offset)
        end = log.log_end_offset
        assert end <= offset
        assert offset - end < 3
        assert values(log) == list(range(end))
        assert log.size_bytes == sum(disk.size(f"t-0/{n}") for n in disk.listdir("t-0") if n.endswith(".log"))
        assert log.recovery_point <= end
        assert all(start < end for _, start in log.epochs.entries)
        assert log.producers.has_ongoing_transaction(5, 0) == (end == 32)
        assert log.producers.has_ongoing_transaction(6, 0) == (end == 35)
        assert log.last_stable_offset(end) == {32: 30, 35: 33}.get(end, end)
        assert bool(log.aborted_transactions(0, 100)) == (end >= 33)
        assert all(int(n[:20]) <= end for n in disk.listdir("t-0") if n.endswith(".snapshot"))
        assert append(log, plain(2), leader_epoch=9).base_offset == end
        log.close()
        again = open_log(disk, small_segments(), clean=True)
        assert values(again) == list(range(end + 2))
        assert again.producers.to_snapshot() == log.producers.to_snapshot()

    def test_beyond_the_end_nothing_happens(self, log: PartitionLog) -> None:
        log.truncate_to(1000)
        assert log.log_end_offset == 35

    def test_fully(self, log: PartitionLog, disk: FaultyMemoryDisk) -> None:
        log.truncate_fully_and_start_at(1000)
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes, log.recovery_point) == (
            1000,
            1000,
            0,
            1000,
        )
        assert log.epochs.entries == []
        assert not log.producers.entries
        assert [n for n in disk.listdir("t-0") if n.endswith(".log")] == [f"{1000:020d}.log"]
        assert append(log, plain()).base_offset == 1000
        log.close()
        assert values(open_log(disk, small_segments(), clean=True), 1000) == [1000]


class TestSync:
    async def test_the_recovery_point_follows_the_syncs(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, small_segments())
        assert log.unsynced_files() == []
        for _ in range(6):
            append(log, plain(3))
        assert log.recovery_point == 0
        files, end = log.unsynced_files(), log.log_end_offset
        append(log, plain(3))
        await disk.sync(files)
        log.mark_synced(end)
        assert log.recovery_point == 18
        disk.crash()
        again = open_log(disk, small_segments(), recovery_point=18)
        assert values(again) == list(range(18))

    async def test_what_changed_after_a_sync_began_is_not_forgotten(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, small_segments(10_000))
        append(log, plain(3))
        files, end = log.unsynced_files(), log.log_end_offset
        log.roll(NOW)  # the same end offset: only its order tells that its files came later
        await disk.sync(files)
        log.mark_synced(end)
        paths = {file.path for file in log.unsynced_files()}
        assert "t-0/00000000000000000000.index" in paths

    async def test_nothing_is_left_to_sync_after_a_sync(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, small_segments())
        for _ in range(6):
            append(log, plain(3))
        await disk.sync(log.unsynced_files())
        log.mark_synced(log.log_end_offset)
        assert log.unsynced_files() == []

    def test_many_logs_are_closed_with_one_sync(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk)
        append(log, idempotent(5, 0))
        files = log.prepare_close()
        disk.sync_now(files)
        log.mark_synced(log.log_end_offset)
        changes = disk.watch("change")
        log.close()
        assert changes.hits == 0
        disk.crash()
        again = open_log(disk, clean=True)
        assert values(again) == [0]
        assert again.producers.to_snapshot() == log.producers.to_snapshot()

    def test_removal(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk)
        append(log, plain())
        log.rename("t-0.abc-delete")
        assert disk.listdir("") == ["t-0.abc-delete"]


def test_a_folder_of_another_topic_is_refused(disk: FaultyMemoryDisk, log: PartitionLog) -> None:
    log.close()
    with pytest.raises(BrokerError) as raised:
        PartitionLog.open(disk, "t-0", CONFIG, LogOpening(now_ms=NOW, topic_id=bytes(16), clean=True))
    assert raised.value.code == ErrorCode.INCONSISTENT_TOPIC_ID
    assert (
        PartitionLog.open(disk, "t-0", CONFIG, LogOpening(now_ms=NOW, topic_id=None, clean=True)).topic_id == TOPIC_ID
    )


@pytest.mark.parametrize("jitter_ms", [HOUR_MS, 2 * HOUR_MS])
def test_the_jitter_is_drawn_for_each_segment(disk: FaultyMemoryDisk, jitter_ms: int) -> None:
    """segment.jitter.ms: each segment closes up to min(jitter, segment.ms) early, none at once for that alone."""
    config = replace(
        CONFIG, segment_ms=HOUR_MS, segment_jitter_ms=jitter_ms, randrange=lambda stop: source.randrange(stop)
    )
    source = random.Random(5)
    log = open_log(disk, config)
    for minute in range(600):
        now_ms = NOW + minute * 60_000
        append(log, plain(timestamp=now_ms), now_ms=now_ms)
    starts = [segment.base_offset for segment in log.segments]
    ages = [after - before for before, after in itertools.pairwise(starts)]  # in minutes, a record each
    assert len(set(ages)) > 5
    assert max(ages) <= 61
    assert 10 < len(starts) < 60


def test_a_sync_leaves_no_files_open_but_logs(tmp_path: Path) -> None:
    disk = FileDisk(str(tmp_path))
    log = open_log(disk, small_segments())
    for _ in range(3):
        for _ in range(20):
            append(log, plain(5))
        log.save_state()
        files = log.unsynced_files()
        disk.sync_now(files)
        assert any(not file.path.endswith(".log") for file in files)
        log.mark_synced(log.log_end_offset)
    assert [file.path for file in disk._open if not file.path.endswith(".log")] == []
    disk.close()
