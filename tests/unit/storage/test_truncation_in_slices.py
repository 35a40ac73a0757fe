"""A truncation whose producers are rebuilt in slices: what may happen between two of them, and a kill there."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from barnabas.storage import producer_rebuild, producers
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.producers import PartitionProducers
from barnabas.testing.world.disks import FaultyMemoryDisk
from barnabas.work import finished
from tests.support.storage.batches import (
    NOW,
    append,
    append_transactional,
    end_transaction,
    idempotent,
    open_log,
    small_segments,
)

LATER = NOW + 10**9
SEGMENTS = small_segments(1_000)


@pytest.fixture(autouse=True)
def shortest_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_rebuild, "_STEP_BATCHES", 1)
    monkeypatch.setattr(producers, "LOADED_AT_ONCE", 1)


def filled(disk: FaultyMemoryDisk, rng: Random) -> PartitionLog:
    """A log of some segments with producers and transactions, some of them open at its end."""
    log = open_log(disk, SEGMENTS)
    sequences: dict[int, int] = {}
    for _ in range(60):
        producer_id = rng.randrange(12)
        sequence, count = sequences.get(producer_id, 0), rng.randrange(1, 4)
        sequences[producer_id] = sequence + count
        if producer_id < 6:
            append(log, idempotent(producer_id, sequence, count))
        elif log.producers.has_ongoing_transaction(producer_id, 0) and rng.random() < 0.4:
            sequences[producer_id] = sequence
            end_transaction(log, producer_id, commit=rng.random() < 0.5)
        else:
            append_transactional(log, producer_id, sequence, count)
    return log


def state(log: PartitionLog) -> tuple[object, ...]:
    found = log.producers
    return found.to_snapshot(), found.ongoing, found.end_offset, found.complete, log.log_end_offset


@pytest.mark.parametrize("seed", range(10))
def test_it_ends_as_one_that_is_done_at_once(seed: int) -> None:
    rng = Random(seed)
    disk = FaultyMemoryDisk()
    log = filled(disk, rng)
    offset = rng.randrange(1, log.log_end_offset)
    before = log.producers.to_snapshot(), log.log_end_offset
    steps = log.producers_before(offset)
    found: PartitionProducers | None = None
    slices = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
            break
        slices += 1
        assert (log.producers.to_snapshot(), log.log_end_offset) == before
        append(log, idempotent(50, slices - 1))  # as a leader: nothing below the offset changes
        before = log.producers.to_snapshot(), log.log_end_offset
    assert slices > 1
    log.truncate_to(offset, found)
    disk.kill()
    reopened = open_log(disk, SEGMENTS)
    assert state(reopened) == state(log)
    twin = filled(FaultyMemoryDisk(), Random(seed))
    twin.truncate_to(offset)
    assert state(twin) == state(log)


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.truncate_to(20),
        lambda log: log.truncate_fully_and_start_at(100),
        lambda log: log.delete_records_before(15),
        lambda log: log.apply_retention(LATER, log.log_end_offset),
        lambda log: log.on_records_lost(),
        lambda log: log.close(),
        lambda log: log.abandon(),
    ],
    ids=["truncated", "emptied", "records deleted", "segments deleted", "records lost", "closed", "abandoned"],
)
def test_it_is_given_up_where_the_log_changes_in_between(change: Callable[[PartitionLog], object]) -> None:
    log = filled(FaultyMemoryDisk(), Random(1))
    steps = log.producers_before(log.log_end_offset - 2)
    next(steps)
    change(log)
    assert finished(steps) is None


@pytest.mark.parametrize("slices", [1, 3])
def test_a_kill_in_between_leaves_the_log_as_it_was(slices: int) -> None:
    disk = FaultyMemoryDisk()
    log = filled(disk, Random(2))
    steps = log.producers_before(log.log_end_offset - 5)
    for _ in range(slices):
        next(steps)
    disk.kill()
    assert state(open_log(disk, SEGMENTS)) == state(log)


def test_a_clean_stop_in_between_saves_the_producers_of_the_whole_log() -> None:
    disk = FaultyMemoryDisk()
    log = filled(disk, Random(3))
    whole = state(log)
    next(log.producers_before(log.log_end_offset - 5))
    log.close()
    assert state(open_log(disk, SEGMENTS, clean=True, producers_complete_to=log.log_end_offset)) == whole
