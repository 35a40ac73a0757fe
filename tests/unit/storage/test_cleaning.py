"""The cleaner against a model: after any history of appends, transactions, cleanings, stops and crashes a reader finds what it must."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, iter_batches
from barnabas.storage.partition_log import PartitionLog
from barnabas.testing.world.disks import FaultyMemoryDisk
from tests.support.rng import SeededRng
from tests.support.storage.batches import (
    NOW,
    append,
    append_transactional,
    end_transaction,
    idempotent,
    open_log,
    put,
)
from tests.support.storage.histories import (
    COMPACTED,
    DAY,
    Model,
    check,
    clean,
    config,
    opened,
    read_all,
    sync,
    write_something,
)


@pytest.fixture
def log(disk: FaultyMemoryDisk) -> PartitionLog:
    return open_log(disk, COMPACTED)


def last_sequences(log: PartitionLog) -> dict[int, tuple[int, int]]:
    return {
        producer_id: (entry.epoch, entry.last_sequence)
        for producer_id, entry in sorted(log.producers.entries.items())
        if entry.batches
    }


def replicate(leader: PartitionLog, follower: PartitionLog, max_bytes: int) -> None:
    """What fetches do to a new replica."""
    while follower.log_end_offset < leader.log_end_offset:
        piece = leader.read(follower.log_end_offset, max_bytes, end_offset=leader.log_end_offset)
        follower.append_as_follower(bytearray(piece.records), now_ms=NOW)
        assert 0 < follower.log_end_offset <= piece.next_offset


def without_snapshots(disk: FaultyMemoryDisk) -> None:
    for name in disk.listdir("t-0"):
        if name.endswith(".snapshot"):
            disk.remove(f"t-0/{name}")


@pytest.mark.parametrize("block", range(6))
def test_whatever_happens_a_reader_finds_what_it_must(block: int) -> None:
    for seed in range(block * 12, block * 12 + 12):
        rng = random.Random(seed)
        disk = FaultyMemoryDisk()
        shape = config(rng)
        log = opened(disk, shape)
        model = Model()
        now_ms = NOW
        cleanings = 0
        try:
            for _ in range(12):
                for _ in range(rng.randrange(25)):
                    write_something(rng, log, model, now_ms)
                if rng.random() < 0.5:
                    log.roll(now_ms)
                steps_max = rng.choice([1, 3, 10**9, 10**9])
                cleanings += (
                    clean(disk, log, now_ms, steps_max=steps_max, map_bytes_max=rng.choice([400, 10**6])) is not None
                )
                check(log, model, now_ms)
                stable, sequences = log.last_stable_offset(log.log_end_offset), last_sequences(log)
                end = rng.randrange(4)
                if end == 0:
                    log.close()
                    log = opened(disk, shape, clean=True)
                elif end == 1:
                    sync(disk, log)
                    cleaned_to = log.cleaned_to
                    disk.crash(SeededRng(seed))
                    log = opened(disk, shape, recovery_point=rng.choice([0, log.recovery_point]))
                    log.cleaned_to = cleaned_to
                elif end == 2:
                    without_snapshots(disk)
                    log = opened(disk, shape)
                    assert last_sequences(log) == sequences
                assert log.last_stable_offset(log.log_end_offset) == stable
                check(log, model, now_ms)
                now_ms += rng.choice([10, 1000, DAY // 2, DAY + 1])
            other = FaultyMemoryDisk()
            follower = opened(other, shape)
            replicate(log, follower, rng.choice([1, 500, 100_000]))
            check(follower, model, now_ms)
            other.kill()
            follower = opened(other, shape)  # segments end below where the next ones begin, and none is taken for torn
            check(follower, model, now_ms)
            assert follower.log_end_offset == log.log_end_offset
            assert follower.last_stable_offset(follower.log_end_offset) == stable
            assert last_sequences(follower) == sequences
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert cleanings


def test_power_loss_at_every_call_of_a_cleaning() -> None:
    """The swap's renames among them; what was synced before is all there, and the log goes on."""

    def history(disk: FaultyMemoryDisk, seed: int) -> tuple[PartitionLog, Model]:
        rng = random.Random(seed)
        log = opened(disk, COMPACTED)
        model = Model()
        for _ in range(25):
            write_something(rng, log, model, NOW)
        log.roll(NOW)
        clean(disk, log, NOW)
        for _ in range(25):
            write_something(rng, log, model, NOW + DAY)
        log.roll(NOW)
        sync(disk, log)
        check(log, model, NOW + DAY)
        return log, model

    crashes = 0
    for seed in (1, 2):
        index = 0
        while True:
            disk = FaultyMemoryDisk()
            log, model = history(disk, seed)
            sequences = last_sequences(log)
            disk.fail("change", nth=index + 1, times=None)
            now_ms = NOW + 2 * DAY
            try:
                assert clean(disk, log, now_ms) is not None
                break
            except OSError:
                crashes += 1
            recovery_point = log.recovery_point
            if index % 3 == 0:
                disk.kill()
            else:
                disk.crash(SeededRng(index) if index % 3 == 1 else None)
            for again in (False, True):
                log = opened(disk, COMPACTED, recovery_point=0 if again else recovery_point)
                disk.remove(*log.take_deleted(0))
                assert not [name for name in disk.listdir("t-0") if name.endswith((".cleaned", ".swap", ".deleted"))]
                check(log, model, now_ms)
                assert last_sequences(log) == sequences
            assert clean(disk, log, now_ms) is not None
            check(log, model, now_ms)
            index += 1
    assert crashes > 60


class TestWhatStays:
    def test_of_each_key_the_last(self, disk: FaultyMemoryDisk, log: PartitionLog) -> None:
        for n in range(40):
            put(log, b"k%d" % (n % 3), b"v%d" % n)
        log.roll(NOW)
        put(log, b"k0", b"active")
        before = log.size_bytes
        cleaning = clean(disk, log, NOW)
        assert cleaning is not None
        assert sorted(read_all(log).records) == [37, 38, 39, 40]
        assert log.size_bytes == sum(disk.size(f"t-0/{n}") for n in disk.listdir("t-0") if n.endswith(".log")) < before
        assert (cleaning.keys, cleaning.end_offset, log.cleaned_to) == (3, 40, 40)
        assert log.log_start_offset == 0
        assert clean(disk, log, NOW) is None

    def test_the_active_segment_and_open_transactions_are_left_alone(
        self, disk: FaultyMemoryDisk, log: PartitionLog
    ) -> None:
        put(log, b"k", b"1")
        put(log, b"k", b"2")
        assert clean(disk, log, NOW) is None  # only an active segment
        log.roll(NOW)
        append_transactional(log, 5, 0)
        put(log, b"k", b"3")
        log.roll(NOW)
        put(log, b"k", b"4")
        log.roll(NOW)
        assert clean(disk, log, NOW) is not None
        assert log.cleaned_to == 2  # the transaction is open from there on
        assert sorted(read_all(log).records) == [1, 2, 3, 4]
        end_transaction(log, 5)
        log.roll(NOW)
        clean(disk, log, NOW)
        assert sorted(read_all(log).records) == [4]  # the transaction's own record was of the same key

    def test_a_tombstone_goes_after_its_time_and_not_before(self, disk: FaultyMemoryDisk, log: PartitionLog) -> None:
        put(log, b"k", b"1")
        tombstone = put(log, b"k", None)
        put(log, b"other", b"1")
        for later_ms, there in ((0, True), (DAY - 1, True), (DAY, False)):
            put(log, b"other", b"x")
            log.roll(NOW)
            clean(disk, log, NOW + later_ms)
            assert (tombstone in read_all(log).records) is there
        batch = next(iter_batches(log.read(0, 1, end_offset=100).records))[1]
        assert not batch.has_delete_horizon

    def test_the_delete_horizon_stands_in_the_batch(self, disk: FaultyMemoryDisk, log: PartitionLog) -> None:
        append(log, build_batch([NewRecord(b"a", None, NOW), NewRecord(b"b", b"x", NOW + 5)]))
        log.roll(NOW)
        clean(disk, log, NOW + 77)
        _, header = next(iter_batches(log.read(0, 1, end_offset=100).records))
        assert header.has_delete_horizon
        assert (header.base_timestamp, header.max_timestamp) == (NOW + 77 + DAY, NOW + 5)
        assert [fields[2] for fields in read_all(log).records.values()] == [NOW, NOW + 5]

    def test_markers_outlive_their_data_by_the_delete_horizon(self, disk: FaultyMemoryDisk, log: PartitionLog) -> None:
        append_transactional(log, 5, 0, 2)
        aborted = end_transaction(log, 5, commit=False).base_offset
        append_transactional(log, 6, 0)
        committed = end_transaction(log, 6).base_offset
        log.producers.expire(NOW + 2000 * DAY, DAY)  # or their last batches would stay for them
        seen = []
        for day in range(4):
            put(log, b"k", b"%d" % day)
            log.roll(NOW)
            clean(disk, log, NOW + day * DAY)
            seen.append((sorted(read_all(log).records)[:-1], sorted(read_all(log).markers)))
            assert bool(log.aborted_transactions(0, 100)) is (day == 0)
        assert seen == [
            ([], [aborted, committed]),  # the data goes
            ([], [aborted, committed]),  # nothing is there to need the markers: their horizon is set
            ([], []),
            ([], []),
        ]

    def test_an_active_producer_keeps_its_last_batch_without_records(
        self, disk: FaultyMemoryDisk, log: PartitionLog
    ) -> None:
        append(log, idempotent(4, 0, 3))
        append(log, idempotent(4, 3, 2))
        put(log, b"k", b"last")
        put(log, b"end", b"of segment")
        log.roll(NOW)
        clean(disk, log, NOW)
        batches = [header for _, header in iter_batches(log.read(0, 10_000, end_offset=100).records)]
        kept = batches[0]
        assert (kept.producer_id, kept.base_sequence, kept.last_sequence, kept.record_count) == (4, 3, 4, 0)
        assert (kept.base_offset, kept.last_offset) == (3, 4)
        assert append(log, idempotent(4, 3, 2)).duplicate

    def test_the_end_of_a_segment_keeps_its_offset(self, disk: FaultyMemoryDisk, log: PartitionLog) -> None:
        for _ in range(3):
            put(log, b"k", b"x")
        log.roll(NOW)
        put(log, b"k", b"y")
        log.roll(NOW)
        log.reconfigure(replace(COMPACTED, segment_bytes=100))
        clean(disk, log, NOW)
        batches = iter_batches(log.read(0, 100, end_offset=100).records)
        assert [(h.base_offset, h.record_count, h.max_timestamp) for _, h in batches] == [(2, 0, -1)]
        assert list(read_all(log).records) == [3]

    def test_records_without_a_key_go(self, disk: FaultyMemoryDisk) -> None:
        """They are from before the topic was compacted."""
        log = open_log(disk, replace(COMPACTED, cleanup_policy=frozenset({"delete"})))
        append(log, build_batch([NewRecord(None, b"x", NOW), NewRecord(b"k", b"y", NOW)]))
        log.roll(NOW)
        log.reconfigure(COMPACTED)
        clean(disk, log, NOW)
        assert list(read_all(log).records) == [1]

    def test_when_it_is_over_it_is_durable(self, disk: FaultyMemoryDisk, log: PartitionLog) -> None:
        """Or the next cleaning would take old values for cleaned ones, and drop a tombstone that stands against them."""
        for n in range(40):
            put(log, b"k%d" % (n % 3), b"v%d" % n)
        log.roll(NOW)
        clean(disk, log, NOW)
        snapshots = {f"{segment.base_offset:020d}.snapshot" for segment in log.segments if segment.base_offset}
        disk.crash()
        again = open_log(disk, COMPACTED, recovery_point=log.recovery_point)
        assert sorted(read_all(again).records) == [37, 38, 39]
        assert snapshots <= set(disk.listdir("t-0"))
