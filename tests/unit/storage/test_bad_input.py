"""Hostile batches: whatever the bytes, the answer is an offset or one of Kafka's refusals, and the log stays readable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.errors import BrokerError
from barnabas.protocol.compression import Compression
from barnabas.protocol.records import decode_records, iter_batches
from barnabas.storage.disk import MemoryDisk
from barnabas.storage.log_config import LogConfig
from barnabas.storage.validation import LongBatch
from tests.support.storage.batches import CONFIG, NOW, append, idempotent, open_log, plain
from tests.support.storage.changed_fields import FIELDS, changed

CONFIGS = [
    CONFIG,
    replace(CONFIG, record_validation="header"),
    replace(CONFIG, cleanup_policy=frozenset({"compact"})),
    replace(CONFIG, compression_type="lz4"),
    replace(CONFIG, message_timestamp_type="LogAppendTime"),
]

batches = st.one_of(
    st.builds(plain, st.integers(1, 5), compression=st.sampled_from(list(Compression))),
    st.builds(idempotent, st.integers(0, 3), st.integers(0, 10), st.integers(1, 4), epoch=st.integers(0, 2)),
)
edges = st.sampled_from([-(2**63), -(2**31), -1, 0, 1, 2, 127, 2**15 - 1, 2**31 - 1, 2**63 - 1])


@st.composite
def hostile(draw: st.DrawFn) -> bytearray:
    """A batch with fields, bytes or its length gone wrong; often under a right checksum."""
    batch = bytearray(draw(batches))
    for name in draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=2)):
        size = {"q": 8, "i": 4, "h": 2, "b": 1}[FIELDS[name][1][-1]]
        value = draw(edges)
        if -(1 << (size * 8 - 1)) <= value < 1 << (size * 8 - 1):
            changed(batch, **{name: value})
    for _ in range(draw(st.integers(0, 3))):
        batch[draw(st.integers(0, len(batch) - 1))] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        changed(batch)
    cut = draw(st.one_of(st.none(), st.integers(0, len(batch))))
    return batch if cut is None else batch[:cut]


@pytest.mark.parametrize("config", CONFIGS, ids=["default", "header", "compacted", "lz4", "append-time"])
@settings(max_examples=100)
@given(st.lists(hostile(), max_size=6))
def test_refused_or_taken_but_never_broken(config: LogConfig, inputs: list[bytearray]) -> None:
    disk = MemoryDisk()
    log = open_log(disk, config)
    for batch in inputs:
        before = (log.log_end_offset, log.size_bytes, log.producers.to_snapshot())
        try:
            info = append(log, batch)
        except (BrokerError, LongBatch):
            assert (log.log_end_offset, log.size_bytes, log.producers.to_snapshot()) == before
        else:
            assert info.last_offset >= info.base_offset
    append(log, plain(2))
    end = log.log_end_offset
    found = log.read(0, 10**6, end_offset=end)
    assert found.next_offset == end
    assert sum(header.record_count for _, header in iter_batches(found.records)) == end
    disk.kill()
    again = open_log(disk, config)
    assert again.log_end_offset == end
    assert again.producers.to_snapshot() == log.producers.to_snapshot()


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_bytes_that_are_nothing_are_refused(data: bytes) -> None:
    log = open_log(MemoryDisk())
    calls: list[Callable[[], object]] = [
        lambda: append(log, bytearray(data)),
        lambda: log.append_as_follower(data, now_ms=NOW),
    ]
    for call in calls:
        try:
            call()
        except (BrokerError, LongBatch):
            pass
        assert log.log_end_offset == 0


@given(hostile())
def test_only_readable_records_get_in(batch: bytearray) -> None:
    log = open_log(MemoryDisk())
    try:
        append(log, batch)
    except (BrokerError, LongBatch):
        return
    found = log.read(0, 10**6, end_offset=log.log_end_offset)
    records = decode_records(found.records)
    assert [record.offset for record in records] == list(range(log.log_end_offset))
