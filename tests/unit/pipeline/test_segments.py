"""Segments of stopped log directories: their transactions, copies, torn ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.segments import (
    Aborted,
    SegmentScan,
    chunks_of,
    decided,
    lock_directory,
    newest_copy,
    scan_segment,
    segments_of,
)
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, build_end_txn_marker
from barnabas.runtime.files import FileDisk


def data(offset: int, count: int, producer: int = -1, *, epoch: int = 0) -> bytes:
    records = [NewRecord(None, b"%06d" % (offset + i), 0) for i in range(count)]
    transactional = producer >= 0
    return bytes(
        build_batch(records, base_offset=offset, producer_id=producer, transactional=transactional, leader_epoch=epoch)
    )


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    return bytes(
        build_end_txn_marker(
            producer, 0, commit=commit, coordinator_epoch=0, timestamp=0, base_offset=offset, leader_epoch=0
        )
    )


def write(root: Path, segments: dict[int, bytes], partition: str = "t-0") -> FileDisk:
    (root / partition).mkdir(parents=True, exist_ok=True)
    for base, content in segments.items():
        (root / partition / f"{base:020d}.log").write_bytes(content)
    return FileDisk(str(root))


def scans_of(root: Path, segments: dict[int, bytes], partition: str = "t-0") -> list[SegmentScan]:
    disk = write(root, segments, partition)
    return [scan_segment(disk, segment) for segment in segments_of(disk, str(root), ["t"])]


def test_segments_are_found_in_order(tmp_path: Path) -> None:
    disk = write(tmp_path, {0: data(0, 5), 5: data(5, 5)}, "t-10")
    write(tmp_path, {7: data(7, 1)}, "t-2")
    write(tmp_path, {0: data(0, 1)}, "other-0")
    (tmp_path / "t-2" / "00000000000000000007.index").touch()
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 10 3\n")
    found = segments_of(disk, str(tmp_path), ["t"])
    assert [(s.partition, s.base_offset, s.log_start, s.is_last) for s in found] == [
        (2, 7, 0, True),
        (10, 0, 3, False),
        (10, 5, 3, True),
    ]


def test_transactions_are_followed_over_segments(tmp_path: Path) -> None:
    scans = scans_of(
        tmp_path,
        {
            0: data(0, 2, 1) + data(2, 2, 2) + data(4, 1) + marker(5, 2, commit=True),
            6: data(6, 2, 2) + marker(8, 1, commit=False) + marker(9, 7, commit=False),
            10: data(10, 3, 3) + marker(13, 2, commit=False) + data(14, 1, 1),
        },
    )
    found = decided(scans)
    assert found.aborted == (Aborted(1, 0, 8), Aborted(2, 6, 13))
    assert found.first_open == 10
    assert scans[-1].next_offset == 15


def rows(scans: list[SegmentScan], aborted: tuple[Aborted, ...] | None, start: int = 0, end: int = 99) -> list[int]:
    found: list[int] = []
    for each in scans:
        for chunk in chunks_of(FileDisk(each.segment.root), each, start, end, aborted):
            for batch in chunk.batches:
                found += range(batch.header.base_offset, batch.header.next_offset)
    return found


def test_aborted_records_are_left_out_in_every_segment(tmp_path: Path) -> None:
    scans = scans_of(
        tmp_path,
        {
            0: data(0, 2, 1) + data(2, 2),
            4: data(4, 2, 1) + marker(6, 1, commit=False),
            7: data(7, 1, 1) + marker(8, 1, commit=True),
        },
    )
    aborted = decided(scans).aborted
    assert rows(scans, aborted) == [2, 3, 7]
    assert rows(scans, None) == [0, 1, 2, 3, 4, 5, 7]
    assert rows(scans, None, start=2, end=7) == [0, 1, 2, 3, 4, 5]
    second = list(chunks_of(FileDisk(str(tmp_path)), scans[1], 5, 99, aborted))
    assert [(chunk.aborted, chunk.control) for chunk in second] == [(1, 1)], "of the offsets from 5 on"


def test_a_torn_end_is_cut_and_a_break_in_the_middle_is_told(tmp_path: Path) -> None:
    torn = scans_of(tmp_path / "torn", {0: data(0, 5) + data(5, 5)[:-3]})
    assert (torn[0].next_offset, torn[0].cut_bytes) == (5, len(data(5, 5)) - 3)
    assert rows(torn, None) == [0, 1, 2, 3, 4]
    with pytest.raises(PipelineError, match=r"00000000000000000000\.log' breaks off at byte .*barnabas dump"):
        scans_of(tmp_path / "broken", {0: data(0, 5)[:-1] + b"x", 5: data(5, 5)})


def test_the_copy_that_goes_furthest_is_read(tmp_path: Path) -> None:
    short = scans_of(tmp_path / "a", {0: data(0, 5)})
    long = scans_of(tmp_path / "b", {0: data(0, 5) + data(5, 5)})
    later = scans_of(tmp_path / "c", {0: data(0, 5), 5: data(5, 2, epoch=3)})
    assert newest_copy([*short, *long]) == long
    assert newest_copy([*long, *later, *short]) == later


def test_a_batch_larger_than_one_read(tmp_path: Path) -> None:
    big = build_batch([NewRecord(None, bytes(5 * 1024 * 1024), 0)], base_offset=1, leader_epoch=0)
    scans = scans_of(tmp_path, {0: data(0, 1) + bytes(big) + data(2, 1)})
    assert rows(scans, None) == [0, 1, 2]


def test_an_empty_segment(tmp_path: Path) -> None:
    scans = scans_of(tmp_path, {8: b""})
    assert (scans[0].first_offset, scans[0].next_offset) == (8, 8)
    assert rows(scans, None) == []


def test_a_directory_that_is_in_use(tmp_path: Path) -> None:
    disk = FileDisk(str(tmp_path))
    lock = lock_directory(disk, str(tmp_path))
    with pytest.raises(PipelineError, match="is used by a running broker: stop the broker"):
        lock_directory(disk, str(tmp_path))
    lock.release()
    lock_directory(disk, str(tmp_path)).release()
