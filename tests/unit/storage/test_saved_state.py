"""What a start reads of a log whose state was saved, and when it must not believe that state."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from barnabas.storage.disk import MemoryDisk, MemoryFile
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.saved_state import SYNCED_STATE, SavedState
from barnabas.storage.segment import StoredIndexes
from barnabas.work import Steps, finished
from tests.support.rng import SeededRng
from tests.support.storage.batches import (
    CONFIG,
    append,
    append_transactional,
    end_transaction,
    idempotent,
    open_log,
    plain,
    small_segments,
)
from tests.support.storage.described import described

LARGE = replace(CONFIG, index_interval_bytes=1000)
LOG = "t-0/00000000000000000000.log"


class CountingDisk(MemoryDisk):
    """Counts the bytes that are read of .log files."""

    def __init__(self) -> None:
        super().__init__()
        self.log_bytes_read = 0

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        file = super().open(path, create=create)
        return _CountingFile(self, path, file.inode, self.generation) if path.endswith(".log") else file


class _CountingFile(MemoryFile):
    def pread(self, size: int, offset: int) -> bytes:
        data = super().pread(size, offset)
        disk = self._disk
        assert isinstance(disk, CountingDisk)
        disk.log_bytes_read += len(data)
        return data


def filled(disk: MemoryDisk, batches: int = 600) -> PartitionLog:
    """A log of one large segment with producers, an aborted and an open transaction, in several epochs."""
    log = open_log(disk, LARGE)
    append_transactional(log, 5, 0, 2)
    end_transaction(log, 5, commit=False)
    append_transactional(log, 6, 0, 2)
    for n in range(batches):
        append(log, idempotent(4, n, size=400), leader_epoch=n // 200)
    return log


def sync(disk: MemoryDisk, log: PartitionLog) -> None:
    end = log.log_end_offset
    disk.sync_now(log.unsynced_files())
    log.mark_synced(end)


def save(disk: MemoryDisk, log: PartitionLog) -> None:
    log.save_state()
    sync(disk, log)


class TestAfterAKill:
    def test_only_the_tail_is_read(self) -> None:
        disk = CountingDisk()
        log = filled(disk)
        save(disk, log)
        for n in range(600, 610):
            append(log, idempotent(4, n, size=400), leader_epoch=3)
        before = described(log)
        disk.kill()
        disk.log_bytes_read = 0
        again = open_log(disk, LARGE)
        assert disk.log_bytes_read < disk.size(LOG) // 4  # the tail, and what tells of the producers' last batches
        assert described(again) == before
        assert again.truncated_bytes == 0
        assert append(again, idempotent(4, 609, size=400)).duplicate

    def test_whether_a_producer_was_forgotten_is_known(self) -> None:
        disk = MemoryDisk()
        log = filled(disk)
        for complete in (True, False):
            log.producers.complete = complete
            append(log, plain(2), leader_epoch=3)
            save(disk, log)
            disk.kill()
            log = open_log(disk, LARGE)
            assert log.producers.complete is complete
        disk.kill()
        assert not open_log(disk, LARGE, log_start_offset=5).producers.complete

    def test_a_torn_last_write_is_cut(self) -> None:
        disk = MemoryDisk()
        log = filled(disk)
        save(disk, log)
        append(log, plain(2), leader_epoch=3)
        before = described(log)
        disk.open(LOG).pwrite(bytes(plain(3))[:70], log.size_bytes)
        disk.kill()
        again = open_log(disk, LARGE)
        assert described(again) == before
        assert again.truncated_bytes == 70

    def test_a_second_and_a_third_kill(self) -> None:
        disk = MemoryDisk()
        log = filled(disk)
        for n in range(600, 630, 3):
            save(disk, log)
            append(log, idempotent(4, n, 3), leader_epoch=n)
            before = described(log)
            disk.kill()
            log = open_log(disk, LARGE)
            assert described(log) == before

    def test_rolls_since_the_state_are_read(self) -> None:
        disk = MemoryDisk()
        config = small_segments()
        log = open_log(disk, config)
        append(log, idempotent(4, 0, 2))
        save(disk, log)
        for n in range(2, 30):
            append(log, idempotent(4, n), leader_epoch=n // 7)
        assert len(log.segments) > 3
        before = described(log)
        disk.kill()
        assert described(open_log(disk, config)) == before

    def test_a_clean_stop_before_leaves_a_state_for_the_kill_after_it(self) -> None:
        disk = CountingDisk()
        filled(disk).close()
        log = open_log(disk, LARGE, clean=True)
        append(log, plain(2), leader_epoch=3)
        before = described(log)
        disk.kill()
        disk.log_bytes_read = 0
        again = open_log(disk, LARGE)
        assert disk.log_bytes_read < disk.size(LOG) // 4
        assert described(again) == before


class TestAfterAPowerLoss:
    @pytest.mark.parametrize(
        "killed", [False, True], ids=["at a power loss", "of a volume that was detached before a kill"]
    )
    def test_a_hole_below_the_end_is_found(self, killed: bool) -> None:
        disk = MemoryDisk()
        log = filled(disk)
        save(disk, log)
        end, size = log.log_end_offset, log.size_bytes
        for n in range(600, 640):
            append(log, idempotent(4, n, size=400), leader_epoch=3)
        log.save_state()
        disk.open(LOG).pwrite(bytes(4_096), size + 1_000)
        if killed:
            disk.kill()
        else:
            disk.sync_now([disk.open(LOG)])
            disk.crash()
        assert end <= open_log(disk, LARGE).log_end_offset < end + 3

    def test_only_what_was_not_synced_is_read(self) -> None:
        disk = CountingDisk()
        log = filled(disk)
        save(disk, log)
        for n in range(600, 610):
            append(log, idempotent(4, n, size=400), leader_epoch=3)
        before = described(log)
        disk.sync_now([disk.open(name) for name in (LOG, f"t-0/{SYNCED_STATE}")])
        disk.crash()
        disk.log_bytes_read = 0
        again = open_log(disk, LARGE)
        assert disk.log_bytes_read < disk.size(LOG) // 4
        assert described(again) == before
        assert again.recovery_point == log.recovery_point

    def test_a_state_is_not_written_before_the_sync(self) -> None:
        disk = MemoryDisk()
        log = filled(disk)
        log.save_state()
        assert not disk.exists(f"t-0/{SYNCED_STATE}")
        append(log, plain())
        sync(disk, log)
        assert disk.exists(f"t-0/{SYNCED_STATE}")


def flip(disk: MemoryDisk, path: str, position: int) -> None:
    file = disk.open(path)
    (byte,) = file.pread(1, position)
    file.pwrite(bytes([byte ^ 1]), position)


class TestBelief:
    @pytest.mark.parametrize("damage", ["short", "zeros", "flipped", "empty"])
    @pytest.mark.parametrize("suffix", ["checkpoint", ".index", ".timeindex"])
    def test_a_damaged_state_or_index_costs_time_only(self, suffix: str, damage: str) -> None:
        disk = MemoryDisk()
        log = filled(disk)
        save(disk, log)
        append(log, plain(2), leader_epoch=3)
        before = described(log)
        disk.kill()
        for name in disk.listdir("t-0"):
            if name.endswith(suffix) and name != "leader-epoch-checkpoint":
                data = disk.read(f"t-0/{name}")
                middle = len(data) // 2
                new = {
                    "short": data[:middle],
                    "zeros": bytes(len(data)),
                    "flipped": data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :],
                    "empty": b"",
                }[damage]
                disk.replace(f"t-0/{name}", new)
        assert described(open_log(disk, LARGE)) == before

    def test_a_log_that_was_cut_and_written_again(self) -> None:
        disk = MemoryDisk()
        log = filled(disk)
        save(disk, log)
        log.truncate_to(log.log_end_offset - 20)
        assert disk.size(f"t-0/{SYNCED_STATE}") == 0
        for _ in range(40):
            append(log, plain(1, size=400), leader_epoch=9)
        before = described(log)
        disk.kill()
        assert described(open_log(disk, LARGE)) == before

    def test_a_log_that_another_program_cut_and_wrote_again(self) -> None:
        """Kafka knows nothing of the state: the batch that ended there tells that it is of another log."""
        disk = MemoryDisk()
        log = filled(disk)
        save(disk, log)
        states = {name: disk.read(f"t-0/{name}") for name in disk.listdir("t-0") if "state" in name}
        assert states
        log.truncate_to(log.log_end_offset - 20)
        for n in range(580, 620):
            append(log, idempotent(4, n, size=400), leader_epoch=9)
        before = described(log)
        for name, data in states.items():
            disk.replace(f"t-0/{name}", data)
        disk.kill()
        assert described(open_log(disk, LARGE)) == before

    def test_a_log_that_begins_anew_where_the_state_ends(self) -> None:
        disk = MemoryDisk()
        log = filled(disk)
        save(disk, log)
        log.truncate_fully_and_start_at(log.log_end_offset)
        disk.kill()
        assert not open_log(disk, LARGE).producers.entries

    def test_power_losses_and_kills_one_after_another(self) -> None:
        for seed in range(60):
            rng = random.Random(seed)
            disk = MemoryDisk()
            synced = 0
            config = small_segments(2_000)
            for life in range(8):
                log = open_log(disk, config)
                assert log.log_end_offset >= synced, f"seed {seed}, life {life}"
                for _ in range(rng.randrange(25)):
                    append(log, plain(1 + rng.randrange(3)), leader_epoch=life)
                    draw = rng.randrange(8)
                    if draw < 2:
                        log.save_state()
                    elif draw == 2:
                        sync(disk, log)
                        synced = log.log_end_offset
                    elif draw == 3 and rng.random() < 0.3 and log.log_end_offset > 4:
                        log.truncate_to(log.log_end_offset - rng.randrange(4))
                        sync(disk, log)
                        synced = log.log_end_offset
                before = described(log)
                if rng.random() < 0.5:
                    disk.crash(SeededRng(seed * 100 + life))
                else:
                    disk.kill()
                    assert described(open_log(disk, config)) == before, f"seed {seed}, life {life}"
                    disk.kill()

    def test_a_crash_between_two_slices_of_a_save(self) -> None:
        for seed in range(60):
            rng = random.Random(seed)
            disk = MemoryDisk()
            synced = number = 0
            config = small_segments(20_000)
            for life in range(4):
                log = open_log(disk, config)
                assert log.log_end_offset >= synced, f"seed {seed}, life {life}"
                for _ in range(80):
                    number += 1
                    append(log, idempotent(1_000 + number, 0), leader_epoch=life)
                saving: list[Steps[bool]] = []
                for _ in range(rng.randrange(12)):
                    draw = rng.randrange(6)
                    if draw < 2:
                        saving.append(log.saving_state())
                    elif draw == 2:
                        sync(disk, log)
                        synced = log.log_end_offset
                    elif draw == 3 and rng.random() < 0.3:
                        log.truncate_to(log.log_end_offset - rng.randrange(4))
                        sync(disk, log)
                        synced = log.log_end_offset
                    for each in saving:
                        next(each, None)
                    producer = 1_001 + rng.randrange(number)
                    entry = log.producers.entries.get(producer)
                    append(
                        log, idempotent(producer, 0 if entry is None else entry.last_sequence + 1), leader_epoch=life
                    )
                before = described(log)
                if rng.random() < 0.5:
                    disk.crash(SeededRng(seed * 100 + life))
                else:
                    disk.kill()
                    assert described(open_log(disk, config)) == before, f"seed {seed}, life {life}"
                    disk.kill()


class TestInSlices:
    @staticmethod
    def many(disk: MemoryDisk) -> PartitionLog:
        log = open_log(disk, LARGE)
        for producer in range(300):
            append_transactional(log, producer, 0, 1)
        return log

    def test_the_state_is_that_of_the_first_slice(self) -> None:
        disk = MemoryDisk()
        log = self.many(disk)
        expected, end = log.producers.to_snapshot(), log.log_end_offset
        work = log.saving_state()
        assert isinstance(next(work), int)
        append_transactional(log, 299, 1, 2)  # changed, ended, new and expired while it is packed
        end_transaction(log, 298, commit=True)
        append(log, idempotent(7_000, 0))
        log.producers.expire(2**62, 1)
        slices = sum(1 for _ in work)
        assert slices > 5
        sync(disk, log)
        state = SavedState.from_bytes(disk.read(f"t-0/{SYNCED_STATE}"))
        assert state is not None
        assert (state.end_offset, state.producers) == (end, expected)
        before = log.producers.to_snapshot()
        disk.kill()
        assert open_log(disk, LARGE).producers.entries.keys() >= {7_000, 0}
        assert before != expected

    @pytest.mark.parametrize("event", ["cut", "emptied", "lost", "failed", "abandoned"])
    def test_nothing_is_written_after_the_log_has_changed_otherwise(self, event: str) -> None:
        disk = MemoryDisk()
        log = self.many(disk)
        sync(disk, log)
        work = log.saving_state()
        next(work)
        if event == "cut":
            log.truncate_to(log.log_end_offset - 1)
        elif event == "emptied":
            log.truncate_fully_and_start_at(5)
        elif event == "lost":
            log.on_records_lost()
        elif event == "failed":
            log.saved.drop()
        else:
            log.abandon()
        finished(work)
        if event != "abandoned":
            sync(disk, log)
        assert not disk.exists(f"t-0/{SYNCED_STATE}")

    def test_a_later_state_is_not_replaced_by_an_earlier_one(self) -> None:
        disk = MemoryDisk()
        log = self.many(disk)
        work = log.saving_state()
        next(work)
        append(log, plain(2))
        save(disk, log)
        finished(work)
        state = SavedState.from_bytes(disk.read(f"t-0/{SYNCED_STATE}"))
        assert state is not None
        assert state.end_offset == log.log_end_offset

    def test_a_synced_state_waits_for_the_sync_that_covers_it(self) -> None:
        disk = MemoryDisk()
        log = self.many(disk)
        work = log.saving_state()
        next(work)
        end = log.log_end_offset
        append(log, plain(2))
        finished(work)
        assert not disk.exists(f"t-0/{SYNCED_STATE}")
        sync(disk, log)
        state = SavedState.from_bytes(disk.read(f"t-0/{SYNCED_STATE}"))
        assert state is not None
        assert state.end_offset == end


class TestFile:
    STATE = SavedState(
        3, 90, 4_000, 3_900, bytes(61), StoredIndexes(1, 2, 3, 4), [(0, 3), (4, 50)], b"a", b"pp", b"eee", True
    )

    def test_it_is_read_as_it_was_written(self) -> None:
        data = self.STATE.to_bytes()
        assert SavedState.from_bytes(data) == self.STATE
        assert SavedState.from_bytes(data + b"of a longer one before it") == self.STATE

    def test_a_file_that_is_not_whole_is_none(self) -> None:
        data = self.STATE.to_bytes()
        for size in range(len(data)):
            assert SavedState.from_bytes(data[:size]) is None
        for position in range(len(data)):
            assert SavedState.from_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]) is None
