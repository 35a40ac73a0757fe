"""Delta Lake and Iceberg tables as participants: one commit adds a batch's rows once, also if it is repeated or others commit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake", reason="the extra `tables` is not installed")
pytest.importorskip("pyiceberg", reason="the extra `tables` is not installed")

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from barnabas.pipeline.decision_record import BatchDecision, Identity, PreparedPart
from barnabas.pipeline.decisions import BatchStart, CommitResult, TaskName
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.table_sink import DeltaSink, IcebergSink, TableSink
from barnabas.pipeline.two_phase_commit import Task
from tests.support.pipeline.lake import Lake

DRIVER = Identity(7, 3)
COLUMNS = pa.schema({"n": pa.int64(), "text": pa.string()})


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param, COLUMNS)


async def prepared(
    sink: TableSink, batch: int, *rows: int, unique: int = 1, decided: int | None = None
) -> PreparedPart:
    last = BatchDecision(batch if decided is None else decided, "q", DRIVER, ())
    part = await sink.begin(Task(sink.sink_id, BatchStart(DRIVER, last), TaskName(0, unique), batch, "q"))
    for row in rows:
        await part.write(pa.record_batch({"text": ["t"], "n": pa.array([row], pa.int32())}))
    handle = await sink.pre_commit(part)
    await part.close()
    return handle


def decision(next_batch: int, *parts: PreparedPart) -> BatchDecision:
    return BatchDecision(next_batch, "q", DRIVER, parts)


async def test_a_batch_appears_with_one_commit_and_once(lake: Lake) -> None:
    sink = lake.sink()
    first = decision(1, await prepared(sink, 0, 1, 2), await prepared(sink, 0, 3, unique=2))
    assert [part.rows for part in first.handles] == [2, 1]
    assert lake.column("n") == []
    other = lake.sink()
    assert await other.commit(first.handles[1], first) is CommitResult.COMMITTED
    assert lake.column("n") == [1, 2, 3]
    for repeated in (other, lake.sink()):
        for handle in first.handles:
            assert await repeated.commit(handle, first) is CommitResult.COMMITTED
    second = decision(2, await prepared(lake.sink(), 1, 4))
    assert await lake.sink().commit(second.handles[0], second) is CommitResult.COMMITTED
    assert await lake.sink().commit(first.handles[0], first) is CommitResult.COMMITTED, "by a zombie"
    assert lake.column("n") == [1, 2, 3, 4]


async def test_of_two_processes_in_phase_two_one_appends(lake: Lake) -> None:
    """Both have read the same version of the table."""
    sink, other = lake.sink(), lake.sink()
    part = await prepared(sink, 0, 1)
    read = sink.read()
    assert await other.commit(part, decision(1, part)) is CommitResult.COMMITTED
    assert not sink.append(read.version, [part], 1)
    assert await sink.commit(part, decision(1, part)) is CommitResult.COMMITTED
    assert lake.column("n") == [1]


async def test_other_writers_may_be_faster(lake: Lake) -> None:
    sink = lake.sink()
    part = await prepared(sink, 0, 1)
    read = sink.read()
    lake.add(n=100, text="of another writer")
    assert not sink.append(read.version, [part], 1)
    assert await sink.commit(part, decision(1, part)) is CommitResult.COMMITTED
    assert lake.column("n") == [1, 100]


async def test_sinks_of_one_table_do_not_know_each_other(lake: Lake) -> None:
    for number, sink in enumerate((lake.sink(), lake.sink("another"))):
        part = await prepared(sink, 0, number)
        assert await sink.commit(part, decision(1, part)) is CommitResult.COMMITTED
    assert lake.column("n") == [0, 1]


async def test_maintenance_of_the_table_does_not_forget_a_batch(lake: Lake) -> None:
    for batch in range(3):
        part = await prepared(lake.sink(), batch, batch)
        await lake.sink().commit(part, decision(batch + 1, part))
    lake.maintain()
    assert await lake.sink().commit(part, decision(3, part)) is CommitResult.COMMITTED
    assert lake.column("n") == [0, 1, 2]


async def test_an_aborted_part_is_gone_and_its_batch_is_lost(lake: Lake) -> None:
    sink = lake.sink()
    parts = [await prepared(sink, 0, 1), await prepared(sink, 0, 2, unique=2)]
    for _ in range(2):
        await sink.abort(parts[0])
    for part in parts:
        assert await sink.commit(part, decision(1, *parts)) is CommitResult.LOST
    assert lake.column("n") == []


async def test_a_sink_whose_decisions_were_lost_is_refused(lake: Lake) -> None:
    """Its first batches would be taken for those in the table."""
    part = await prepared(lake.sink(), 4, 1)
    await lake.sink().commit(part, decision(5, part))
    with pytest.raises(PipelineError, match=r"has appended batches up to 4 .*, and decided 0 batches: stop the other"):
        await prepared(lake.sink(), 0, 1, decided=0)


async def test_rows_have_the_columns_of_the_table(lake: Lake) -> None:
    sink = lake.sink()
    task = Task("s", BatchStart(DRIVER), TaskName(0, 1), 0, "q")
    part = await sink.begin(task)
    with pytest.raises(PipelineError, match="select the columns of the table: n, text"):
        await part.write(pa.record_batch({"n": [1]}))
    with pytest.raises(PipelineError, match="cast them to the table's types"):
        await part.write(pa.record_batch({"n": ["one"], "text": ["t"]}))
    await part.close()


def partitioned_delta(folder: Path) -> TableSink:
    DeltaTable.create(str(folder / "p"), COLUMNS, partition_by=["n"])
    return DeltaSink("s", str(folder / "p"))


def constrained_delta(folder: Path) -> TableSink:
    DeltaTable.create(str(folder / "c"), COLUMNS).alter.add_constraint({"positive": "n > 0"})
    return DeltaSink("s", str(folder / "c"))


def missing_delta(folder: Path) -> TableSink:
    return DeltaSink("s", str(folder / "m"))


def partitioned_iceberg(folder: Path) -> TableSink:
    from pyiceberg.transforms import IdentityTransform

    lake = Lake(folder, "iceberg", COLUMNS)
    with load_catalog("lake", **lake.catalog).load_table("db.t").update_spec() as spec:
        spec.add_field("n", IdentityTransform())
    return lake.sink()


def missing_iceberg(folder: Path) -> TableSink:
    return IcebergSink("s", "lake.db.other", Lake(folder, "iceberg", COLUMNS).catalog)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (partitioned_delta, r"delta\.path.*cannot take files as they are \(n\)"),
        (constrained_delta, r"delta\.path.*\(delta\.constraints\.positive\)"),
        (missing_delta, r"delta\.path.*is no table.*: create the table first"),
        (partitioned_iceberg, r"iceberg\.table.*has partitions"),
        (missing_iceberg, r"iceberg\.table.*is no table"),
    ],
)
async def test_a_table_that_cannot_be_written_is_told(
    made: Callable[[Path], TableSink], words: str, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=words):
        await prepared(made(tmp_path), 0, 1)


def test_secrets_of_a_catalog_are_not_told() -> None:
    sink = IcebergSink("s", "lake.db.t", {"token": "hunter2"})
    with pytest.raises(PipelineError, match=r"iceberg\.catalog.*iceberg\.catalog\.type") as told:
        sink.read()
    assert "hunter2" not in f"{told.value}{told.value.__cause__}"


async def test_a_missing_library_is_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    gone: Any = None
    library = "deltalake" if lake.kind == "delta" else "pyiceberg.catalog"
    monkeypatch.setitem(sys.modules, library, gone)
    with pytest.raises(PipelineError, match=rf"needs {library}: install it .*pip install 'barnabas\[tables\]'"):
        await prepared(lake.sink(), 0, 1)
