"""A log that was stopped cleanly is found as it was, and what was lost beside it is made anew in steps."""

from __future__ import annotations

import pytest

from barnabas.storage.opening import LogOpening
from barnabas.storage.partition_log import PartitionLog
from barnabas.testing.world.disks import FaultyMemoryDisk
from tests.support.storage.batches import (
    CONFIG,
    NOW,
    TOPIC_ID,
    append,
    append_transactional,
    end_transaction,
    open_log,
    plain,
)
from tests.support.storage.described import SMALL


@pytest.mark.parametrize("unsynced", ["cut to nothing", "cut, rolled and killed", "records deleted and killed"])
def test_files_are_as_at_the_stop_after_a_power_loss(disk: FaultyMemoryDisk, unsynced: str) -> None:
    log = open_log(disk, SMALL)
    append(log, plain(2))
    if unsynced == "cut to nothing":
        log.close()
        log = open_log(disk, SMALL, clean=True, recovery_point=2)
        log.truncate_to(1)  # inside the only batch
    else:
        append(log, plain(2))
        if unsynced == "cut, rolled and killed":
            log.close()
            log = open_log(disk, SMALL, clean=True, recovery_point=4)
            log.truncate_to(2)
            log.roll(NOW)
        else:
            log.roll(NOW)
            append(log, plain(2))
            log.delete_records_before(5)
        point, start = log.recovery_point, log.log_start_offset
        disk.kill()
        log = open_log(disk, SMALL, recovery_point=point, log_start_offset=start)
        append(log, plain(2))
    log.close()
    size, end, start = log.stored_size(), log.log_end_offset, log.log_start_offset
    disk.replace("recovery-point-offset-checkpoint", b"")
    disk.crash()
    again = open_log(disk, SMALL, clean=True, recovery_point=end, log_start_offset=start, size=size)
    assert (again.log_end_offset, again.log_start_offset, again.size_bytes) == (end, start, log.size_bytes)
    assert again.recovery_point == end, "nothing was read again"


def test_an_old_list_of_aborted_transactions_beside_an_empty_segment_is_no_difference(disk: FaultyMemoryDisk) -> None:
    log = open_log(disk)
    append(log, plain(2))
    append_transactional(log, 5, 0)
    log.roll(NOW)
    append(log, plain(2))
    end_transaction(log, 5, commit=False)
    log.close()
    log = open_log(disk, clean=True, recovery_point=6)
    log.truncate_to(4)  # inside the first batch of the segment
    log.close()
    assert disk.exists("t-0/00000000000000000003.txnindex")
    assert log.stored_size().aborted_bytes == 0
    opening = LogOpening(now_ms=NOW, topic_id=TOPIC_ID, clean=True, recovery_point=3, size=log.stored_size())
    assert next(PartitionLog.opening(disk, "t-0", CONFIG, opening)) == 0, "no byte is read again"


def test_lost_epochs_are_read_in_steps(disk: FaultyMemoryDisk) -> None:
    log = open_log(disk)
    for n in range(300):
        append(log, plain(1), leader_epoch=n // 100)
    log.close()
    disk.remove("t-0/leader-epoch-checkpoint")
    opening = LogOpening(now_ms=NOW, topic_id=TOPIC_ID, clean=True)
    assert len(list(PartitionLog.opening(disk, "t-0", CONFIG, opening))) >= 300 // 128
    assert [epoch for epoch, _ in open_log(disk, clean=True).epochs.entries] == [0, 1, 2]
