"""An unknown producer that does not begin at sequence 0: refused by a log that remembers every producer, accepted by any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import REFUSED_PRODUCERS_MAX
from barnabas.storage.checkpoints import (
    PRODUCER_STATE_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    read_offsets,
    write_offsets,
)
from barnabas.storage.log_config import AppendOrigin, LogConfig
from barnabas.storage.partition_log import PartitionLog
from barnabas.testing.world.disks import FaultyMemoryDisk
from tests.support.rng import SeededRng
from tests.support.storage.batches import CONFIG, NOW, append, idempotent, open_log, plain, small_segments
from tests.support.storage.histories import COMPACTED, clean

DAY = 86_400_000
CHANGES = ("pwrite", "truncate", "create", "rename", "remove", "replace", "mkdir", "sync")
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def refuses(log: PartitionLog, producer_id: int = 99) -> bool:
    """Whether a first batch with sequence 5 is refused; it is not written in either case."""
    try:
        log.producers.check_data(producer_id, 0, 5, transactional=False, sequenced=True)
    except BrokerError as error:
        return error.code == OUT_OF_ORDER
    return False


def replicated(log: PartitionLog, *, disk: FaultyMemoryDisk | None = None, start: int = 0) -> PartitionLog:
    """A follower's log, made from what a leader's holds from `start` on."""
    copy = open_log(disk or FaultyMemoryDisk())
    if start:
        copy.truncate_fully_and_start_at(start)
    while copy.log_end_offset < log.log_end_offset:
        piece = log.read(copy.log_end_offset, 1 << 20, end_offset=log.log_end_offset)
        copy.append_as_follower(piece.records, now_ms=NOW)
    return copy


def test_the_second_batch_of_a_producer_whose_first_one_never_came_is_refused() -> None:
    log = open_log(FaultyMemoryDisk())
    append(log, idempotent(5, 0))
    with pytest.raises(BrokerError) as refused:
        append(log, idempotent(7, 3))
    assert refused.value.code == OUT_OF_ORDER
    append(log, idempotent(7, 0, 3))
    append(log, idempotent(7, 3))
    assert log.log_end_offset == 5


def test_a_coordinators_batches_have_no_sequences_to_check() -> None:
    log = open_log(FaultyMemoryDisk())
    append(log, idempotent(7, 3), origin=AppendOrigin.COORDINATOR)
    assert log.log_end_offset == 1


def test_a_producer_that_expired_goes_on() -> None:
    log = open_log(FaultyMemoryDisk())
    append(log, idempotent(5, 0, 5))
    assert refuses(log)
    assert log.expire_producers(NOW + 10 + DAY) == 1
    append(log, idempotent(5, 5), now_ms=NOW + 10 + DAY)


def test_a_producer_whose_records_were_deleted_goes_on() -> None:
    log = open_log(FaultyMemoryDisk())
    append(log, idempotent(5, 0, 5))
    log.delete_records_before(5)
    assert not refuses(log)
    assert not refuses(replicated(log, start=5))


def test_a_producer_whose_segment_went_by_retention_goes_on() -> None:
    log = open_log(FaultyMemoryDisk(), small_segments(retention_ms=1_000))
    for number in range(10):
        append(log, idempotent(5, number))
    assert refuses(log)
    assert log.apply_retention(NOW + 100_000, log.log_end_offset) > 0
    assert not refuses(log)


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_keeps_the_rule(clean: bool) -> None:
    disk = FaultyMemoryDisk()
    log = open_log(disk, small_segments())
    for number in range(20):
        append(log, idempotent(5, number))
    assert log.snapshots.complete_to > 0
    if clean:
        log.close()
    again = open_log(disk, small_segments(), clean=clean, producers_complete_to=log.snapshots.complete_to)
    assert again.log_end_offset == 20
    assert refuses(again)
    append(again, idempotent(5, 20))


def test_a_restart_of_a_log_without_snapshots_reads_it_whole() -> None:
    disk = FaultyMemoryDisk()
    log = open_log(disk)
    append(log, idempotent(5, 0))
    assert log.snapshots.complete_to == 0
    assert refuses(open_log(disk))


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_after_producers_expired_keeps_none(clean: bool) -> None:
    disk = FaultyMemoryDisk()
    log = open_log(disk, small_segments())
    for number in range(6):
        append(log, idempotent(5, number))
    log.expire_producers(NOW + 10 + DAY)
    for number in range(6):
        append(log, idempotent(6, number, timestamp=NOW + DAY), now_ms=NOW + DAY)
    complete_to = log.snapshots.complete_to
    assert complete_to <= 6
    if clean:
        log.close()
    late: dict[str, Any] = {"producers_complete_to": complete_to, "now_ms": NOW + 2 * DAY - 1_000}
    assert not refuses(open_log(disk, small_segments(), clean=clean, recovery_point=12, **late))


def test_a_log_that_is_read_whole_remembers_the_producers_that_had_expired() -> None:
    disk = FaultyMemoryDisk()
    log = open_log(disk)
    append(log, idempotent(5, 0))
    log.expire_producers(NOW + 10 + DAY)
    again = open_log(disk, producers_complete_to=log.snapshots.complete_to)
    assert refuses(again)
    append(again, idempotent(5, 1))


def test_producers_that_expired_while_the_broker_was_down_lift_the_rule() -> None:
    disk = FaultyMemoryDisk()
    log = open_log(disk)
    append(log, idempotent(5, 0))
    log.close()
    again = open_log(disk, clean=True, producers_complete_to=log.snapshots.complete_to, now_ms=NOW + 2 * DAY)
    assert not refuses(again)


def test_a_snapshot_that_no_checkpoint_vouches_for_lifts_the_rule() -> None:
    """A directory that Kafka, or an earlier version, has written to."""
    disk = FaultyMemoryDisk()
    log = open_log(disk)
    append(log, idempotent(5, 0))
    log.close()
    assert not refuses(open_log(disk, clean=True))


def test_a_log_that_was_there_before_under_the_same_name_lifts_the_rule() -> None:
    disk = FaultyMemoryDisk()
    log = open_log(disk, new=False)
    assert not refuses(log)
    append(log, idempotent(5, 5))
    assert not refuses(open_log(disk))


def test_a_cut_keeps_the_rule() -> None:
    log = open_log(FaultyMemoryDisk(), small_segments())
    for number in range(20):
        append(log, idempotent(5, number))
    log.truncate_to(7)
    assert log.snapshots.complete_to <= 7
    assert refuses(log)
    log.truncate_fully_and_start_at(0)
    assert refuses(log)
    log.truncate_fully_and_start_at(30)
    assert not refuses(log)


def test_lost_records_lift_the_rule_for_good() -> None:
    disk = FaultyMemoryDisk()
    log = open_log(disk, small_segments())
    for number in range(20):
        append(log, idempotent(5, number))
    log.on_records_lost()
    log.truncate_to(7)
    assert not refuses(log)
    assert log.snapshots.complete_to == -1
    disk.kill()
    log = open_log(disk, small_segments(), producers_complete_to=20)
    assert not refuses(log)
    log.truncate_fully_and_start_at(0)
    append(log, idempotent(5, 3))
    assert not refuses(log)
    log.close()
    assert not refuses(open_log(disk, small_segments(), clean=True))


def _at_each_call(workload: Callable[[FaultyMemoryDisk], None], *, torn: bool) -> Iterator[FaultyMemoryDisk]:
    """The disk after a kill, and after two power losses, at each call that changes it."""
    disk = FaultyMemoryDisk()
    changes = disk.watch("change")
    workload(disk)
    for index in range(changes.hits):
        for seed in (None, index, 1000 + index):
            disk = FaultyMemoryDisk()
            disk.fail("change", nth=index + 1, times=None, done="half" if torn else "nothing")
            with pytest.raises(OSError, match="output error"):
                workload(disk)
            if seed is None:
                disk.kill()
            else:
                disk.crash(SeededRng(seed))
            yield disk


def _save_checkpoints(disk: FaultyMemoryDisk, log: PartitionLog) -> None:
    """As LogDirectory.checkpoints orders them."""
    write_offsets(disk, PRODUCER_STATE_CHECKPOINT, {("t", 0): log.snapshots.complete_to})
    write_offsets(disk, RECOVERY_POINT_CHECKPOINT, {("t", 0): log.recovery_point})


def _reopen(disk: FaultyMemoryDisk, *, new: bool = True) -> PartitionLog:
    return open_log(
        disk,
        small_segments(),
        recovery_point=read_offsets(disk, RECOVERY_POINT_CHECKPOINT).get(("t", 0), 0),
        producers_complete_to=read_offsets(disk, PRODUCER_STATE_CHECKPOINT).get(("t", 0), 0),
        new=new,
    )


@pytest.mark.parametrize("torn", [False, True])
def test_a_crash_at_any_call_keeps_the_rule(torn: bool) -> None:
    """From the first record on, no checkpoint having been written; at rolls, cuts and saves of the state, too."""

    def workload(disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, small_segments())
        for number in range(24):
            append(log, idempotent(5, number))
            if number % 5 == 4:
                log.save_state()
            if number in (11, 20):
                disk.sync_now(log.unsynced_files())
                log.mark_synced(log.log_end_offset)
                _save_checkpoints(disk, log)
            if number == 17:
                log.truncate_to(15)
                for again in range(15, 18):
                    append(log, idempotent(5, again))

    for number, disk in enumerate(_at_each_call(workload, torn=torn)):
        if disk.exists("t-0") and disk.listdir("t-0"):
            log = _reopen(disk, new=False)
            assert refuses(log), number
            assert log.producers.entries.keys() <= {5}
            append(log, idempotent(5, log.log_end_offset))


def test_a_crash_at_any_call_never_brings_the_rule_back_to_a_log_that_lost_records() -> None:
    """It would refuse the producers of lost records for ever."""

    def workload(disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, small_segments(), new=False)
        for number in range(8):
            append(log, idempotent(5, number + 3))
            if number == 4:
                disk.sync_now(log.unsynced_files())
                log.mark_synced(log.log_end_offset)
                _save_checkpoints(disk, log)
        log.save_state()

    for number, disk in enumerate(_at_each_call(workload, torn=False)):
        if disk.exists("t-0"):
            assert not refuses(_reopen(disk, new=False)), number


def test_a_log_that_lost_records_is_killed_at_any_call_after_it() -> None:
    def workload(disk: FaultyMemoryDisk) -> None:
        log = open_log(disk, small_segments())
        for number in range(12):
            append(log, idempotent(5, number))
        _save_checkpoints(disk, log)
        log.on_records_lost()
        disk.replace("lost", b"")  # the call above has returned
        log.truncate_to(3)
        append(log, idempotent(6, 9))
        log.roll(NOW)
        append(log, idempotent(6, 10))

    seen = 0
    for disk in _at_each_call(workload, torn=False):
        if disk.exists("lost"):
            seen += 1
            assert not refuses(_reopen(disk, new=False))
    assert seen > 20


def test_a_follower_knows_what_its_leaders_log_holds() -> None:
    log = open_log(FaultyMemoryDisk())
    for number in range(5):
        append(log, idempotent(5, number))
    assert refuses(replicated(log))


def test_a_log_with_gaps_was_cleaned() -> None:
    log = open_log(FaultyMemoryDisk())
    append(log, idempotent(5, 0))
    append(log, plain())
    piece = log.read(1, 1 << 20, end_offset=2)
    copy = open_log(FaultyMemoryDisk())
    copy.append_as_follower(piece.records, now_ms=NOW)
    assert not refuses(copy)


def test_a_log_with_a_batch_in_place_of_a_whole_segment_was_cleaned() -> None:
    """The cleaner keeps the offsets of the last batch of a segment, but nothing else of it: its producer has expired."""
    disk = FaultyMemoryDisk()
    log = open_log(disk, replace(COMPACTED, segment_bytes=100, producer_id_expiration_ms=DAY))
    append(log, idempotent(5, 0))
    for number in range(2):
        append(log, idempotent(6, number, timestamp=NOW + DAY), now_ms=NOW + DAY)
    log.expire_producers(NOW + DAY + 10)
    clean(disk, log, NOW + DAY)
    copy = replicated(log)
    assert (copy.log_start_offset, copy.log_end_offset, sorted(copy.producers.entries)) == (0, 3, [6])
    assert not refuses(copy)


def test_a_producer_that_is_older_than_the_topic_goes_on() -> None:
    """It may have written to an earlier topic of that name."""
    log = open_log(FaultyMemoryDisk())
    log.producers.first_id = 1000
    append(log, idempotent(999, 5))
    append(log, idempotent(999, 6))
    assert refuses(log, 1000)
    log.truncate_to(1)
    assert not refuses(log, 998)
    assert refuses(log, 1000)
    log.truncate_fully_and_start_at(0)
    assert not refuses(log, 998)
    assert refuses(log, 1000)


@pytest.mark.parametrize(
    ("config", "bad"),
    [
        (replace(CONFIG, max_message_bytes=200), idempotent(7, 0, 3, size=100)),
        (replace(CONFIG, message_timestamp_after_max_ms=1_000), idempotent(7, 0, 3, timestamp=NOW + DAY)),
    ],
    ids=["too large", "too young"],
)
def test_a_producer_goes_on_after_a_first_batch_that_was_refused_for_what_is_in_it(
    config: LogConfig, bad: bytearray
) -> None:
    """aiokafka counts the refused records, and does not begin a new epoch."""
    log = open_log(FaultyMemoryDisk(), config)
    with pytest.raises(BrokerError):
        append(log, bad)
    for sequence in (1, 2, 4):
        with pytest.raises(BrokerError) as refused:
            append(log, idempotent(7, sequence))
        assert refused.value.code == OUT_OF_ORDER
    append(log, idempotent(7, 3))
    append(log, idempotent(7, 4))


def test_a_damaged_batch_comes_again() -> None:
    log = open_log(FaultyMemoryDisk())
    with pytest.raises(BrokerError) as refused:
        append(log, idempotent(7, 0)[:-1] + b"!")
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(BrokerError) as refused:
        append(log, idempotent(7, 1))
    assert refused.value.code == OUT_OF_ORDER


def test_refused_producers_are_bounded() -> None:
    state = open_log(FaultyMemoryDisk()).producers
    for producer_id in range(REFUSED_PRODUCERS_MAX + 1):
        state.on_refused(producer_id, 0, 0, 4)
    with pytest.raises(BrokerError):
        state.check_data(0, 0, 5, False, sequenced=True)
    state.check_data(1, 0, 5, False, sequenced=True)
