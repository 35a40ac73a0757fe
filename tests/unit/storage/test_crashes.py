"""Power loss at every write of a workload: what was synced is there, nothing is invented, the state is that of a model."""

from __future__ import annotations

import random

import pytest

from barnabas.storage.aborted import AbortedTxn
from barnabas.storage.checkpoints import (
    RECOVERY_POINT_CHECKPOINT,
    parse_partition_metadata,
    read_offsets,
    write_offsets,
)
from barnabas.storage.log_config import LogConfig
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.producers import PartitionProducers
from barnabas.testing.world.disks import FaultyMemoryDisk
from tests.support.rng import SeededRng
from tests.support.storage.batches import (
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
from tests.support.storage.reading import values

CONFIG = small_segments(500)
COMPACTED = small_segments(500, cleanup_policy=frozenset({"compact"}))


class Model:
    """What the log held at each end offset: producer snapshot, aborted transactions, stable offset."""

    def __init__(self) -> None:
        self.at: dict[int, tuple[bytes, list[AbortedTxn], int]] = {0: (PartitionProducers().to_snapshot(), [], 0)}
        self.synced_offset = 0

    def note(self, log: PartitionLog) -> None:
        end = log.log_end_offset
        self.at[end] = (log.producers.to_snapshot(), log.aborted_transactions(0, 10_000), log.last_stable_offset(end))


def workload(disk: FaultyMemoryDisk, model: Model, config: LogConfig = CONFIG) -> None:
    """Plain, idempotent and transactional batches with rolls, syncs, a clean stop in the middle, and retention's kin."""
    log = open_log(disk, config, named=False)
    model.note(log)

    def sync() -> None:
        log.save_state()
        disk.sync_now(log.unsynced_files())
        if not log.mark_synced(log.log_end_offset):  # partition.metadata has its name, which is not durable yet
            disk.sync_now(log.unsynced_files())
            assert log.mark_synced(log.log_end_offset)
        model.synced_offset = log.log_end_offset
        write_offsets(disk, RECOVERY_POINT_CHECKPOINT, {("t", 0): log.recovery_point})

    for n in range(10):
        for step in range(5):
            _step(log, n, step)
            model.note(log)
            if (n + step) % 3 == 0:
                log.save_state()
        if n % 3 == 1:
            sync()
        if n == 5:
            log.close()
            model.synced_offset = log.log_end_offset
            write_offsets(disk, RECOVERY_POINT_CHECKPOINT, {("t", 0): log.recovery_point})
            log = open_log(disk, config, clean=True)
        if n == 7:
            log.roll(NOW)


def _step(log: PartitionLog, n: int, step: int) -> None:
    epoch = n // 4
    if step == 0:
        append(log, plain(2), leader_epoch=epoch)
    elif step == 1:
        append(log, idempotent(4, n * 3, 3), leader_epoch=epoch)
    elif step == 2:
        append_transactional(log, 5, n, leader_epoch=epoch)
    elif step == 3:
        append_transactional(log, 6 + n % 2, n // 2, leader_epoch=epoch)
    else:
        end_transaction(log, 5, commit=n % 3 != 0, leader_epoch=epoch)


def calls_of_workload() -> int:
    disk = FaultyMemoryDisk()
    changes = disk.watch("change")
    workload(disk, Model())
    return changes.hits


def check_recovered(disk: FaultyMemoryDisk, model: Model, config: LogConfig = CONFIG) -> None:
    recovery_point = read_offsets(disk, RECOVERY_POINT_CHECKPOINT).get(("t", 0), 0)
    log = open_log(disk, config, recovery_point=recovery_point)
    end = log.log_end_offset
    assert end >= model.synced_offset
    assert end in model.at, "the log ends in the middle of a batch"
    assert values(log) == list(range(end))
    snapshot, aborted, stable = model.at[end]
    assert log.producers.to_snapshot() == snapshot
    assert log.aborted_transactions(0, 10_000) == aborted
    assert log.last_stable_offset(end) == stable
    # And it goes on.
    append(log, plain(2), leader_epoch=9)
    log.close()
    again = open_log(disk, config, clean=True)
    assert values(again) == list(range(end + 2))
    assert again.epochs.entries[-1] == (9, end)


@pytest.mark.parametrize(("torn", "config"), [(False, CONFIG), (True, CONFIG), (True, COMPACTED)])
def test_power_loss_at_every_call(torn: bool, config: LogConfig) -> None:
    total = calls_of_workload()
    assert total > 100
    for index in range(total):
        for seed in (None, index, 1000 + index):
            disk = FaultyMemoryDisk()
            disk.fail("change", nth=index + 1, times=None, done="half" if torn else "nothing")
            model = Model()
            with pytest.raises(OSError, match="output error"):
                workload(disk, model, config)
            disk.crash(None if seed is None else SeededRng(seed))
            if model.synced_offset or disk.exists("t-0/partition.metadata"):  # else Kafka stops, or sets the log aside
                assert parse_partition_metadata(disk.read("t-0/partition.metadata")) == TOPIC_ID
            try:
                check_recovered(disk, model, config)
            except AssertionError as error:
                raise AssertionError(f"after call {index} with seed {seed}: {error}") from error


def test_a_kill_at_every_call_loses_nothing_that_was_appended() -> None:
    for index in range(calls_of_workload()):
        disk = FaultyMemoryDisk()
        disk.fail("change", nth=index + 1, times=None)
        model = Model()
        with pytest.raises(OSError, match="output error"):
            workload(disk, model)
        disk.kill()
        model.synced_offset = max(model.at)
        check_recovered(disk, model)


def _shrinking(disk: FaultyMemoryDisk, starts: list[int]) -> None:
    """A log that loses its oldest segments, while it is written."""
    config = small_segments(500, retention_ms=1_000, file_delete_delay_ms=3_000)
    log = open_log(disk, config)
    for n in range(30):
        append(log, plain(2, timestamp=NOW + n * 100))
        disk.sync_now(log.unsynced_files())
        log.mark_synced(log.log_end_offset)
        disk.remove(*log.take_deleted(NOW + n * 100))
        log.apply_retention(NOW + n * 100, log.log_end_offset)
        starts.append(log.log_start_offset)
        starts.append(log.log_end_offset)


def test_power_loss_while_segments_are_deleted() -> None:
    disk = FaultyMemoryDisk()
    changes = disk.watch("change")
    starts: list[int] = []
    _shrinking(disk, starts)
    assert starts[-2] > 20
    for index in range(changes.hits):
        for seed in (None, index):
            disk = FaultyMemoryDisk()
            disk.fail("change", nth=index + 1, times=None)
            starts = [0, 0]
            with pytest.raises(OSError, match="output error"):
                _shrinking(disk, starts)
            disk.crash(None if seed is None else SeededRng(seed))
            log = open_log(disk, CONFIG)
            assert log.log_end_offset >= starts[-1]
            assert values(log, log.log_start_offset) == list(range(log.log_start_offset, log.log_end_offset))
            assert log.log_end_offset - log.log_start_offset > 8 or log.log_start_offset == 0
            disk.remove(*log.take_deleted(0))
            assert not [name for name in disk.listdir("t-0") if name.endswith(".deleted")]


def test_crashes_one_after_another() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        disk = FaultyMemoryDisk()
        synced: list[int] = []
        for life in range(6):
            recovery_point = read_offsets(disk, RECOVERY_POINT_CHECKPOINT).get(("t", 0), 0)
            log = open_log(disk, CONFIG, recovery_point=recovery_point)
            assert log.log_end_offset >= len(synced), f"seed {seed}, life {life}"
            assert values(log) == list(range(log.log_end_offset))
            assert values(log)[: len(synced)] == synced
            for _ in range(rng.randrange(20)):
                append(log, plain(1 + rng.randrange(3)), leader_epoch=life)
                if rng.random() < 0.2:
                    log.save_state()
                    disk.sync_now(log.unsynced_files())
                    log.mark_synced(log.log_end_offset)
                    synced = values(log)
                    if rng.random() < 0.5:
                        write_offsets(disk, RECOVERY_POINT_CHECKPOINT, {("t", 0): log.recovery_point})
                if rng.random() < 0.1 and log.log_end_offset > len(synced):
                    log.truncate_to(len(synced) + rng.randrange(log.log_end_offset - len(synced)))
            disk.crash(SeededRng(seed * 100 + life))
