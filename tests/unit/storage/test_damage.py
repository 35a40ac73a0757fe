"""Random damage to a partition's files: opening it never fails, and what it then shows is a true part of what was written."""

from __future__ import annotations

import random

import pytest

from barnabas.protocol.records import decode_records, iter_batches
from barnabas.storage.partition_log import PartitionLog
from barnabas.testing.world.disks import FaultyMemoryDisk
from tests.support.storage.batches import append, forget_states, open_log, plain, small_segments
from tests.support.storage.described import SMALL, described, written


def contents(log: PartitionLog) -> dict[int, bytes]:
    """Offset to record value, over all that can be read."""
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        got = log.read(offset, 1000, end_offset=log.log_end_offset)
        if not got.records:
            break
        for position, header in iter_batches(got.records):
            for record in decode_records(got.records, position, header):
                if record.offset >= log.log_start_offset:
                    found[record.offset] = record.value or b""
        offset = got.next_offset
    return found


def damage(disk: FaultyMemoryDisk, rng: random.Random, suffixes: tuple[str, ...]) -> None:
    names = [name for name in disk.listdir("t-0") if name.endswith(suffixes) and disk.size(f"t-0/{name}")]
    if not names:
        return
    file = disk.open(f"t-0/{rng.choice(names)}")
    size = file.size()
    kind = rng.randrange(5)
    position = rng.randrange(size)
    if kind == 0:
        file.truncate(position)
    elif kind == 1:
        file.pwrite(rng.randbytes(rng.randrange(1, 100)), position)
    elif kind == 2:
        file.pwrite(bytes(rng.randrange(1, 300)), position)
    elif kind == 3:
        file.pwrite(rng.randbytes(rng.randrange(1, 300)), size)
    else:
        byte = file.pread(1, position)[0]
        file.pwrite(bytes([byte ^ (1 << rng.randrange(8))]), position)


@pytest.mark.parametrize("clean", [False, True])
def test_helpers_may_be_damaged_in_any_way(clean: bool) -> None:
    for seed in range(150):
        rng = random.Random(seed)
        disk = FaultyMemoryDisk()
        log = written(disk)
        log.close()
        before = contents(log)
        for _ in range(rng.randrange(1, 4)):
            damage(disk, rng, (".index", ".timeindex", ".txnindex", ".snapshot", "checkpoint"))
        again = open_log(disk, SMALL, clean=clean)
        assert contents(again) == before, seed
        assert again.log_end_offset == log.log_end_offset
        append(again, plain(2), leader_epoch=9)
        again.close()


def test_segments_may_be_damaged_in_any_way() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        disk = FaultyMemoryDisk()
        log = written(disk)
        if rng.random() < 0.5:
            log.close()
        before = contents(log)
        disk.kill()
        forget_states(disk)  # else what is below is believed
        for _ in range(rng.randrange(1, 3)):
            damage(disk, rng, (".log",))
        again = open_log(disk, SMALL)
        after = contents(again)
        # A base offset lies outside its batch's checksum: one that was raised moves the rest up and shows no false value below.
        common = {offset: value for offset, value in after.items() if offset in before}
        wrong = [offset for offset, value in common.items() if before[offset] != value]
        assert not wrong or min(wrong) > 0, seed
        append(again, plain(2), leader_epoch=9)
        again.close()
        once_more = open_log(disk, SMALL, clean=True)
        assert once_more.log_end_offset == again.log_end_offset
        assert described(once_more)["values"] == described(again)["values"]


def test_a_large_log_is_read_back_from_any_index_interval() -> None:
    rng = random.Random(5)
    for interval in (1, 100, 4096, 100_000):
        config = small_segments(20_000)
        disk = FaultyMemoryDisk()
        log = open_log(disk, config)
        for _ in range(150):
            append(log, plain(rng.randrange(1, 5), size=rng.randrange(1, 400)))
        log.close()
        again = open_log(disk, config, clean=rng.random() < 0.5)
        assert sorted(contents(again)) == list(range(log.log_end_offset)), interval
