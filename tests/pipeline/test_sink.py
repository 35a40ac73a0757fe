"""The sink under Spark: streams and batches, where rows go, what is refused, and what a failed task leaves."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

import pyarrow as pa
from pyspark.errors import PySparkException

from barnabas.client.murmur2 import partition_for_key
from barnabas.pipeline import BarnabasDataSource
from tests.pipeline.topics import new_topic, read_committed, send
from tests.process.served import ServedBroker
from tests.process.test_cli import barnabas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2
ENDED_SECONDS_MAX = 120


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    spark.dataSource.register(BarnabasDataSource)


def numbers(bootstrap: str, topic: str) -> list[int]:
    return sorted(int(m.value() or b"-1") for m in read_committed(bootstrap, topic, PARTITIONS))


def nothing_is_open(bootstrap: str) -> bool:
    return "Ongoing" not in barnabas("txn", "list", "--state", "Ongoing", "-b", bootstrap).stdout


class Copy:
    """A query that copies a topic of numbers, batch by batch, and can be started again."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path, **options: str) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.input = new_topic(bootstrap, PARTITIONS)
        self.output = new_topic(bootstrap, PARTITIONS)
        self.checkpoint = folder / "checkpoint"
        self.options = {"topic": self.output, **options}
        self.sent = 0

    def feed(self, count: int) -> None:
        for partition in range(PARTITIONS):
            values = [b"%d" % n for n in range(self.sent + partition, self.sent + count, PARTITIONS)]
            send(self.bootstrap, self.input, values, partition=partition)
        self.sent += count

    def run(self, transform: Any = None, *, each: int = 50) -> int:
        """Runs until everything is copied; returns the number of batches."""
        source = {"subscribe": self.input, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(each)}
        frame = self.spark.readStream.format("barnabas").option("kafka.bootstrap.servers", self.bootstrap)
        rows = frame.options(**source).load().selectExpr("key", "value")
        writer = (rows if transform is None else transform(rows)).writeStream.format("barnabas")
        writer = writer.option("kafka.bootstrap.servers", self.bootstrap).options(**self.options)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(ENDED_SECONDS_MAX), query.status
        finally:
            query.stop()
        return len([progress for progress in query.recentProgress if progress["numInputRows"]])


@pytest.mark.parametrize("delivery", ["exactly_once", "per_partition", "at_least_once"])
def test_a_stream_is_copied_and_goes_on_where_it_was(
    spark: SparkSession, broker: ServedBroker, tmp_path: Path, delivery: str
) -> None:
    copy = Copy(spark, broker.address, tmp_path, delivery=delivery)
    copy.feed(100)
    assert copy.run() == 2
    copy.feed(30)
    assert copy.run() == 1
    assert numbers(broker.address, copy.output) == list(range(130))
    assert nothing_is_open(broker.address)


def test_topics_and_files_agree(spark: SparkSession, broker: ServedBroker, tmp_path: Path) -> None:
    files = tmp_path / "files"
    copy = Copy(spark, broker.address, tmp_path, **{"files.path": str(files)})
    copy.feed(100)

    def with_columns(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("value", "CAST(CAST(value AS STRING) AS INT) AS number", "'x' AS kind")

    copy.run(with_columns)
    read = spark.read.parquet(str(files))
    assert read.columns == ["number", "kind"]
    assert sorted(row.number for row in read.collect()) == numbers(broker.address, copy.output) == list(range(100))


def test_a_wiped_checkpoint_is_refused(spark: SparkSession, broker: ServedBroker, tmp_path: Path) -> None:
    copy = Copy(spark, broker.address, tmp_path, **{"sink.id": f"w-{uuid.uuid4().hex[:8]}"})
    copy.feed(20)
    copy.run()
    shutil.rmtree(copy.checkpoint)
    with pytest.raises(PySparkException, match=r"sink\.id.* belongs to query .*give each query a sink id of its own"):
        copy.run()
    assert numbers(broker.address, copy.output) == list(range(20))
    assert nothing_is_open(broker.address)


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
                if not good.exists() and b"39" in batch["value"].to_pylist():
                    raise ValueError("spoilt")

        return rows.mapInArrow(through, "key binary, value binary")

    with pytest.raises(PySparkException, match="spoilt"):
        copy.run(failing)
    assert numbers(broker.address, copy.output) == []
    good.touch()
    copy.run(failing)
    assert nothing_is_open(broker.address)
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
            [(m.partition(), m.key(), m.value()) for m in read_committed(broker.address, topic, PARTITIONS)], key=repr
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
    assert nothing_is_open(broker.address)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "not a topic"}, ["'topic' = 'not a topic'", "is not there", "barnabas topic create"]),
        (
            {"topic": "t", "kafka.bootstrap.servers": "127.0.0.1:1"},
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
