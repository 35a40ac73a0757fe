"""`write_batch` in foreachBatch: several outputs under one decision, batches that Spark repeats, and drivers that die in the middle.

Topics, files and tables of Delta Lake and Iceberg must agree each time.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clients.librdkafka import value_of

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")
pytest.importorskip("deltalake", reason="the extra `tables` is not installed")

import pyarrow as pa
import pyarrow.dataset as dataset
from pyspark.errors import PySparkException
from pyspark.sql.streaming import StreamingQuery

from barnabas.pipeline import PipelineError, write_batch
from barnabas.pipeline.decisions import CommitDecision, CommitHandle, Fence
from barnabas.pipeline.two_phase_commit import CommitCoordinator
from tests.support.pipeline.lake import Lake
from tests.support.pipeline.topics import new_topic, read_committed
from tests.support.processes.cli import barnabas
from tests.support.processes.served import ServedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENDED_SECONDS_MAX = 300
NUMBERS = pa.schema({"number": pa.int32()})


class Orders:
    """Numbers go to a topic, to files and to tables, all other lines to a topic of dead letters."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.folder = folder
        self.numbers, self.dead = (new_topic(bootstrap) for _ in range(2))
        self.files = str(folder / "files")
        self.sink_id = f"s-{uuid.uuid4().hex[:8]}"
        self.options = {"kafka.bootstrap.servers": bootstrap, "sink.id": self.sink_id}
        self.lakes = [Lake(folder, kind, NUMBERS) for kind in ("delta", "iceberg")]

    def write(self, lines: DataFrame, batch: int) -> None:
        number = "CAST(value AS INT)"
        good = lines.where("value RLIKE '^[0-9]+$'").selectExpr("value", f"{number} AS number")
        bad = lines.where("NOT value RLIKE '^[0-9]+$'")
        places = {"topic": self.numbers, "files.path": self.files}
        for lake in self.lakes:
            places |= lake.options
        write_batch(batch, self.options, (good, places), (bad, {"topic": self.dead}))

    def write_once(self, lines: DataFrame, batch: int) -> None:
        """A second call for the batch would be taken for a repeated one, and its rows would be lost."""
        self.write(lines, batch)
        with pytest.raises(PipelineError, match=f"has written batch {batch} in this run: write all frames"):
            self.write(lines, batch)

    def frame(self, batch: int) -> DataFrame:
        return self.spark.createDataFrame([(f"{batch}",), (f"bad {batch}",)], "value string").coalesce(1)

    def check(self, batches: int) -> None:
        """Each row of these batches is there once, and nothing is open."""
        assert f"{self.sink_id}." not in barnabas("txn", "list", "--state", "Ongoing", "-b", self.bootstrap).stdout
        found = [value_of(m) for m in read_committed(self.bootstrap, self.numbers)]
        assert sorted(found) == sorted(b"%d" % n for n in range(batches))
        assert sorted(dataset.dataset(self.files).to_table()["number"].to_pylist()) == list(range(batches))
        assert [lake.column("number") for lake in self.lakes] == [list(range(batches))] * 2
        letters = [value_of(m) for m in read_committed(self.bootstrap, self.dead)]
        assert sorted(letters) == sorted(b"bad %d" % n for n in range(batches))

    def run(self, checkpoint: str) -> StreamingQuery:
        lines = self.spark.readStream.option("maxFilesPerTrigger", "1").text(str(self.folder / "input"))
        writer = lines.writeStream.foreachBatch(self.write_once).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.folder / checkpoint)).start()
        assert query.awaitTermination(ENDED_SECONDS_MAX), query.status
        return query


@pytest.fixture
def orders(spark: SparkSession, broker: ServedBroker, tmp_path: Path) -> Orders:
    return Orders(spark, broker.address, tmp_path)


def test_a_batch_that_spark_repeats_is_not_written_again(orders: Orders) -> None:
    (orders.folder / "input").mkdir()
    for number in range(2):
        (orders.folder / "input" / f"{number}").write_text(f"{number}\nbad {number}\n")
    orders.run("checkpoint")
    orders.check(2)
    logged = orders.folder / "checkpoint" / "commits"
    (logged / "1").unlink()
    (logged / ".1.crc").unlink()
    query = orders.run("checkpoint")
    orders.check(2)
    assert f"query {query.id}, 2 batches" in barnabas("sink", "describe", orders.sink_id, "-b", orders.bootstrap).stdout


class Dies(BaseException):
    """Stands for SIGKILL: nothing of the driver runs after it."""


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, when: Callable[[Any, list[type]], bool]) -> Iterator[None]:
    """A driver in the block dies when it is about to perform such an effect, after effects of these types."""
    performed: list[type] = []
    perform = CommitCoordinator.perform
    dead = False

    async def performing(self: CommitCoordinator, effect: Any) -> Any:
        nonlocal dead
        dead = dead or when(effect, performed)
        if dead:
            raise Dies
        performed.append(type(effect))
        return await perform(self, effect)

    with monkeypatch.context() as patch:
        patch.setattr(CommitCoordinator, "perform", performing)
        yield


def fenced(effect: Any, performed: list[type]) -> bool:
    return Fence in performed


def prepared(effect: Any, performed: list[type]) -> bool:
    return isinstance(effect, CommitDecision)


def decided(effect: Any, performed: list[type]) -> bool:
    return CommitDecision in performed


def half_committed(effect: Any, performed: list[type]) -> bool:
    """One of five parts is."""
    return performed[-2:] == [CommitDecision, CommitHandle]


def half_in_tables(effect: Any, performed: list[type]) -> bool:
    """The rows are in Delta's table, and not in Iceberg's."""
    return performed[-4:] == [CommitDecision, CommitHandle, CommitHandle, CommitHandle]


def test_a_driver_that_dies_leaves_nothing_lost_or_twice(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch, point in enumerate((fenced, prepared, decided, half_committed, half_in_tables)):
        with dying(monkeypatch, point), pytest.raises(Dies):
            orders.write(orders.frame(batch), batch)
        orders.write(orders.frame(batch), batch)
        orders.check(batch + 1)


def test_a_decided_batch_runs_no_job(orders: Orders) -> None:
    orders.write(orders.frame(0), 0)
    orders.write(orders.frame(0).selectExpr("CAST(raise_error('computed again') AS STRING) AS value"), 0)
    orders.check(1)


def test_files_on_an_object_store(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    object_store = pytest.importorskip("tests.support.pipeline.object_store", reason="the extra `dev` lacks moto")
    with object_store.ObjectStore() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
            monkeypatch.setitem(orders.spark.sparkContext.environment, name, value)  # of the tasks
        orders.files = store.new_folder()
        for _ in range(2):
            orders.write(orders.frame(0), 0)
        orders.check(1)


def test_a_failed_frame_leaves_nothing(orders: Orders) -> None:
    with pytest.raises(PySparkException, match="spoilt"):
        orders.write(orders.frame(0).selectExpr("IF(value = '0', value, raise_error('spoilt')) AS value"), 0)
    orders.write(orders.frame(0), 0)
    orders.check(1)
