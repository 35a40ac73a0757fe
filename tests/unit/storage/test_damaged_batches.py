"""Batches that were damaged on the disk: a reader gets CORRUPT_MESSAGE, the process logs it once, and nothing is skipped."""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import Callable

import pytest

from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.compression import Compression
from barnabas.protocol.records import read_header
from barnabas.storage.disk import MemoryDisk
from barnabas.storage.log_config import LogConfig
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.saved_state import read_state
from barnabas.work import finished
from tests.support.storage.batches import CONFIG, NOW, append, open_log, plain, small_segments
from tests.support.storage.damage import ALL_DAMAGE, HEADER_DAMAGE, RECORDS, Damage

BATCHES = 12
END = BATCHES * RECORDS
DAMAGED = 5  # number of the batch


def damaged_log(damage: Damage, config: LogConfig = CONFIG, codec: int = 0) -> PartitionLog:
    """A log that was stopped cleanly before one of its batches was damaged; its last segment is whole."""
    disk = MemoryDisk()
    log = open_log(disk, config)
    for number in range(BATCHES):
        append(log, plain(RECORDS, timestamp=NOW + 100 * number, compression=codec))
    log.roll(NOW)
    append(log, plain(RECORDS, timestamp=NOW + 100 * BATCHES))
    log.close()
    file = disk.open("t-0/00000000000000000000.log")
    position = 0
    for _ in range(DAMAGED):
        position += read_header(file.pread(61, position)).size_bytes
    batch = bytearray(file.pread(read_header(file.pread(61, position)).size_bytes, position))
    damage(batch)
    file.pwrite(bytes(batch), position)
    file.close()
    return open_log(disk, config, clean=True)


def read_on(log: PartitionLog, offset: int, max_bytes: int = 300) -> int:
    """Reads up to the end or the first refusal; each read goes on or is refused. Returns where that was."""
    while offset < log.log_end_offset:
        found = log.read(offset, max_bytes, end_offset=log.log_end_offset)
        assert found.records
        assert found.next_offset > offset
        offset = found.next_offset
    return offset


@pytest.mark.parametrize("name", HEADER_DAMAGE)
@pytest.mark.parametrize("max_bytes", [1, 300, 10**6])
def test_a_damaged_header_is_refused_once_it_is_reached(
    name: str, max_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = damaged_log(HEADER_DAMAGE[name])
    for _ in range(3):
        offset = 0
        while offset < DAMAGED * RECORDS:
            offset = log.read(offset, max_bytes, end_offset=END).next_offset
        assert offset == DAMAGED * RECORDS
        with pytest.raises(BrokerError) as refused:
            log.read(offset, max_bytes, end_offset=END)
        assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    assert read_on(log, END) == END + RECORDS
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("name", ALL_DAMAGE)
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_a_search_by_time_is_refused_where_it_meets_the_batch(
    name: str, codec: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = damaged_log(ALL_DAMAGE[name], codec=codec)
    for _ in range(3):
        with pytest.raises(BrokerError) as refused:
            finished(log.offset_for_timestamp(NOW + 100 * DAMAGED + 2, end_offset=END + RECORDS))
        assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
        before = finished(log.offset_for_timestamp(NOW + 100, end_offset=END + RECORDS))
        assert before is not None
        assert before.offset == RECORDS
        after = finished(log.max_timestamp_offset(END + RECORDS))
        assert after is not None
        assert after.offset == END + RECORDS - 1
    assert len(caplog.records) <= 1


def test_any_damage_to_a_segment_ends_in_a_refusal_or_at_the_end() -> None:
    """Never an endless read, never an error of another kind."""
    for seed in range(300):
        rng = random.Random(seed)

        def damage(batch: bytearray, rng: random.Random = rng) -> None:
            for _ in range(rng.randrange(1, 4)):
                batch[rng.randrange(len(batch))] = rng.randrange(256)

        log = damaged_log(damage, small_segments(10_000), rng.choice([0, 1, 2, 3, 4]))
        for work in (
            lambda log=log, rng=rng: read_on(log, rng.randrange(END), rng.choice([1, 200, 10**6])),
            lambda log=log, rng=rng: finished(log.offset_for_timestamp(NOW + rng.randrange(1_300), end_offset=END)),
            lambda log=log: finished(log.max_timestamp_offset(END)),
            lambda log=log: log.apply_retention(NOW, END),
            lambda log=log: log.truncate_to(END - 4),
        ):
            assert refusal(work) in (None, ErrorCode.CORRUPT_MESSAGE), seed


def refusal(work: Callable[[], object]) -> ErrorCode | None:
    try:
        work()
    except BrokerError as error:
        return error.code
    return None


@pytest.mark.parametrize("name", HEADER_DAMAGE)
@pytest.mark.parametrize("number", [1, 4, 5, BATCHES - 2])
def test_a_cut_behind_damage_ends_before_the_damage(name: str, number: int) -> None:
    """An index entry may name the damaged batch: the log goes on where its last whole batch ends."""
    disk = MemoryDisk()
    log = open_log(disk, dataclasses.replace(CONFIG, index_interval_bytes=1))
    starts = []
    for each in range(BATCHES):
        starts.append(log.segments.active.size)
        append(log, plain(RECORDS, timestamp=NOW + 100 * each))
    file = log.segments.active.file
    batch = bytearray(file.pread(starts[number + 1] - starts[number], starts[number]))
    HEADER_DAMAGE[name](batch)
    file.pwrite(bytes(batch), starts[number])
    log.truncate_to((number + 1) * RECORDS)
    assert (log.log_end_offset, log.segments.active.size) == (number * RECORDS, starts[number])
    log.save_state()
    again = plain(RECORDS, timestamp=NOW + 100 * number)
    append(log, again)
    assert read_on(log, 0) == (number + 1) * RECORDS
    found = finished(log.offset_for_timestamp(NOW + 100 * number, end_offset=END))
    assert found is not None
    assert found.offset == number * RECORDS


def test_nothing_is_cut_where_the_transaction_index_is_damaged() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for _ in range(2):
        for _ in range(BATCHES):
            append(log, plain(RECORDS))
        log.roll(NOW)
    log.close()
    log = open_log(disk, clean=True)
    disk.replace("t-0/00000000000000000000.txnindex", b"\x7f" * 34)
    assert refusal(lambda: log.truncate_to(END - 1)) is ErrorCode.CORRUPT_MESSAGE
    assert log.log_end_offset == 2 * END
    assert read_on(log, 0) == 2 * END


def test_no_state_is_saved_where_damage_hides_the_last_batch() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    for _ in range(2 * BATCHES):
        append(log, plain(RECORDS))
    log.segments.active.file.pwrite(b"\x07", 16)
    log.segments.active.rebuild_indexes()  # as a search does that finds an index wrong
    log.save_state()
    disk.sync_now(log.unsynced_files())
    log.mark_synced(log.log_end_offset)
    assert not read_state(disk, "t-0", disk.listdir("t-0"))
