"""Space that is reserved for a large batch before its append."""

from __future__ import annotations

from dataclasses import replace

import pytest

from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, decode_records
from barnabas.storage.inspection import Inspection
from barnabas.storage.partition_log import RESERVED_BYTES_MIN, PartitionLog
from barnabas.testing.world.disks import FaultyMemoryDisk
from barnabas.work import Steps, finished
from tests.support.rng import SeededRng
from tests.support.storage.batches import CONFIG, NOW, append, idempotent, open_log, plain, small_segments
from tests.support.storage.reading import values

LARGE = build_batch([NewRecord(None, bytes(RESERVED_BYTES_MIN), NOW)])
LARGE_BATCHES = replace(CONFIG, max_message_bytes=len(LARGE))
LOG = "t-0/00000000000000000000.log"


@pytest.fixture
def log(disk: FaultyMemoryDisk) -> PartitionLog:
    return open_log(disk, LARGE_BATCHES)


def reserving(log: PartitionLog) -> Steps[None]:
    return log.reserve(len(LARGE), NOW, NOW)


def append_large(log: PartitionLog) -> None:
    inspection = Inspection(bytearray(LARGE), log.config, NOW)
    inspection.run()
    log.append_as_leader(inspection, leader_epoch=0, now_ms=NOW)


def half_reserved(log: PartitionLog) -> Steps[None]:
    work = reserving(log)
    for _ in range(4):
        next(work)
    return work


def test_the_append_writes_over_zeros(disk: FaultyMemoryDisk, log: PartitionLog) -> None:
    append(log, plain(3))
    finished(reserving(log))
    end = log.size_bytes
    assert disk.size(LOG) == end + len(LARGE)
    assert not any(disk.read(LOG)[end:])
    append_large(log)
    assert disk.size(LOG) == log.size_bytes
    assert values(log) == [0, 1, 2, 3]


def test_a_slice_is_short(disk: FaultyMemoryDisk, log: PartitionLog) -> None:
    sizes = [disk.size(LOG) for _ in reserving(log)]
    assert max(after - before for before, after in zip([0, *sizes], sizes, strict=False)) <= 1024 * 1024


def test_a_short_batch_needs_no_space(disk: FaultyMemoryDisk, log: PartitionLog) -> None:
    finished(log.reserve(RESERVED_BYTES_MIN, NOW, NOW))
    assert disk.size(LOG) == 0


def test_batches_that_are_appended_meanwhile_stay(disk: FaultyMemoryDisk, log: PartitionLog) -> None:
    work = half_reserved(log)
    for number in range(5):
        append(log, build_batch([NewRecord(None, bytes([number + 1]) * 1_000_000, NOW)]))
    finished(work)
    append_large(log)
    for number in range(5):
        [record] = decode_records(log.read(number, 1, end_offset=6).records)
        assert record.value == bytes([number + 1]) * 1_000_000
    assert disk.size(LOG) == log.size_bytes
    log.close()
    assert values(open_log(disk, clean=True)) == list(range(6))


def test_a_truncation_ends_the_reservation(disk: FaultyMemoryDisk, log: PartitionLog) -> None:
    append(log, plain(3))
    append(log, plain(3))
    work = half_reserved(log)
    log.truncate_to(3)
    finished(work)
    assert disk.size(LOG) == log.size_bytes
    assert values(log) == [0, 1, 2]


def test_a_new_segment_ends_the_reservation(disk: FaultyMemoryDisk, log: PartitionLog) -> None:
    append(log, plain(3))
    work = half_reserved(log)
    size = log.size_bytes
    log.roll(NOW)
    finished(work)
    assert disk.size(LOG) == size


def test_a_clean_stop_ends_the_reservation(disk: FaultyMemoryDisk, log: PartitionLog) -> None:
    append(log, plain(3))
    log.close()
    log = open_log(disk, clean=True)
    work = half_reserved(log)
    log.prepare_close()
    finished(work)
    assert disk.size(LOG) == log.size_bytes
    log.close()
    assert values(open_log(disk, clean=True)) == [0, 1, 2]


def test_a_reservation_never_writes_to_the_next_log_of_that_folder(disk: FaultyMemoryDisk, log: PartitionLog) -> None:
    work = half_reserved(log)
    log.rename("t-0.deleted-delete")
    following = open_log(disk)
    append(following, plain(3))
    with pytest.raises(OSError, match="closed"):
        finished(work)
    assert disk.size(LOG) == following.size_bytes


def test_a_full_segment_is_rolled_first(disk: FaultyMemoryDisk) -> None:
    log = open_log(disk, small_segments(len(LARGE) + 100, max_message_bytes=len(LARGE)))
    append(log, plain(3))
    append(log, plain(3))
    finished(reserving(log))
    assert disk.size("t-0/00000000000000000006.log") == len(LARGE)
    append_large(log)
    assert log.segments.active.base_offset == 6
    assert values(log) == list(range(7))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("appended", [0, 2])
def test_a_crash_during_the_reservation(seed: int, appended: int) -> None:
    """Records of the large batch that look like batches are never in the file before the batch itself."""
    disk = FaultyMemoryDisk()
    log = open_log(disk)
    append(log, plain(3))
    disk.sync_now(log.unsynced_files())
    half_reserved(log)
    for number in range(appended):
        append(log, idempotent(7, number))
    if seed % 2:
        disk.crash(SeededRng(seed))
    else:
        disk.kill()
    again = open_log(disk, CONFIG)
    assert values(again)[:3] == [0, 1, 2]
    assert again.log_end_offset <= 3 + appended
    if not seed % 2:
        assert again.log_end_offset == 3 + appended
    append(again, plain(1))
    assert disk.size(LOG) == again.size_bytes
