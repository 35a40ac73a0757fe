"""What the cleaner chooses, and what may happen while it cleans."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from barnabas.protocol.compression import Compression
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, decode_records, iter_batches
from barnabas.storage.cleanable import assess, group_segments
from barnabas.storage.cleaning import Cleaning, CleaningAborted, CorruptSegment
from barnabas.storage.compaction import OffsetMap
from barnabas.storage.inspection import Inspection
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.steps import DECODED_RECORDS
from barnabas.testing.world.disks import FaultyMemoryDisk
from tests.support.storage.batches import (
    NOW,
    open_log,
    put,
)
from tests.support.storage.histories import (
    COMPACTED,
    DAY,
    Model,
    check,
    clean,
    opened,
    read_all,
    sync,
    write_something,
)


@pytest.fixture
def log(disk: FaultyMemoryDisk) -> PartitionLog:
    return open_log(disk, COMPACTED)


class TestWhatIsCleaned:
    def test_a_full_map_cleans_as_far_as_it_reaches(self, disk: FaultyMemoryDisk, log: PartitionLog) -> None:
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

    def test_small_segments_become_one(self, disk: FaultyMemoryDisk, log: PartitionLog) -> None:
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
    def test_min_compaction_lag(self, disk: FaultyMemoryDisk, lag_ms: int, kept: list[int]) -> None:
        log = open_log(disk, replace(COMPACTED, min_compaction_lag_ms=lag_ms))
        for n in range(10):
            put(log, b"k", b"%d" % n, timestamp=NOW + n * 100)
            log.roll(NOW)
        put(log, b"k", b"x", timestamp=NOW + 1000)
        clean(disk, log, NOW + 1000)
        assert [offset for offset in read_all(log).records if offset >= 5] == kept

    def test_max_compaction_lag_overrules_the_dirty_ratio(self, disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, replace(COMPACTED, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000))
        put(log, b"k", b"1")
        put(log, b"k", b"2", timestamp=NOW + 1001)  # it is too young for the first one's segment
        assert len(log.segments) == 2
        assert clean(disk, log, NOW + 1000) is None
        assert clean(disk, log, NOW + 1001) is not None

    def test_the_dirty_ratio_decides(self, disk: FaultyMemoryDisk) -> None:
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

    def test_groups_are_bounded_in_bytes_and_offsets(self, disk: FaultyMemoryDisk, log: PartitionLog) -> None:
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


def test_retention_and_compaction_together(disk: FaultyMemoryDisk) -> None:
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
    def begun(self, disk: FaultyMemoryDisk, log: PartitionLog) -> Cleaning:
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
    def test_a_log_that_changes_is_left(self, disk: FaultyMemoryDisk, log: PartitionLog, what: str) -> None:
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

    def test_appends_go_on_meanwhile(self, disk: FaultyMemoryDisk, log: PartitionLog) -> None:
        for n, step in enumerate(self.begun(disk, log).steps()):
            if step.files:
                disk.sync_now(step.files)
            put(log, b"k%d" % (n % 3), b"new")
        found = sorted(read_all(log).records)
        assert [offset for offset in found if offset < 40] == [37, 38, 39]
        assert found[3] == 40

    def test_a_damaged_segment_is_left_as_it_is(self, disk: FaultyMemoryDisk, log: PartitionLog) -> None:
        cleaning = self.begun(disk, log)
        name = f"t-0/{log.segments.first.base_offset:020d}.log"
        disk.open(name).pwrite(b"\xff", 100)
        before = disk.read(name)
        with pytest.raises(CorruptSegment):
            list(cleaning.steps())
        assert disk.read(name) == before
        assert not [name for name in disk.listdir("t-0") if name.endswith(".cleaned")]

    def test_truncation_takes_back_what_was_cleaned(self, disk: FaultyMemoryDisk, log: PartitionLog) -> None:
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

    def prepared(self, disk: FaultyMemoryDisk) -> tuple[Model, list[str]]:
        rng = random.Random(3)
        log = opened(disk, COMPACTED)
        model = Model()
        for _ in range(80):
            write_something(rng, log, model, NOW)
        log.roll(NOW)
        sync(disk, log)
        log.close()
        return model, [name for name in disk.listdir("t-0") if name.endswith(".log")]

    def test_a_kill_while_it_is_dropped_changes_nothing(self, disk: FaultyMemoryDisk) -> None:
        model, logs = self.prepared(disk)
        index = 0
        while True:
            for kind in (".log", ".index", ".timeindex"):
                disk.replace(f"t-0/{logs[0][:20]}{kind}" + (".cleaned" if kind == ".index" else ".swap"), b"")
            disk.fail("remove", "rename", nth=index + 1, times=None)
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
    def test_a_swap_that_is_not_whole_is_dropped(self, disk: FaultyMemoryDisk, cleaned: str) -> None:
        model, logs = self.prepared(disk)
        first = logs[0][:20]
        for kind in (".log", ".index", ".timeindex", ".txnindex"):
            disk.replace(f"t-0/{first}{kind}" + (".cleaned" if kind == cleaned else ".swap"), b"")
        log = opened(disk, COMPACTED)
        check(log, model, NOW)
        assert [name for name in disk.listdir("t-0") if name.endswith(".log")] == logs

    def test_a_whole_one_takes_its_place(self, disk: FaultyMemoryDisk) -> None:
        model, _ = self.prepared(disk)
        log = opened(disk, COMPACTED, clean=True)
        clean(disk, log, NOW)
        kinds = (".log", ".index", ".timeindex", ".txnindex")
        first = f"{0:020d}"
        new = {kind: disk.read(f"t-0/{first}{kind}") for kind in kinds if disk.exists(f"t-0/{first}{kind}")}
        other = FaultyMemoryDisk()
        self.prepared(other)
        for kind, data in new.items():
            other.replace(f"t-0/{first}{kind}.swap", data)
        log = opened(other, COMPACTED, clean=True)
        check(log, model, NOW)
        assert other.read(f"t-0/{first}.log") == new[".log"]


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("tombstones", [False, True])
def test_a_batch_of_many_records_is_cleaned_in_steps(
    disk: FaultyMemoryDisk, compression: int, tombstones: bool
) -> None:
    """Each step decodes a few thousand records; what is long to compress is work for a thread."""
    log = open_log(disk, replace(COMPACTED, segment_bytes=1 << 20))
    count = 3 * DECODED_RECORDS + 5
    value = bytes(80)
    rows = [
        NewRecord(b"%d" % (n % (count - 10)), None if tombstones and n % 7 == 0 else value, NOW + n)
        for n in range(count)
    ]
    inspection = Inspection(build_batch(rows, compression=compression), log.config, NOW)
    inspection.run()
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
