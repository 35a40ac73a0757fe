"""Opening what a kill, a crash or another program left behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from barnabas.errors import BrokerError
from barnabas.storage.log_config import LogConfig
from barnabas.storage.opening import DamagedLog
from barnabas.storage.segment import Segment
from barnabas.testing.world.disks import FaultyMemoryDisk
from tests.support.storage.batches import (
    CONFIG,
    NOW,
    append,
    append_transactional,
    end_transaction,
    forget_states,
    idempotent,
    open_log,
    plain,
    small_segments,
)
from tests.support.storage.described import SMALL, described, written
from tests.support.storage.reading import values


def segments(disk: FaultyMemoryDisk) -> list[str]:
    return [name for name in disk.listdir("t-0") if name.endswith(".log")]


class TestCleanStop:
    def test_everything_is_as_it_was_and_no_record_is_read(self, disk: FaultyMemoryDisk) -> None:
        log = written(disk)
        log.close()
        before = described(log)
        changes = disk.watch("change")
        again = open_log(disk, SMALL, clean=True)
        assert changes.hits == 0
        assert again.truncated_bytes == 0
        assert described(again) == before
        assert again.recovery_point == again.log_end_offset

    def test_a_start_changes_no_file_and_a_stop_renames_none(self, disk: FaultyMemoryDisk) -> None:
        log = written(disk)
        for epoch in range(4, 8):
            append(log, plain(1), leader_epoch=epoch)
            disk.fail("rename", times=None)  # over another file, it takes a file system milliseconds
            log.close()
            disk.heal()
            changes = disk.watch("change")
            log = open_log(disk, small_segments(), clean=True)
            assert changes.hits == 0
            assert log.epochs.latest_epoch == epoch

    def test_snapshots_of_earlier_stops_do_not_pile_up(self, disk: FaultyMemoryDisk) -> None:
        log = written(disk)
        for n in range(4):
            log.close()
            log = open_log(disk, SMALL, clean=True)
            append(log, plain(), leader_epoch=3 + n)
        log.close()
        bases = {name[:20] for name in segments(disk)}
        strays = [name for name in disk.listdir("t-0") if name.endswith(".snapshot") and name[:20] not in bases]
        assert len(strays) == 1
        assert strays[-1] == f"{log.log_end_offset:020d}.snapshot"

    @pytest.mark.parametrize(
        "damage", ["bytes after", "torn", "no length", "no magic", "zeros", "shorter", "no segment"]
    )
    def test_nothing_is_cut(self, disk: FaultyMemoryDisk, damage: str) -> None:
        log = written(disk)
        while not log.segments.active.last_batch()[0]:
            append(log, plain(2), leader_epoch=3)
        log.close()
        end, base, position = log.log_end_offset, log.segments.active.base_offset, log.segments.active.last_batch()[0]
        file = disk.open(f"t-0/{segments(disk)[-1]}")
        size = file.size()
        if damage == "bytes after":
            file.pwrite(b"torn batch", size)
        elif damage == "torn":
            file.truncate(size - 1)
        elif damage == "no length":
            file.pwrite(bytes(4), position + 8)
        elif damage == "no magic":
            file.pwrite(b"\x07", position + 16)
        elif damage == "zeros":
            file.pwrite(bytes(size - position), position)
        elif damage == "shorter":
            file.truncate(position)  # whole batches are left, and one is missing
        else:
            for name in disk.listdir("t-0"):
                if name.startswith(f"{base:020d}"):
                    disk.remove(f"t-0/{name}")
        before = {name: disk.read(f"t-0/{name}") for name in segments(disk)}
        for _ in range(2):
            with pytest.raises(DamagedLog, match="is damaged after a clean stop"):
                open_log(disk, SMALL, clean=True, recovery_point=end)
        assert {name: disk.read(f"t-0/{name}") for name in segments(disk)} == before
        forget_states(disk)
        again = open_log(disk, SMALL, recovery_point=end)
        assert (again.log_end_offset == end) is (damage == "bytes after")
        assert again.log_end_offset >= base

    @pytest.mark.parametrize(
        "damage", ["first is gone", "middle is gone", "only .log is gone", "empty", "a copy of another"]
    )
    def test_a_log_with_other_segments_than_at_the_stop_is_not_opened(
        self, disk: FaultyMemoryDisk, damage: str
    ) -> None:
        log = written(disk)
        log.close()
        size, end = log.stored_size(), log.log_end_offset
        names = segments(disk)
        changed = names[0 if damage == "first is gone" else 1]
        if damage == "empty":
            disk.open(f"t-0/{changed}").truncate(0)
        elif damage == "a copy of another":
            disk.replace(f"t-0/{changed}", disk.read(f"t-0/{names[-1]}"))
        else:
            gone = changed if damage == "only .log is gone" else changed.removesuffix(".log")
            for name in disk.listdir("t-0"):
                if name.startswith(gone):
                    disk.remove(f"t-0/{name}")
        assert open_log(disk, SMALL, clean=True, recovery_point=end).log_end_offset == end, "nothing else shows it"
        with pytest.raises(DamagedLog, match=r"t-0 is damaged after a clean stop: its \.log files have \d+ bytes"):
            open_log(disk, SMALL, clean=True, recovery_point=end, size=size)

    @pytest.mark.parametrize("damage", ["gone", "empty", "one entry less"])
    def test_lost_entries_of_aborted_transactions_are_read_from_the_log(
        self, disk: FaultyMemoryDisk, damage: str
    ) -> None:
        log = written(disk)
        for n in range(3):
            append_transactional(log, 5, 2 + n, leader_epoch=3)
            end_transaction(log, 5, commit=False, leader_epoch=3)
        log.close()
        before, size = described(log), log.stored_size()
        assert size.aborted_bytes == 4 * 34
        path = next(f"t-0/{name}" for name in disk.listdir("t-0") if name.endswith(".txnindex"))
        if damage == "gone":
            disk.remove(path)
        else:
            disk.open(path).truncate(0 if damage == "empty" else disk.size(path) - 34)
        again = open_log(disk, SMALL, clean=True, recovery_point=log.log_end_offset, size=size)
        assert described(again) == before
        again.close()
        assert again.stored_size() == size

    def test_what_a_failed_write_left_is_not_taken_for_damage(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk)
        disk.fail("pwrite", done="half")
        with pytest.raises(OSError, match="output error"):
            append(log, plain())
        disk.heal()
        log.close()
        assert open_log(disk, clean=True).log_end_offset == 0

    @pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
    @pytest.mark.parametrize("damage", ["missing", "zeros", "short", "garbage"])
    def test_damaged_helpers_are_made_again(self, disk: FaultyMemoryDisk, suffix: str, damage: str) -> None:
        log = written(disk)
        log.close()
        before = described(log)
        for name in disk.listdir("t-0"):
            if name.endswith(suffix):
                data = disk.read(f"t-0/{name}")
                disk.remove(f"t-0/{name}")
                if damage != "missing":
                    new = {"zeros": bytes(len(data)), "short": data[: len(data) // 2], "garbage": b"\xa5" * len(data)}
                    disk.replace(f"t-0/{name}", new[damage])
        assert described(open_log(disk, SMALL, clean=True)) == before

    @pytest.mark.parametrize("damage", ["zeros", "short", "garbage"])
    def test_a_damaged_aborted_index_is_made_again(self, disk: FaultyMemoryDisk, damage: str) -> None:
        log = written(disk)
        log.close()
        before = described(log)
        (name,) = [name for name in disk.listdir("t-0") if name.endswith(".txnindex")]
        data = disk.read(f"t-0/{name}")
        new = {"zeros": bytes(len(data)), "short": data[:-3], "garbage": b"\xa5" * len(data)}
        disk.replace(f"t-0/{name}", new[damage])
        assert described(open_log(disk, SMALL, clean=True)) == before


class TestKill:
    @pytest.mark.parametrize("closed_before", [False, True])
    def test_all_that_was_written_is_there(self, disk: FaultyMemoryDisk, closed_before: bool) -> None:
        log = written(disk)
        if closed_before:
            log.close()
            log = open_log(disk, SMALL, clean=True)
            append(log, plain(2), leader_epoch=3)
        before = described(log)
        disk.kill()
        assert described(open_log(disk, SMALL)) == before

    def test_a_second_kill_changes_nothing(self, disk: FaultyMemoryDisk) -> None:
        before = described(written(disk))
        for _ in range(3):
            disk.kill()
            assert described(open_log(disk, SMALL)) == before

    def test_after_the_recovery_it_closes_clean(self, disk: FaultyMemoryDisk) -> None:
        before = described(written(disk))
        disk.kill()
        open_log(disk, SMALL).close()
        disk.crash()
        assert described(open_log(disk, SMALL, clean=True)) == before

    @pytest.mark.parametrize("recovery_point", [0, 5, 12, 20, 30])
    def test_only_what_lies_beyond_the_recovery_point_is_checked(
        self, disk: FaultyMemoryDisk, recovery_point: int
    ) -> None:
        log = written(disk)
        before = described(log)
        disk.sync_now(log.unsynced_files())
        log.mark_synced(log.log_end_offset)
        disk.kill()
        assert described(open_log(disk, SMALL, recovery_point=recovery_point)) == before

    def test_a_torn_batch_is_cut_and_what_follows_it_goes(self, disk: FaultyMemoryDisk) -> None:
        log = written(disk)
        disk.kill()
        names = segments(disk)
        third = disk.open(f"t-0/{names[2]}")
        third.truncate(third.size() - 5)
        again = open_log(disk, SMALL)
        assert again.truncated_bytes > 5
        assert segments(disk) == names[:3]
        end = again.log_end_offset
        assert int(names[2][:20]) < end < int(names[3][:20])
        assert values(again) == list(range(end))
        assert [name for name in disk.listdir("t-0") if name.endswith(".snapshot") and int(name[:20]) > end] == []
        assert again.producers.entries[4].last_offset < end
        assert append(again, idempotent(4, again.producers.entries[4].last_sequence + 1)).base_offset == end
        assert log.log_end_offset > end

    @pytest.mark.parametrize("where", [0, 8, 16, 17, 23, 43, 70])
    def test_a_flipped_bit_is_noticed_below_the_end(self, disk: FaultyMemoryDisk, where: int) -> None:
        log = open_log(disk)
        for _ in range(3):
            append(log, plain(2))
        disk.kill()
        file = disk.open("t-0/00000000000000000000.log")
        size = file.size() // 3
        byte = file.pread(1, size + where)[0]
        file.pwrite(bytes([byte ^ 0x80]), size + where)
        again = open_log(disk)
        # The base offset lies outside the checksum: one that goes up is taken (as Kafka does), one that does not is not.
        assert again.log_end_offset == 2
        assert again.truncated_bytes == 2 * size

    def test_a_log_start_beyond_all_begins_anew(self, disk: FaultyMemoryDisk) -> None:
        written(disk)
        disk.kill()
        again = open_log(disk, SMALL, log_start_offset=1000)
        assert (again.log_start_offset, again.log_end_offset, again.size_bytes) == (1000, 1000, 0)
        assert segments(disk) == [f"{1000:020d}.log"]
        assert not again.producers.entries

    def test_a_damaged_epoch_file_is_read_from_the_batches(self, disk: FaultyMemoryDisk) -> None:
        log = written(disk)
        log.close()
        epochs = log.epochs.entries
        for data in (b"", b"0\n9\n", bytes(30), b"0\n1\n0 "):
            disk.replace("t-0/leader-epoch-checkpoint", data)
            assert open_log(disk, SMALL, clean=True).epochs.entries == epochs
            assert open_log(disk, SMALL, recovery_point=10**6).epochs.entries == epochs
        disk.remove("t-0/leader-epoch-checkpoint")
        assert open_log(disk, SMALL, clean=True).epochs.entries == epochs

    @pytest.mark.parametrize("data", [b"", b"version: 0\ntopic", bytes(40)])
    def test_a_torn_partition_metadata_is_written_again(self, disk: FaultyMemoryDisk, data: bytes) -> None:
        written(disk)
        good = disk.read("t-0/partition.metadata")
        disk.kill()
        disk.replace("t-0/partition.metadata", data)
        open_log(disk, SMALL)
        assert disk.read("t-0/partition.metadata") == good


class TestLeftovers:
    def test_what_a_crash_left_is_removed_at_once_or_given_out_to_be_removed(self, disk: FaultyMemoryDisk) -> None:
        log = written(disk)
        log.close()
        before = described(log)
        junk = [
            "00000000000000000000.log.deleted",
            "00000000000000000000.log.cleaned",
            "leader-epoch-checkpoint.tmp",
            "00000000000000009999.index",
            "00000000000000009999.txnindex",
            "00000000000000009999.snapshot",
        ]
        for name in junk:
            disk.replace(f"t-0/{name}", b"junk")
        log = open_log(disk, SMALL, clean=True)
        assert described(log) == before
        assert set(junk) & set(disk.listdir("t-0")) == {junk[0]}, "it may be large"
        assert log.take_deleted(0) == [f"t-0/{junk[0]}"]
        assert log.take_deleted(0) == []

    def test_other_files_are_left_alone(self, disk: FaultyMemoryDisk) -> None:
        written(disk).close()
        for name in ("quorum-state", "00000000000000000010-0000000001.checkpoint"):
            disk.replace(f"t-0/{name}", b"mine")
        open_log(disk, SMALL, clean=True)
        assert {"quorum-state", "00000000000000000010-0000000001.checkpoint"} <= set(disk.listdir("t-0"))

    def test_a_finished_cleaning_takes_the_place_of_what_it_covers(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, SMALL)
        for _ in range(9):
            append(log, plain(3))
        log.close()
        first, second, *_ = segments(disk)
        merged = disk.read(f"t-0/{first}") + disk.read(f"t-0/{second}")
        disk.replace(f"t-0/{first}.swap", merged)
        again = open_log(disk, SMALL, clean=True)
        assert second not in segments(disk)
        assert disk.read(f"t-0/{first}") == merged
        assert values(again) == list(range(27))

    def test_a_folder_without_segments_is_an_empty_log(self, disk: FaultyMemoryDisk) -> None:
        disk.mkdir("t-0")
        log = open_log(disk)
        assert log.log_end_offset == 0
        assert append(log, plain()).base_offset == 0

    def test_index_files_preallocated_by_a_killed_kafka_are_taken(self, disk: FaultyMemoryDisk) -> None:
        log = written(disk)
        log.close()
        before = described(log)
        for suffix in (".index", ".timeindex"):
            for name in segments(disk):
                file = disk.open("t-0/" + name.replace(".log", suffix))
                file.truncate(10 * 1024 * 1024 // 12 * 12)
        assert described(open_log(disk, SMALL, clean=True)) == before
        disk.kill()
        forget_states(disk)
        again = open_log(disk, SMALL)
        assert described(again) == before
        again.close()
        assert all(disk.size(f"t-0/{n}") < 1000 for n in disk.listdir("t-0") if n.endswith("index"))


class TestProducers:
    def test_an_expired_producer_is_not_revived_by_its_snapshot(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk)
        append(log, idempotent(4, 0))
        append_transactional(log, 5, 0)
        log.close()
        later = NOW + CONFIG.producer_id_expiration_ms
        assert list(open_log(disk, clean=True, now_ms=later).producers.entries) == [5]

    def test_an_aborted_transaction_that_spans_segments_is_listed_where_its_marker_is(
        self, disk: FaultyMemoryDisk
    ) -> None:
        log = open_log(disk, SMALL)
        append_transactional(log, 5, 0)
        for _ in range(9):
            append(log, plain(3))
        end_transaction(log, 5, commit=False)
        before = log.aborted_transactions(0, 100)
        assert len(before) == 1
        disk.kill()
        names = segments(disk)
        # Only the last segment is read: the transaction's beginning is known by the snapshot alone.
        again = open_log(disk, SMALL, recovery_point=int(names[-1][:20]))
        assert again.aborted_transactions(0, 100) == before

    def test_batches_known_again_are_answered_with_their_offsets(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk)
        for n in range(6):
            append(log, idempotent(4, n))
        disk.kill()
        again = open_log(disk)
        assert [append(again, idempotent(4, n)).base_offset for n in range(1, 6)] == [1, 2, 3, 4, 5]
        again.close()
        clean = open_log(disk, clean=True)
        assert append(clean, idempotent(4, 5)).duplicate

    def test_record_times_decide_expiry_on_replay(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, replace(CONFIG, producer_id_expiration_ms=1000))
        append(log, idempotent(4, 0))
        assert log.expire_producers(NOW + 999) == 0
        assert log.expire_producers(NOW + 1000) == 1


class TestGaps:
    """A segment that begins above the end of the one before it."""

    @staticmethod
    def with_gap(disk: FaultyMemoryDisk, config: LogConfig) -> None:
        log = open_log(disk, config)
        for _ in range(9):
            append(log, plain(3))
        log.close()
        disk.kill()
        forget_states(disk)

    def test_the_cleaner_may_have_made_it(self, disk: FaultyMemoryDisk) -> None:
        config = small_segments(cleanup_policy=frozenset({"compact"}))
        self.with_gap(disk, config)
        first = open_log(disk, config, clean=True)
        first.close()
        name = segments(disk)[0]
        # The last batch was cleaned away, and the indexes written anew.
        disk.open(f"t-0/{name}").truncate(len(plain(3)) * 2)
        for suffix in (".index", ".timeindex"):
            disk.remove("t-0/" + name.replace(".log", suffix))
        cleaned = Segment(disk, "t-0", 0, config=config, now_ms=NOW)
        cleaned.load()
        for path, data in cleaned.index_files():
            disk.replace(path, data)
        disk.kill()
        again = open_log(disk, config)
        assert values(again) == [*range(6), *range(9, 27)]

    def test_elsewhere_it_is_a_loss(self, disk: FaultyMemoryDisk) -> None:
        self.with_gap(disk, SMALL)
        disk.open(f"t-0/{segments(disk)[0]}").truncate(len(plain(3)) * 2)
        again = open_log(disk, SMALL)
        assert values(again) == list(range(6))
        assert again.truncated_bytes == 6 * len(plain(3))


@pytest.mark.parametrize("size", [10, 60_000])
@pytest.mark.parametrize("stop", ["clean", "kill", "kill after a save", "cut"])
@pytest.mark.parametrize("rolls", [False, True])
def test_the_last_five_batches_of_a_producer_are_known_again_however_the_log_is_opened(
    disk: FaultyMemoryDisk, stop: str, size: int, rolls: bool
) -> None:
    log = open_log(disk)
    for n in range(7):
        append(log, idempotent(4, n * 2, 2, size=size))
        append(log, idempotent(5, n))
        if rolls:
            log.roll(NOW)
    if stop == "kill after a save":
        for n in range(300):
            append(log, idempotent(6 + n % 30, n // 30, size=400))
        log.save_state()
        disk.sync_now(log.unsynced_files())
        log.mark_synced(log.log_end_offset)
    if stop == "cut":
        append(log, plain())
        end_offset = log.log_end_offset
        for _ in range(300):  # more than the end of a log that is searched
            append(log, plain())
        log.truncate_to(end_offset)
        again = log
    else:
        if stop == "clean":
            log.close()
        else:
            disk.kill()
        again = open_log(disk, clean=stop == "clean")
    for n in range(2, 7):
        assert append(again, idempotent(4, n * 2, 2, size=size)).duplicate, n
        assert append(again, idempotent(5, n)).duplicate, n
    with pytest.raises(BrokerError):
        append(again, idempotent(4, 2, 2, size=size))


def test_batches_of_a_former_epoch_are_not_taken_for_those_of_the_present(disk: FaultyMemoryDisk) -> None:
    log = open_log(disk)
    for n in range(3):
        append(log, idempotent(4, n))
    append(log, idempotent(4, 0, epoch=1))
    log.close()
    again = open_log(disk, clean=True)
    assert len(again.producers.entries[4].batches) == 1
    assert append(again, idempotent(4, 0, epoch=1)).duplicate
