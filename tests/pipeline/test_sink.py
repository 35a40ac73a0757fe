"""The sink under Spark: streams and batches, where rows go, what is refused, and what a failed task leaves."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clients.librdkafka import place_of

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

import pyarrow as pa
from pyspark.errors import PySparkException

from barnabas.client.producer.core.murmur2 import partition_for_key
from barnabas.pipeline import BarnabasDataSource
from tests.support.pipeline.topics import new_topic, read_committed
from tests.support.processes.cli import barnabas
from tests.support.processes.served import ServedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

PARTITIONS = 2
ENDED_SECONDS_MAX = 300


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    spark.dataSource.register(BarnabasDataSource)


def numbers(bootstrap: str, topic: str) -> list[int]:
    return sorted(int(m.value() or b"-1") for m in read_committed(bootstrap, topic, PARTITIONS))


def is_open(bootstrap: str, sink_id: str) -> bool:
    """Whether a transaction of the sink is."""
    return f"{sink_id}." in barnabas("txn", "list", "--state", "Ongoing", "-b", bootstrap).stdout


class Copy:
    """A query that copies lines of files, two files a batch, and can be started again."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path, **options: str) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.input = folder / "input"
        self.input.mkdir()
        self.output = new_topic(bootstrap, PARTITIONS)
        self.checkpoint = folder / "checkpoint"
        self.sink_id = f"s-{uuid.uuid4().hex[:8]}"
        self.options = {"topic": self.output, "sink.id": self.sink_id, **options}
        self.sent = 0

    def feed(self, count: int, *, files: int = 2) -> None:
        for number in range(files):
            lines = [f"{n}\n" for n in range(self.sent + number, self.sent + count, files)]
            path = self.input / f"{self.sent:06d}-{number}"
            path.with_name(f".{path.name}").write_text("".join(lines))  # Spark passes over such names
            path.with_name(f".{path.name}").rename(path)
        self.sent += count

    @contextmanager
    def running(self, transform: Any = None, **trigger: Any) -> Iterator[StreamingQuery]:
        """The query, for as long as the block lasts."""
        rows = self.spark.readStream.option("maxFilesPerTrigger", "2").text(str(self.input))
        writer = (rows if transform is None else transform(rows)).writeStream.format("barnabas")
        writer = writer.option("kafka.bootstrap.servers", self.bootstrap).options(**self.options)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        query = (writer.trigger(**trigger) if trigger else writer).start()
        try:
            yield query
        finally:
            query.stop()

    def run(self, transform: Any = None) -> int:
        """Runs until everything is copied; returns the number of batches."""
        with self.running(transform, availableNow=True) as query:
            assert query.awaitTermination(ENDED_SECONDS_MAX), query.status
        return len([progress for progress in query.recentProgress if progress["numInputRows"]])


@pytest.mark.parametrize("delivery", ["exactly_once", "per_partition", "at_least_once"])
def test_a_stream_is_copied_and_goes_on_where_it_was(
    spark: SparkSession, broker: ServedBroker, tmp_path: Path, delivery: str
) -> None:
    copy = Copy(spark, broker.address, tmp_path, delivery=delivery)
    copy.feed(100, files=4)
    assert copy.run() == 2
    copy.feed(30)
    assert copy.run() == 1
    assert numbers(broker.address, copy.output) == list(range(130))
    assert not is_open(broker.address, copy.sink_id)


def test_topics_and_files_agree(spark: SparkSession, broker: ServedBroker, tmp_path: Path) -> None:
    files = tmp_path / "files"
    copy = Copy(spark, broker.address, tmp_path, **{"files.path": str(files)})
    copy.feed(100)

    def with_columns(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("value", "CAST(value AS INT) AS number", "'x' AS kind")

    copy.run(with_columns)
    read = spark.read.parquet(str(files))
    assert read.columns == ["number", "kind"]
    assert sorted(row.number for row in read.collect()) == numbers(broker.address, copy.output) == list(range(100))


def test_a_wiped_checkpoint_is_refused(spark: SparkSession, broker: ServedBroker, tmp_path: Path) -> None:
    copy = Copy(spark, broker.address, tmp_path)
    copy.feed(20)
    copy.run()
    shutil.rmtree(copy.checkpoint)
    with pytest.raises(PySparkException, match=r"sink\.id.* belongs to query .*give each query a sink id of its own"):
        copy.run()
    assert numbers(broker.address, copy.output) == list(range(20))
    assert not is_open(broker.address, copy.sink_id)


def test_a_query_with_the_sink_id_of_a_running_one_is_refused_and_does_not_disturb_it(
    spark: SparkSession, broker: ServedBroker, tmp_path: Path
) -> None:
    for folder in ("live", "intruder"):
        (tmp_path / folder).mkdir()
    live, intruder = (Copy(spark, broker.address, tmp_path / folder) for folder in ("live", "intruder"))
    intruder.options["sink.id"] = live.sink_id
    live.feed(20)
    intruder.feed(20)
    with live.running() as query:
        query.processAllAvailable()
        with pytest.raises(
            PySparkException, match=r"sink\.id.* belongs to query .*give each query a sink id of its own"
        ):
            intruder.run()
        live.feed(20)
        query.processAllAvailable()
        assert query.exception() is None
    assert numbers(broker.address, live.output) == list(range(40))
    assert numbers(broker.address, intruder.output) == []


def test_a_failed_batch_leaves_nothing_and_is_repaired_by_the_next_run(
    spark: SparkSession, broker: ServedBroker, tmp_path: Path
) -> None:
    copy = Copy(spark, broker.address, tmp_path)
    copy.feed(40)
    good = tmp_path / "good"

    def failing(rows: DataFrame) -> DataFrame:
        def through(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch
                if not good.exists() and "39" in batch["value"].to_pylist():
                    raise ValueError("spoilt")

        return rows.mapInArrow(through, "value string")

    with pytest.raises(PySparkException, match="spoilt"):
        copy.run(failing)
    assert numbers(broker.address, copy.output) == []
    good.touch()
    copy.run(failing)
    assert not is_open(broker.address, copy.sink_id)
    assert numbers(broker.address, copy.output) == list(range(40))


def write(frame: DataFrame, bootstrap: str, **options: str) -> None:
    options = {"kafka.bootstrap.servers": bootstrap, **options}
    frame.write.format("barnabas").mode("append").options(**options).save()


def test_rows_go_to_the_topic_and_partition_that_they_name(spark: SparkSession, broker: ServedBroker) -> None:
    one, two = (new_topic(broker.address, PARTITIONS) for _ in range(2))
    rows = [
        (one, 1, None, "to 1"),
        (two, 0, "k", "to 0"),
        (one, None, "a", "by key"),
        (one, None, "b", None),
        (two, 1, "", ""),
    ]
    write(spark.createDataFrame(rows, "topic string, partition int, key string, value string"), broker.address)

    def found(topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
        return sorted(
            [(place_of(m)[1], m.key(), m.value()) for m in read_committed(broker.address, topic, PARTITIONS)], key=repr
        )

    by_a, by_b = (partition_for_key(key, PARTITIONS) for key in (b"a", b"b"))
    assert found(one) == sorted([(1, None, b"to 1"), (by_a, b"a", b"by key"), (by_b, b"b", None)], key=repr)
    assert found(two) == [(0, b"k", b"to 0"), (1, b"", b"")]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_headers_and_compression(spark: SparkSession, broker: ServedBroker, codec: str) -> None:
    topic = new_topic(broker.address, PARTITIONS)
    schema = "value binary, headers array<struct<key:string,value:binary>>"
    rows = [(b"with", [("a", b"1"), ("b", None)]), (b"without", None)]
    frame = spark.createDataFrame(rows, schema)
    write(frame, broker.address, topic=topic, **{"kafka.compression.type": codec})
    found = {m.value(): m.headers() for m in read_committed(broker.address, topic, PARTITIONS)}
    assert found == {b"with": [("a", b"1"), ("b", None)], b"without": None}


def test_a_batch_job_is_visible_as_a_whole(spark: SparkSession, broker: ServedBroker) -> None:
    topic = new_topic(broker.address, PARTITIONS)
    sink = {"topic": topic, "delivery": "exactly_once", "sink.id": f"job-{uuid.uuid4().hex[:8]}"}
    for start in (0, 50):
        write(spark.range(start, start + 50).selectExpr("CAST(id AS STRING) AS value"), broker.address, **sink)
    assert numbers(broker.address, topic) == list(range(100))
    with pytest.raises(PySparkException):
        write(
            spark.range(100, 150).selectExpr("IF(id = 149, raise_error('no'), CAST(id AS STRING)) AS value"),
            broker.address,
            **sink,
        )
    assert numbers(broker.address, topic) == list(range(100))
    assert not is_open(broker.address, sink["sink.id"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "not a topic"}, ["'topic' = 'not a topic'", "is not there", "barnabas topic create"]),
        (
            {"topic": "t", "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.request.timeout.ms": "1000"},
            ["kafka.bootstrap.servers", "127.0.0.1:1", "start the brokers"],
        ),
        ({"topic": "t", "delivery": "exactly_once"}, ["sink.id", "is missing"]),
        (
            {"topic": "t", "delivery": "exactly_once", "sink.id": "s", "files.path": "/proc/nowhere"},
            ["files.path", "/proc/nowhere", "cannot be written"],
        ),
        (
            {
                "topic": "t",
                "delivery": "exactly_once",
                "sink.id": "s",
                "transaction.timeout.ms": "99999999",
                "two.phase.commit": "false",
            },
            ["transaction.timeout.ms"],
        ),
        ({}, ["topic", "is missing"]),
    ],
)
def test_what_cannot_be_written_is_told_before_a_task_starts(
    spark: SparkSession, broker: ServedBroker, options: dict[str, str], words: list[str]
) -> None:
    started = spark.sparkContext.statusTracker()
    frame = spark.createDataFrame([("v",)], "value string")
    with pytest.raises(PySparkException) as refused:
        write(frame, broker.address, **options)
    assert all(word in str(refused.value) for word in words), str(refused.value)
    assert started.getActiveJobsIds() == []
