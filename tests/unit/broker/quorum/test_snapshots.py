"""Snapshots of the metadata log, against one that Kafka wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.broker.quorum.core import snapshots
from barnabas.broker.quorum.core.snapshots import (
    SnapshotId,
    check_snapshot,
    decode_snapshot,
    encode_snapshot,
    list_snapshots,
    snapshot_name,
)
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.record_codec import Record
from barnabas.protocol.records import BatchHeader, iter_batches
from barnabas.storage.disk import MemoryDisk
from barnabas.storage.steps import DECODED_RECORDS, record_slices

KAFKA = (Path(__file__).parents[3] / "golden" / "metadata" / "snapshot-86-3.bin").read_bytes()


def test_kafkas_snapshot_is_read_and_written_alike() -> None:
    values = list(decode_snapshot(KAFKA))
    assert len(values) == 22
    ours = encode_snapshot(values, epoch=3, last_timestamp_ms=0, now_ms=0)
    assert list(decode_snapshot(ours)) == values
    # The same batches: header, records, footer, of the same sizes.
    assert [header.is_control for _, header in iter_batches(ours)] == [True, False, True]
    assert len(ours) == len(KAFKA)


def test_names() -> None:
    snapshot = SnapshotId(end_offset=86, epoch=3)
    assert snapshot_name(snapshot) == "00000000000000000086-0000000003.checkpoint"
    disk = MemoryDisk()
    disk.mkdir("log")
    for name in (
        snapshot_name(snapshot),
        "00000000000000000009-0000000001.checkpoint",
        "bootstrap.checkpoint",
        "x.log",
    ):
        disk.replace(f"log/{name}", b"")
    assert list_snapshots(disk, "log") == [SnapshotId(9, 1), snapshot]


def test_many_records_go_into_batches() -> None:
    values = [b"%d" % number for number in range(3000)]
    data = encode_snapshot(iter(values), epoch=1, last_timestamp_ms=5, now_ms=6)
    assert [header.record_count for _, header in iter_batches(data)] == [1, 1024, 1024, 952, 1]
    assert list(decode_snapshot(data)) == values
    assert list(decode_snapshot(encode_snapshot([], epoch=1, last_timestamp_ms=5, now_ms=6))) == []


def _flipped(at: int) -> bytes:
    data = bytearray(KAFKA)
    data[at] ^= 0x40
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        KAFKA[:-1],
        KAFKA[: len(KAFKA) - 75],  # without its footer
        KAFKA[83:],  # without its header
        KAFKA + b"\0",
        _flipped(200),
        _flipped(len(KAFKA) - 1),
    ],
)
def test_a_damaged_snapshot_is_none(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        list(decode_snapshot(data))
    with pytest.raises(RemoteProtocolError):
        check_snapshot(data, lambda _kind, _value: None)


def test_a_long_batch_of_another_leader_is_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's batches hold up to 8 MB of records."""
    monkeypatch.setattr(snapshots, "BATCH_RECORDS", 10_000)
    values = [b"%d" % number for number in range(9_000)]
    data = encode_snapshot(values, epoch=1, last_timestamp_ms=0, now_ms=0)
    assert [header.record_count for _, header in iter_batches(data)] == [1, 9_000, 1]
    parts: list[int] = []

    def noted(records: bytes, header: BatchHeader) -> Iterator[tuple[bytes, list[Record]]]:
        for piece, found in record_slices(records, header):
            parts.append(len(found))
            yield piece, found

    monkeypatch.setattr(snapshots, "record_slices", noted)
    assert list(decode_snapshot(data)) == values
    assert max(parts) <= DECODED_RECORDS
