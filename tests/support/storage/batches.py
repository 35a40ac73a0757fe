"""Batches and logs for the storage tests, named by what matters in a test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from barnabas.ports import Disk
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.storage.log_config import AppendInfo, LogConfig
from barnabas.storage.opening import LogOpening
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.saved_state import SYNCED_STATE

NOW = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
CONFIG = LogConfig()


def plain(
    count: int = 1, *, timestamp: int = NOW, size: int = 10, key: bytes | None = b"k", compression: int = 0
) -> bytearray:
    """A batch without a producer; its records are a millisecond apart."""
    return build_batch([NewRecord(key, b"v" * size, timestamp + n) for n in range(count)], compression=compression)


def idempotent(
    producer_id: int,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    transactional: bool = False,
    timestamp: int = NOW,
    size: int = 10,
) -> bytearray:
    """A batch of a producer."""
    records = [NewRecord(b"k", b"%d" % (sequence + n) + b"v" * size, timestamp + n) for n in range(count)]
    return build_batch(
        records,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def open_log(
    disk: Disk,
    config: LogConfig = CONFIG,
    *,
    clean: bool = False,
    now_ms: int = NOW,
    named: bool = True,
    **options: Any,
) -> PartitionLog:
    """The log under test, in the folder "t-0"; with `named`, its partition.metadata is durable."""
    opening = LogOpening(now_ms=now_ms, topic_id=TOPIC_ID, clean=clean, **options)
    log = PartitionLog.open(disk, "t-0", config, opening)
    if named:
        log.store_topic_id()
    return log


def forget_states(disk: Disk) -> None:
    """Removes the saved state of the log, as in a folder of Kafka or of an earlier release."""
    disk.remove(f"t-0/{SYNCED_STATE}")


def append(
    log: PartitionLog, batch: bytearray, *, leader_epoch: int = 0, now_ms: int = NOW, **more: object
) -> AppendInfo:
    return log.append_as_leader(batch, leader_epoch=leader_epoch, now_ms=now_ms, **more)  # type: ignore[arg-type]


def append_transactional(
    log: PartitionLog, producer_id: int, sequence: int, count: int = 1, *, leader_epoch: int = 0
) -> AppendInfo:
    """A verified transactional batch."""
    guard = log.producers.verification_guard(producer_id, 0, sequence, supports_epoch_bump=False)
    batch = idempotent(producer_id, sequence, count, transactional=True)
    return append(log, batch, leader_epoch=leader_epoch, guard=guard)


def end_transaction(
    log: PartitionLog,
    producer_id: int,
    *,
    commit: bool = True,
    coordinator_epoch: int = 0,
    leader_epoch: int = 0,
    now_ms: int = NOW,
) -> AppendInfo:
    return log.append_marker(
        producer_id,
        0,
        commit=commit,
        coordinator_epoch=coordinator_epoch,
        leader_epoch=leader_epoch,
        now_ms=now_ms,
        transaction_version=1,
    )


def small_segments(segment_bytes: int = 400, **more: object) -> LogConfig:
    """Segments of a few batches, and an index entry for nearly each."""
    return replace(CONFIG, segment_bytes=segment_bytes, index_interval_bytes=100, **more)  # type: ignore[arg-type]


def put(log: PartitionLog, key: bytes, value: bytes | None, *, timestamp: int = NOW) -> int:
    return append(log, build_batch([NewRecord(key, value, timestamp)]), now_ms=timestamp).base_offset
