"""Files as a participant: staged, synced, moved into place or removed, in any order of repetitions."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `pipeline` is not installed")

import pyarrow as pa
import pyarrow.parquet as parquet

from barnabas.pipeline.decision_record import BatchDecision, Identity, PreparedPart
from barnabas.pipeline.decisions import BatchStart, CommitResult, TaskName
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.file_sink import STAGING, FileSink
from barnabas.pipeline.parquet_part import ParquetPart
from barnabas.pipeline.two_phase_commit import Task
from tests.support.pipeline.small_disk import small_disk

START = BatchStart(Identity(7, 3))


def task(batch: int = 0, unique: int = 1, start: BatchStart = START) -> Task:
    return Task("s", start, TaskName(0, unique), batch, "q")


async def prepared(sink: FileSink, of: Task, *rows: int) -> PreparedPart:
    part = await sink.begin(of)
    for row in rows:
        await part.write(pa.record_batch({"n": [row]}))
    handle = await sink.pre_commit(part)
    await part.close()
    return handle


def decision(handle: PreparedPart, next_batch: int = 1) -> BatchDecision:
    return BatchDecision(next_batch, "q", START.driver, (handle,))


def visible(folder: Path) -> list[int]:
    return sorted(n for path in folder.glob("*.parquet") for n in parquet.read_table(path)["n"].to_pylist())


async def test_rows_appear_with_the_commit_and_stay(tmp_path: Path) -> None:
    sink = FileSink("s", str(tmp_path))
    handle = await prepared(sink, task(), 1, 2, 3)
    assert (handle.rows, visible(tmp_path)) == (3, [])
    other = FileSink("s", str(tmp_path))  # of another process
    assert [h.key for h in await other.list_open()] == [handle.key]
    for _ in range(2):
        assert await other.commit(handle, decision(handle)) is CommitResult.COMMITTED
    await other.abort(handle)
    assert visible(tmp_path) == [1, 2, 3]
    assert await other.list_open() == []


def test_new_directories_have_the_modes_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        FileSink("s", str(tmp_path / "year" / "month"))
    finally:
        os.umask(before)
    for folder in ("year", "year/month", f"year/month/{STAGING}"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o755, folder


async def test_an_aborted_part_is_gone_and_its_commit_is_lost(tmp_path: Path) -> None:
    sink = FileSink("s", str(tmp_path))
    handle = await prepared(sink, task(), 1)
    for _ in range(2):
        await sink.abort(handle)
    assert await sink.commit(handle, decision(handle)) is CommitResult.LOST
    assert (visible(tmp_path), await sink.list_open()) == ([], [])


async def test_a_file_that_its_readers_took_away_was_committed(tmp_path: Path) -> None:
    sink = FileSink("s", str(tmp_path))
    handle = await prepared(sink, task(), 1)
    await sink.commit(handle, decision(handle))
    (tmp_path / handle.key).unlink()
    assert await FileSink("s", str(tmp_path)).commit(handle, decision(handle)) is CommitResult.COMMITTED


async def test_marks_of_earlier_batches_do_not_pile_up(tmp_path: Path) -> None:
    for batch in range(4):
        sink = FileSink("s", str(tmp_path))
        await sink.commit(handle := await prepared(sink, task(batch, batch), batch), decision(handle, batch + 1))
    assert visible(tmp_path) == [0, 1, 2, 3]
    assert len(list((tmp_path / STAGING).iterdir())) == 1


async def test_a_batch_start_knows_its_own_parts(tmp_path: Path) -> None:
    sink = FileSink("s", str(tmp_path))
    later = BatchStart(Identity(7, 5))
    mine, theirs = await prepared(sink, task(), 1), await prepared(sink, task(unique=2, start=later), 1)
    other = FileSink("t", str(tmp_path))
    await prepared(other, task()._replace(sink_id="t"), 9)
    assert [h.key for h in await sink.list_open(START)] == [mine.key]
    assert [h.key for h in await sink.list_open(later)] == [theirs.key]
    assert len(await sink.list_open()) == 2


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match=r"files\.path.*cannot be written"):
        FileSink("s", str(tmp_path / "file" / "below"))


async def test_a_disk_that_is_full_is_named(tmp_path: Path) -> None:
    """In the middle of a file, and by what is written when it ends; what is left can be removed as any part."""
    rows = [random.Random(number).randbytes(1000) for number in range(60)]
    for written in (60, 30):
        sink = FileSink("s", str(tmp_path))
        part = await sink.begin(task())
        expected = rf"option 'files.path' = '{tmp_path}' cannot be written \(.*File too large"
        with pytest.raises(PipelineError, match=expected) as told, small_disk():
            await prepare(sink, part, rows, written)
        assert "with room for the rows" in told.value.remedy
        await part.close()
        (left,) = await sink.list_open()
        await sink.abort(left)
        assert await sink.list_open() == []
    assert visible(tmp_path) == []


async def prepare(sink: FileSink, part: ParquetPart, rows: list[bytes], at_once: int) -> None:
    for first in range(0, len(rows), at_once):
        await part.write(pa.record_batch({"n": rows[first : first + at_once]}))
    await sink.pre_commit(part)
