"""Random histories of a compacted log, and a model of what a reader must find after any number of cleanings."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from barnabas.ports import Disk, File
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, decode_records, iter_batches, read_control
from barnabas.storage.cleanable import assess
from barnabas.storage.cleaning import Cleaning
from barnabas.storage.log_config import LogConfig
from barnabas.storage.partition_log import PartitionLog
from barnabas.work import finished
from tests.support.storage.batches import NOW, append, end_transaction, open_log, small_segments

DAY = 24 * 3_600_000
COMPACTED = small_segments(
    700,
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=DAY,
    producer_id_expiration_ms=1000 * DAY,
)
KEYS = [b"a", b"b", b"c", b"d", b"e"]


@dataclass
class Written:
    """A record as it went into the log."""

    key: bytes
    value: bytes | None
    timestamp: int
    producer_id: int
    transaction: int  # -1 outside of one


@dataclass
class Model:
    """Everything that was written, and how transactions ended."""

    records: dict[int, Written] = field(default_factory=dict)
    ended: dict[int, tuple[bool, int]] = field(default_factory=dict)  # transaction → committed, offset of its marker
    begun: dict[int, int] = field(default_factory=dict)  # producer id → its open transaction
    next_transaction: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    horizons: dict[int, int] = field(default_factory=dict)  # offset of a record → when a tombstone there may go

    def committed(self, offset: int) -> bool:
        written = self.records[offset]
        return written.transaction < 0 or self.ended.get(written.transaction, (False, -1))[0]

    def latest(self, stable: int) -> dict[bytes, bytes]:
        """What a read_committed reader of the whole log has at its end."""
        known: dict[bytes, bytes | None] = {}
        for offset, written in self.records.items():
            if offset < stable and self.committed(offset):
                known[written.key] = written.value
        return {key: value for key, value in sorted(known.items()) if value is not None}


def write_something(rng: random.Random, log: PartitionLog, model: Model, now_ms: int) -> None:
    """One append: plain, idempotent or transactional, or the end of a transaction."""
    draw = rng.random()
    if model.begun and draw < 0.3:
        producer_id = rng.choice(sorted(model.begun))
        transaction = model.begun.pop(producer_id)
        commit = rng.random() < 0.6
        info = end_transaction(log, producer_id, commit=commit, now_ms=now_ms)
        model.ended[transaction] = (commit, info.base_offset)
        return
    producer_id = -1 if draw < 0.5 else 1 if draw < 0.6 else rng.choice([5, 6, 7])
    transaction = -1
    guard = None
    count = 1 + rng.randrange(4)
    sequence = model.sequences.get(producer_id, 0)
    if producer_id >= 5:
        if producer_id not in model.begun:
            model.begun[producer_id] = model.next_transaction
            model.next_transaction += 1
        transaction = model.begun[producer_id]
        guard = log.producers.verification_guard(producer_id, 0, sequence, supports_epoch_bump=False)
    records = [
        NewRecord(
            rng.choice(KEYS),
            None if rng.random() < 0.3 else b"%d" % rng.randrange(10 ** rng.randrange(1, 9)),
            now_ms + rng.randrange(-50, 50),
            [("h", b"x")] if rng.random() < 0.2 else (),
        )
        for _ in range(count)
    ]
    batch = build_batch(
        records,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence if producer_id >= 0 else -1,
        transactional=transaction >= 0,
        compression=rng.choice([0, 0, 0, 1, 3, 4]),
    )
    info = append(log, batch, now_ms=now_ms, guard=guard)
    if producer_id >= 0:
        model.sequences[producer_id] = sequence + count
    for delta, record in enumerate(records):
        model.records[info.base_offset + delta] = Written(
            record.key or b"", record.value, record.timestamp, producer_id, transaction
        )


@dataclass
class Reading:
    """What a reader of the whole log has read."""

    records: dict[int, tuple[bytes | None, bytes | None, int, int]]  # key, value, timestamp, producer id
    markers: dict[int, int]  # offset → producer id
    latest: dict[bytes, bytes]  # as read_committed
    horizons: dict[int, int]  # offset → delete horizon of its batch
    times: list[tuple[int, int]]  # (offset, timestamp) of everything, markers too


def read_all(log: PartitionLog, *, max_bytes: int = 500) -> Reading:
    """Reads from the start to the end, by fetches of a few batches, and filters as a consumer does."""
    stable = log.last_stable_offset(log.log_end_offset)
    found = Reading({}, {}, {}, {}, [])
    known: dict[bytes, bytes | None] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, max_bytes, end_offset=log.log_end_offset)
        assert piece.records, f"nothing to read at {offset}, the log ends at {log.log_end_offset}"
        assert piece.next_offset > offset
        aborted = log.aborted_transactions(offset, piece.next_offset)
        previous = -1
        for position, header in iter_batches(piece.records):
            assert header.base_offset > previous
            previous = header.last_offset
            for record in decode_records(piece.records, position, header):
                assert header.base_offset <= record.offset <= header.last_offset
                found.times.append((record.offset, record.timestamp))
                if header.is_control:
                    assert read_control(record).type in (0, 1)
                    found.markers[record.offset] = header.producer_id
                    continue
                if header.has_delete_horizon:
                    found.horizons[record.offset] = header.base_timestamp
                found.records[record.offset] = (record.key, record.value, record.timestamp, header.producer_id)
                skipped = header.is_transactional and any(
                    one.producer_id == header.producer_id and one.first_offset <= record.offset <= one.last_offset
                    for one in aborted
                )
                if record.offset < stable and not skipped and record.key is not None:
                    known[record.key] = record.value
        offset = piece.next_offset
    found.latest = {key: value for key, value in sorted(known.items()) if value is not None}
    return found


def sync(disk: Disk, log: PartitionLog) -> None:
    """Syncs the whole log."""
    files: list[File] = log.unsynced_files()
    disk.sync_now(files)
    log.mark_synced(log.log_end_offset)


def clean(
    disk: Disk, log: PartitionLog, now_ms: int, *, steps_max: int = 10**9, map_bytes_max: int = 10**6
) -> Cleaning | None:
    """One cleaning, if there is something to clean; stopped after `steps_max` steps."""
    cleanable = assess(
        log.segments.all,
        log.config,
        cleaned_to=log.cleaned_to,
        log_start_offset=log.log_start_offset,
        last_stable_offset=log.last_stable_offset(log.log_end_offset),
        now_ms=now_ms,
    )
    if not cleanable.is_due(log.config):
        return None
    if log.recovery_point < cleanable.first_uncleanable_offset:
        sync(disk, log)
    cleaning = Cleaning(disk, log, cleanable, now_ms=now_ms, map_bytes_max=map_bytes_max)
    steps = cleaning.steps()
    for number, step in enumerate(steps):
        if number >= steps_max:
            break
        if step.files:
            disk.sync_now(step.files)
        if step.work is not None:
            step.work()
    steps.close()
    return cleaning


def check(log: PartitionLog, model: Model, now_ms: int) -> Reading:
    """Compares what a reader gets with the model."""
    found = read_all(log)
    stable = log.last_stable_offset(log.log_end_offset)
    assert found.latest == model.latest(stable)
    for offset, (key, value, timestamp, producer_id) in found.records.items():
        written = model.records[offset]
        assert (key, value, timestamp, producer_id) == (
            written.key,
            written.value,
            written.timestamp,
            written.producer_id,
        ), f"record {offset} has changed"
        if written.transaction >= 0 and written.transaction in model.ended:
            marker = model.ended[written.transaction][1]
            assert marker in found.markers, f"record {offset} has outlived its marker {marker}"
    for timestamp in sorted({timestamp for _, timestamp in found.times})[:: max(1, len(found.times) // 5)]:
        place = finished(log.offset_for_timestamp(timestamp, end_offset=log.log_end_offset))
        assert place is not None
        assert (place.offset, place.timestamp) == next(entry for entry in found.times if entry[1] >= timestamp)
    # Nothing went that is not superseded, aborted, or a tombstone that had its time.
    last: dict[bytes, int] = {}
    for offset, written in model.records.items():
        if offset >= stable or model.committed(offset):
            last[written.key] = offset
    for offset in last.values():
        written = model.records[offset]
        if written.value is not None:
            assert offset in found.records, f"the last record {offset} of {written.key!r} is gone"
        elif offset not in found.records:
            horizon = model.horizons.get(offset)
            assert horizon is not None, f"tombstone {offset} went at once"
            assert now_ms >= horizon, f"tombstone {offset} went early"
    for offset, horizon in found.horizons.items():
        assert model.horizons.setdefault(offset, horizon) == horizon
        assert horizon >= NOW + DAY
    return found


def config(rng: random.Random) -> LogConfig:
    """One of the shapes that a history runs with."""
    return replace(COMPACTED, segment_bytes=rng.choice([300, 700, 2000]), index_interval_bytes=rng.choice([0, 100]))


def opened(disk: Disk, shape: LogConfig, **options: Any) -> PartitionLog:
    """The log after a stop or a kill; retention of producers is far away."""
    return open_log(disk, shape, now_ms=NOW, **options)
