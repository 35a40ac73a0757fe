"""What a log holds on disk and in memory, as one text to compare."""

from __future__ import annotations

from barnabas.ports import Disk
from barnabas.storage.partition_log import PartitionLog
from barnabas.work import finished
from tests.support.storage.batches import (
    append,
    append_transactional,
    end_transaction,
    idempotent,
    open_log,
    plain,
    small_segments,
)
from tests.support.storage.reading import values

SMALL = small_segments()


def written(disk: Disk) -> PartitionLog:
    """Several segments with producers, an aborted, a committed and an open transaction."""
    log = open_log(disk, SMALL)
    for n in range(8):
        append(log, plain(2), leader_epoch=n // 3)
        append(log, idempotent(4, n * 2, 2), leader_epoch=n // 3)
    append_transactional(log, 5, 0, 2, leader_epoch=3)
    append_transactional(log, 6, 0, 2, leader_epoch=3)
    end_transaction(log, 5, commit=False, leader_epoch=3)
    end_transaction(log, 6, leader_epoch=3)
    append_transactional(log, 7, 0, 2, leader_epoch=3)
    return log


def described(log: PartitionLog) -> dict[str, object]:
    """The part of a log's state that must survive a restart."""
    return {
        "values": values(log, log.log_start_offset),
        "end": log.log_end_offset,
        "size": log.size_bytes,
        "stable": log.last_stable_offset(log.log_end_offset),
        "aborted": log.aborted_transactions(0, 1000),
        "producers": log.producers.to_snapshot(),
        "epochs": log.epochs.entries,
        "largest": finished(log.max_timestamp_offset(1000)),
    }
