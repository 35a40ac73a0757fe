"""Files on an S3-compatible store: FileSink without an atomic rename."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyarrow", reason="the extra `pipeline` is not installed")
pytest.importorskip("moto.server", reason="the extra `dev` is not installed")

import pyarrow as pa
import pyarrow.dataset as dataset

from barnabas.pipeline.decision_record import BatchDecision, Identity, PreparedPart
from barnabas.pipeline.decisions import BatchStart, CommitResult, TaskName
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.file_sink import STAGING, FileSink
from barnabas.pipeline.parquet_part import StoreFolder, open_folder
from barnabas.pipeline.two_phase_commit import Task
from tests.support.pipeline.object_store import ObjectStore

START = BatchStart(Identity(7, 3))


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as running:
        yield running


@pytest.fixture
def uri(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return store.new_folder()


async def prepared(sink: FileSink, *rows: int, unique: int = 1) -> PreparedPart:
    part = await sink.begin(Task("s", START, TaskName(0, unique), 0, "q"))
    for row in rows:
        await part.write(pa.record_batch({"n": [row]}))
    handle = await sink.pre_commit(part)
    await part.close()
    return handle


def decision(*parts: PreparedPart) -> BatchDecision:
    return BatchDecision(1, "q", START.driver, parts)


def visible(uri: str) -> list[int]:
    """What a reader finds that passes over names with an underscore, as Spark does."""
    folder = opened(uri)
    found = dataset.dataset(folder.root, filesystem=folder.filesystem, format="parquet")
    return sorted(found.to_table()["n"].to_pylist()) if found.files else []


def opened(uri: str) -> StoreFolder:
    folder = open_folder(uri, "files.path")
    assert isinstance(folder, StoreFolder)
    return folder


async def test_rows_appear_with_the_commit_and_stay(uri: str) -> None:
    sink = FileSink("s", uri)
    handle, dropped = await prepared(sink, 1, 2, 3), await prepared(sink, 4, unique=2)
    assert (handle.rows, visible(uri)) == (3, [])
    other = FileSink("s", uri)  # of another process
    assert sorted(h.key for h in await other.list_open()) == sorted([handle.key, dropped.key])
    for _ in range(2):
        assert await other.commit(handle, decision(handle)) is CommitResult.COMMITTED
        await other.abort(dropped)
    await other.abort(handle)
    assert await other.commit(dropped, decision(dropped)) is CommitResult.LOST
    assert visible(uri) == [1, 2, 3]
    assert await other.list_open() == []


async def test_a_driver_that_dies_between_copy_and_removal_leaves_one_file(uri: str) -> None:
    sink, folder = FileSink("s", uri), opened(uri)
    handle = await prepared(sink, 1)
    folder.filesystem.copy_file(f"{folder.root}/{STAGING}/{handle.key}", f"{folder.root}/{handle.key}")
    assert await FileSink("s", uri).commit(handle, decision(handle)) is CommitResult.COMMITTED
    assert visible(uri) == [1]
    assert await sink.list_open() == []


async def test_a_file_that_its_readers_took_away_was_committed(uri: str) -> None:
    sink = FileSink("s", uri)
    handle = await prepared(sink, 1)
    await sink.commit(handle, decision(handle))
    opened(uri).remove(handle.key)
    assert await FileSink("s", uri).commit(handle, decision(handle)) is CommitResult.COMMITTED


async def test_a_store_that_cannot_be_written_is_told(uri: str) -> None:
    with pytest.raises(PipelineError, match=r"files\.path.*cannot be written"):
        await prepared(FileSink("s", "s3://no-such-bucket/rows"), 1)
    with pytest.raises(PipelineError, match=r"files\.path.*name a directory, or s3://"):
        FileSink("s", "sftp://host/rows")


def test_a_uri_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(PipelineError, match="environment") as refused:
        FileSink("s", "s3://key:hunter2@bucket/rows")
    assert "hunter2" not in str(refused.value)
