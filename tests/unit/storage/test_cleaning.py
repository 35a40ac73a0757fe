"""The cleaner against a model: after any history of appends, transactions, cleanings, stops and crashes a reader finds what it must."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from barnabas.protocol.compression import Compression
from barnabas.protocol.records import NewRecord, build_batch, decode_records, iter_batches
from barnabas.storage.cleanable import assess, group_segments
from barnabas.storage.cleaning import Cleaning, CleaningAborted, CorruptSegment
from barnabas.storage.compaction import OffsetMap
from barnabas.storage.disk import MemoryDisk
from barnabas.storage.inspection import Inspection
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.steps import DECODED_RECORDS
from barnabas.work import finished
from tests.support.rng import SeededRng
from tests.support.storage.batches import (
    NOW,
    append,
    append_transactional,
    end_transaction,
    idempotent,
    open_log,
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
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def log(disk: MemoryDisk) -> PartitionLog:
    return open_log(disk, COMPACTED)


def put(log: PartitionLog, key: bytes, value: bytes | None, *, timestamp: int = NOW) -> int:
    return append(log, build_batch([NewRecord(key, value, timestamp)]), now_ms=timestamp).base_offset


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


def without_snapshots(disk: MemoryDisk) -> None:
    for name in disk.listdir("t-0"):
        if name.endswith(".snapshot"):
            disk.remove(f"t-0/{name}")


@pytest.mark.parametrize("block", range(6))
def test_whatever_happens_a_reader_finds_what_it_must(block: int) -> None:
    for seed in range(block * 12, block * 12 + 12):
        rng = random.Random(seed)
        disk = MemoryDisk()
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
            other = MemoryDisk()
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

    def history(disk: MemoryDisk, seed: int) -> tuple[PartitionLog, Model]:
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
            disk = MemoryDisk()
            log, model = history(disk, seed)
            sequences = last_sequences(log)
            disk.fail(("pwrite", "truncate", "create", "rename", "remove", "sync"), after=index, times=None)
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
    def test_of_each_key_the_last(self, disk: MemoryDisk, log: PartitionLog) -> None:
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

    def test_the_active_segment_and_open_transactions_are_left_alone(self, disk: MemoryDisk, log: PartitionLog) -> None:
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

    def test_a_tombstone_goes_after_its_time_and_not_before(self, disk: MemoryDisk, log: PartitionLog) -> None:
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

    def test_the_delete_horizon_stands_in_the_batch(self, disk: MemoryDisk, log: PartitionLog) -> None:
        append(log, build_batch([NewRecord(b"a", None, NOW), NewRecord(b"b", b"x", NOW + 5)]))
        log.roll(NOW)
        clean(disk, log, NOW + 77)
        _, header = next(iter_batches(log.read(0, 1, end_offset=100).records))
        assert header.has_delete_horizon
        assert (header.base_timestamp, header.max_timestamp) == (NOW + 77 + DAY, NOW + 5)
        assert [fields[2] for fields in read_all(log).records.values()] == [NOW, NOW + 5]

    def test_markers_outlive_their_data_by_the_delete_horizon(self, disk: MemoryDisk, log: PartitionLog) -> None:
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

    def test_an_active_producer_keeps_its_last_batch_without_records(self, disk: MemoryDisk, log: PartitionLog) -> None:
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

    def test_the_end_of_a_segment_keeps_its_offset(self, disk: MemoryDisk, log: PartitionLog) -> None:
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

    def test_records_without_a_key_go(self, disk: MemoryDisk) -> None:
        """They are from before the topic was compacted."""
        log = open_log(disk, replace(COMPACTED, cleanup_policy=frozenset({"delete"})))
        append(log, build_batch([NewRecord(None, b"x", NOW), NewRecord(b"k", b"y", NOW)]))
        log.roll(NOW)
        log.reconfigure(COMPACTED)
        clean(disk, log, NOW)
        assert list(read_all(log).records) == [1]

    def test_when_it_is_over_it_is_durable(self, disk: MemoryDisk, log: PartitionLog) -> None:
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


class TestWhatIsCleaned:
    def test_a_full_map_cleans_as_far_as_it_reaches(self, disk: MemoryDisk, log: PartitionLog) -> None:
        for n in range(60):
            put(log, b"k%d" % (n % 20), b"v%d" % n)
        log.roll(NOW)
        ends = []
        while clean(disk, log, NOW, map_bytes_max=1000) is not None:
            ends.append(log.cleaned_to)
        assert ends == sorted(ends)
        assert len(ends) > 3
        assert ends[-1] == 60
        assert sorted(read_all(log).records)[-20:] == list(range(40, 60))

    def test_small_segments_become_one(self, disk: MemoryDisk, log: PartitionLog) -> None:
        for n in range(40):
            put(log, b"k%d" % n, b"v")
        log.roll(NOW)
        bases = {segment.base_offset for segment in log.segments}
        for _ in range(12):
            for n in range(20):
                put(log, b"k%d" % n, b"w")
            log.roll(NOW)
            bases.update(segment.base_offset for segment in log.segments)
            clean(disk, log, NOW)
        assert len(log.segments) < 15 < 30 < len(bases)

    @pytest.mark.parametrize(("lag_ms", "kept"), [(0, [9, 10]), (500, [5, 6, 7, 8, 9, 10])])
    def test_min_compaction_lag(self, disk: MemoryDisk, lag_ms: int, kept: list[int]) -> None:
        log = open_log(disk, replace(COMPACTED, min_compaction_lag_ms=lag_ms))
        for n in range(10):
            put(log, b"k", b"%d" % n, timestamp=NOW + n * 100)
            log.roll(NOW)
        put(log, b"k", b"x", timestamp=NOW + 1000)
        clean(disk, log, NOW + 1000)
        assert [offset for offset in read_all(log).records if offset >= 5] == kept

    def test_max_compaction_lag_overrules_the_dirty_ratio(self, disk: MemoryDisk) -> None:
        log = open_log(disk, replace(COMPACTED, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000))
        put(log, b"k", b"1")
        put(log, b"k", b"2", timestamp=NOW + 1001)  # it is too young for the first one's segment
        assert len(log.segments) == 2
        assert clean(disk, log, NOW + 1000) is None
        assert clean(disk, log, NOW + 1001) is not None

    def test_the_dirty_ratio_decides(self, disk: MemoryDisk) -> None:
        log = open_log(disk, replace(COMPACTED, min_cleanable_dirty_ratio=0.5))
        for n in range(20):
            put(log, b"k%d" % n, b"v")
        log.roll(NOW)
        assert clean(disk, log, NOW) is not None
        for n in range(10):
            put(log, b"k%d" % n, b"w")
        log.roll(NOW)
        assert clean(disk, log, NOW) is None
        for n in range(12):
            put(log, b"k%d" % n, b"x")
        log.roll(NOW)
        assert clean(disk, log, NOW) is not None

    def test_groups_are_bounded_in_bytes_and_offsets(self, disk: MemoryDisk, log: PartitionLog) -> None:
        bases = [0, 100, 2**31 - 1, 2**31, 2**32]
        segments = []
        for base in bases:
            segment = opened(disk, COMPACTED).segments.active
            segment.base_offset, segment.size = base, 100
            segments.append(segment)
        found = group_segments(segments, 250, 2**32 + 5)
        assert [[segment.base_offset for segment in group] for group in found] == [
            [0, 100],
            [2**31 - 1],
            [2**31],
            [2**32],
        ]
        found = group_segments(segments, 10**9, 2**32 + 5)
        assert [[segment.base_offset for segment in group] for group in found] == [
            [0, 100, 2**31 - 1],
            [2**31],
            [2**32],
        ]


def test_retention_and_compaction_together(disk: MemoryDisk) -> None:
    log = open_log(
        disk, replace(COMPACTED, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=1000, segment_bytes=150)
    )
    for n in range(6):
        put(log, b"k%d" % (n % 2), b"%d" % n, timestamp=NOW + n * 300)
        if n % 2:
            log.roll(NOW)
    put(log, b"k0", b"6", timestamp=NOW + 1800)
    clean(disk, log, NOW + 1900)
    assert sorted(read_all(log).records) == [4, 5, 6]
    assert log.log_start_offset == 0
    # What is left of the first two, by its time or for want of one.
    assert log.apply_retention(NOW + 2400, log.log_end_offset) == 2
    assert log.log_start_offset == 4
    log.roll(NOW)
    clean(disk, log, NOW + 2400)
    assert sorted(read_all(log).records) == [5, 6]
    assert log.apply_retention(NOW + 9000, log.log_end_offset) == len(log.segments) + 1
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)


class TestInterference:
    def begun(self, disk: MemoryDisk, log: PartitionLog) -> Cleaning:
        for n in range(40):
            put(log, b"k%d" % (n % 3), b"v%d" % n)
        log.roll(NOW)
        sync(disk, log)
        cleanable = assess(
            log.segments.all,
            log.config,
            cleaned_to=0,
            log_start_offset=0,
            last_stable_offset=log.log_end_offset,
            now_ms=NOW,
        )
        return Cleaning(disk, log, cleanable, now_ms=NOW, map_bytes_max=10**6)

    @pytest.mark.parametrize("what", ["truncated", "truncated fully", "retention", "configured otherwise"])
    def test_a_log_that_changes_is_left(self, disk: MemoryDisk, log: PartitionLog, what: str) -> None:
        steps = self.begun(disk, log).steps()
        next(steps)
        if what == "truncated":
            log.truncate_to(30)
        elif what == "truncated fully":
            log.truncate_fully_and_start_at(50)
        elif what == "retention":
            log.delete_records_before(20)
            assert log.apply_retention(NOW, 40)
        else:
            log.reconfigure(replace(COMPACTED, cleanup_policy=frozenset({"delete"})))
        before = disk.listdir("t-0")
        with pytest.raises(CleaningAborted):
            list(steps)
        assert disk.listdir("t-0") == [name for name in before if not name.endswith(".cleaned")]
        assert log.cleaned_to <= 20

    def test_appends_go_on_meanwhile(self, disk: MemoryDisk, log: PartitionLog) -> None:
        for n, step in enumerate(self.begun(disk, log).steps()):
            if step.files:
                disk.sync_now(step.files)
            put(log, b"k%d" % (n % 3), b"new")
        found = sorted(read_all(log).records)
        assert [offset for offset in found if offset < 40] == [37, 38, 39]
        assert found[3] == 40

    def test_a_damaged_segment_is_left_as_it_is(self, disk: MemoryDisk, log: PartitionLog) -> None:
        cleaning = self.begun(disk, log)
        name = f"t-0/{log.segments.first.base_offset:020d}.log"
        disk.open(name).pwrite(b"\xff", 100)
        before = disk.read(name)
        with pytest.raises(CorruptSegment):
            list(cleaning.steps())
        assert disk.read(name) == before
        assert not [name for name in disk.listdir("t-0") if name.endswith(".cleaned")]

    def test_truncation_takes_back_what_was_cleaned(self, disk: MemoryDisk, log: PartitionLog) -> None:
        for step in self.begun(disk, log).steps():
            disk.sync_now(step.files)
        assert log.cleaned_to == 40
        log.truncate_to(20)
        assert log.cleaned_to <= 20


def test_what_the_map_says_of_records_above_it() -> None:
    offsets = OffsetMap(1000)
    for n in range(10):
        assert not offsets.is_full
        offsets.put(b"key of ten", n)
    for n in range(6):
        offsets.put(b"%10d" % n, 10 + n)
    assert offsets.is_full
    assert len(offsets) == 7


class TestKafkasLeavings:
    """Directories as Kafka leaves them when it dies in the middle of a swap."""

    def prepared(self, disk: MemoryDisk) -> tuple[Model, list[str]]:
        rng = random.Random(3)
        log = opened(disk, COMPACTED)
        model = Model()
        for _ in range(80):
            write_something(rng, log, model, NOW)
        log.roll(NOW)
        sync(disk, log)
        log.close()
        return model, [name for name in disk.listdir("t-0") if name.endswith(".log")]

    def test_a_kill_while_it_is_dropped_changes_nothing(self, disk: MemoryDisk) -> None:
        model, logs = self.prepared(disk)
        index = 0
        while True:
            for kind in (".log", ".index", ".timeindex"):
                disk.replace(f"t-0/{logs[0][:20]}{kind}" + (".cleaned" if kind == ".index" else ".swap"), b"")
            disk.fail(("remove", "rename"), after=index, times=None)
            try:
                opened(disk, COMPACTED)
            except OSError:
                disk.kill()
                check(opened(disk, COMPACTED), model, NOW)
                index += 1
                continue
            break
        assert index >= 3

    @pytest.mark.parametrize("cleaned", [".index", ".log", ".txnindex"])
    def test_a_swap_that_is_not_whole_is_dropped(self, disk: MemoryDisk, cleaned: str) -> None:
        model, logs = self.prepared(disk)
        first = logs[0][:20]
        for kind in (".log", ".index", ".timeindex", ".txnindex"):
            disk.replace(f"t-0/{first}{kind}" + (".cleaned" if kind == cleaned else ".swap"), b"")
        log = opened(disk, COMPACTED)
        check(log, model, NOW)
        assert [name for name in disk.listdir("t-0") if name.endswith(".log")] == logs

    def test_a_whole_one_takes_its_place(self, disk: MemoryDisk) -> None:
        model, _ = self.prepared(disk)
        log = opened(disk, COMPACTED, clean=True)
        clean(disk, log, NOW)
        kinds = (".log", ".index", ".timeindex", ".txnindex")
        first = f"{0:020d}"
        new = {kind: disk.read(f"t-0/{first}{kind}") for kind in kinds if disk.exists(f"t-0/{first}{kind}")}
        other = MemoryDisk()
        self.prepared(other)
        for kind, data in new.items():
            other.replace(f"t-0/{first}{kind}.swap", data)
        log = opened(other, COMPACTED, clean=True)
        check(log, model, NOW)
        assert other.read(f"t-0/{first}.log") == new[".log"]


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("tombstones", [False, True])
def test_a_batch_of_many_records_is_cleaned_in_steps(disk: MemoryDisk, compression: int, tombstones: bool) -> None:
    """Each step decodes a few thousand records; what is long to compress is work for a thread."""
    log = open_log(disk, replace(COMPACTED, segment_bytes=1 << 20))
    count = 3 * DECODED_RECORDS + 5
    value = bytes(80)
    rows = [
        NewRecord(b"%d" % (n % (count - 10)), None if tombstones and n % 7 == 0 else value, NOW + n)
        for n in range(count)
    ]
    inspection = Inspection(build_batch(rows, compression=compression), log.config, NOW)
    finished(inspection.steps())
    log.append_as_leader(inspection, leader_epoch=0, now_ms=NOW)
    log.roll(NOW)
    put(log, b"last", b"v")
    sync(disk, log)
    cleanable = assess(
        log.segments.all,
        log.config,
        cleaned_to=0,
        log_start_offset=0,
        last_stable_offset=log.log_end_offset,
        now_ms=NOW + DAY,
    )
    taken = works = 0
    for step in Cleaning(disk, log, cleanable, now_ms=NOW + DAY, map_bytes_max=10**7).steps():
        taken += 1
        if step.files:
            disk.sync_now(step.files)
        if step.work is not None:
            works += 1
            step.work()
    assert taken > 8
    assert works == (0 if compression == Compression.NONE else 3)  # unpacked twice, packed once
    found = log.read(0, 10**8, end_offset=count)
    (batch,) = [header for _, header in iter_batches(found.records)]
    records = decode_records(found.records)
    assert [record.offset for record in records] == list(range(10, count))
    assert [(record.key, record.value, record.timestamp) for record in records] == [row[:3] for row in rows[10:]]
    assert batch.has_delete_horizon == tombstones
    assert batch.compression == compression
