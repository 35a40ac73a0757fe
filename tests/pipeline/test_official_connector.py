"""Spark's own Kafka connector against Barnabas, unchanged: what it can be asked for, in batches and in streams.

The connector carries Java's clients (3.9): its planner asks as an administrator, its tasks fetch by topic id in sessions, its sink
is an idempotent producer. Where these fail, a broker is wrong.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clients.librdkafka import value_of

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F

from tests.support.pipeline import topics
from tests.support.pipeline.spark_kafka import Kafka, into_parquet, numbers, texts, values
from tests.support.processes.served import ServedBroker

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.clients


def every_second_aborted(bootstrap: str, topic: str, transactions: int, size: int) -> Producer:
    """Numbers in transactions of so many records, the first one committed, the second aborted, and so on; by which producer."""
    producer = topics.transactional(bootstrap)
    for number in range(transactions):
        topics.in_transaction(producer, topic, numbers(number * size, number * size + size))
        topics.end_transaction(bootstrap, producer, commit=number % 2 == 0)
    return producer


@pytest.fixture
def kafka(spark: SparkSession, kafka_connector: str, broker: ServedBroker) -> Kafka:
    return Kafka(spark, broker, kafka_connector)


def test_every_column(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap, 3)
    for partition in range(3):
        topics.send(kafka.bootstrap, topic, numbers(0, 100), partition=partition, key=b"k", timestamp=1_700_000_000_000)
    frame = kafka.read(subscribe=topic)
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    rows = frame.withColumn("ms", F.unix_millis("timestamp")).collect()
    found = Counter((row.topic, row.partition, row.offset, bytes(row.value)) for row in rows)
    assert found == Counter((topic, p, n, value) for p in range(3) for n, value in enumerate(numbers(0, 100)))
    assert {(bytes(row.key), row.ms, row.timestampType) for row in rows} == {(b"k", 1_700_000_000_000, 0)}


def test_append_time_is_told_apart(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap, message_timestamp_type="LogAppendTime")
    topics.send(kafka.bootstrap, topic, numbers(0, 3), timestamp=1_000)
    rows = kafka.read(subscribe=topic).withColumn("ms", F.unix_millis("timestamp")).collect()
    assert {row.timestampType for row in rows} == {1}
    assert min(row.ms for row in rows) > 1_700_000_000_000


def test_offsets_of_each_partition(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap, 3)
    for partition in range(3):
        topics.send(kafka.bootstrap, topic, numbers(0, 100), partition=partition)
    starting = json.dumps({topic: {"0": 40, "1": -2, "2": 99}})
    ending = json.dumps({topic: {"0": 50, "1": 7, "2": -1}})
    frame = kafka.read(subscribe=topic, startingOffsets=starting, endingOffsets=ending)
    counted = {row.partition: (row["n"], row["first"]) for row in _by_partition(frame)}
    assert counted == {0: (10, 40), 1: (7, 0), 2: (1, 99)}


def _by_partition(frame: DataFrame) -> list[Any]:
    return frame.groupBy("partition").agg(F.count("*").alias("n"), F.min("offset").alias("first")).collect()


def test_assigned_partitions(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap, 3)
    for partition in range(3):
        topics.send(kafka.bootstrap, topic, numbers(0, 10), partition=partition)
    counted = {row.partition: row["n"] for row in _by_partition(kafka.read(assign=json.dumps({topic: [0, 2]})))}
    assert counted == {0: 10, 2: 10}


def test_topics_by_pattern(kafka: Kafka) -> None:
    prefix = f"p{uuid.uuid4().hex[:6]}"
    named = [topics.new_topic(kafka.bootstrap, prefix=f"{prefix}-{which}") for which in ("in", "in", "out")]
    for topic in named:
        topics.send(kafka.bootstrap, topic, numbers(0, 5))
    found = Counter(row.topic for row in kafka.read(subscribePattern=f"{prefix}-in-.*").collect())
    assert found == {named[0]: 5, named[1]: 5}


def test_offsets_by_timestamp(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap, 2)
    begin = 1_700_000_000_000
    for partition in range(2):
        for minute in range(10):
            topics.send(
                kafka.bootstrap,
                topic,
                numbers(minute, minute + 1),
                partition=partition,
                timestamp=begin + minute * 60_000,
            )
    frame = kafka.read(subscribe=topic, startingTimestamp=begin + 3 * 60_000, endingTimestamp=begin + 8 * 60_000)
    assert values(frame) == sorted(texts(3, 8) * 2)
    later = json.dumps({topic: {"0": begin + 9 * 60_000, "1": begin + 5 * 60_000 - 1}})
    assert values(kafka.read(subscribe=topic, startingOffsetsByTimestamp=later)) == sorted(
        [*texts(9, 10), *texts(5, 10)]
    )


def test_a_timestamp_after_the_last_record(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap)
    topics.send(kafka.bootstrap, topic, numbers(0, 3), timestamp=1_700_000_000_000)
    beyond: dict[str, Any] = {"subscribe": topic, "startingTimestamp": 1_800_000_000_000}
    assert values(kafka.read(**beyond, startingOffsetsByTimestampStrategy="latest")) == []
    with pytest.raises(Exception, match="No offset matched"):
        kafka.read(**beyond).count()


def test_more_spark_partitions_than_the_topic_has(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap, 2)
    for partition in range(2):
        topics.send(kafka.bootstrap, topic, numbers(0, 1000), partition=partition)
    frame = kafka.read(subscribe=topic, minPartitions=8)
    assert frame.rdd.getNumPartitions() == 8
    assert values(frame) == sorted(texts(0, 1000) * 2)
    assert kafka.read(subscribe=topic, minPartitions=3, maxRecordsPerPartition=100).rdd.getNumPartitions() == 20


def test_headers_and_what_is_null(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap)
    topics.send(kafka.bootstrap, topic, [b"", None], headers=[("a", b"1"), ("a", b""), ("nothing", None)])
    topics.send(kafka.bootstrap, topic, [b"v"], key=b"")
    rows = kafka.read(subscribe=topic, includeHeaders=True).orderBy("offset").collect()
    given = [("a", b"1"), ("a", b""), ("nothing", None)]
    assert [(row.key, row.value, [tuple(header) for header in row.headers or ()]) for row in rows] == [
        (None, b"", given),
        (None, None, given),
        (b"", b"v", []),
    ]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codecs(kafka: Kafka, codec: str) -> None:
    """Read what librdkafka compressed, write it compressed by Java, and read that by librdkafka."""
    source, target = topics.new_topic(kafka.bootstrap), topics.new_topic(kafka.bootstrap)
    topics.send(kafka.bootstrap, source, numbers(0, 2000), compression_type=codec)
    kafka.write(kafka.read(subscribe=source).select("value"), topic=target, kafka__compression__type=codec)
    assert sorted(value_of(message) for message in topics.read_committed(kafka.bootstrap, target)) == numbers(0, 2000)


def test_aborted_transactions_are_left_out(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap)
    every_second_aborted(kafka.bootstrap, topic, 10, 400)
    committed = [text for number in range(0, 10, 2) for text in texts(number * 400, number * 400 + 400)]
    assert values(kafka.read(subscribe=topic, kafka__isolation__level="read_committed")) == committed
    assert values(kafka.read(subscribe=topic)) == texts(0, 4000), "read_uncommitted is the connector's default"


def test_an_open_transaction_ends_what_is_read(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap)
    committed: dict[str, Any] = {"subscribe": topic, "kafka__isolation__level": "read_committed"}
    topics.send(kafka.bootstrap, topic, numbers(0, 100))
    producer = topics.transactional(kafka.bootstrap)
    topics.in_transaction(producer, topic, numbers(100, 150))
    topics.send(kafka.bootstrap, topic, numbers(150, 200))
    assert values(kafka.read(**committed)) == texts(0, 100)
    assert values(kafka.read(subscribe=topic)) == texts(0, 200)
    topics.end_transaction(kafka.bootstrap, producer)
    assert values(kafka.read(**committed)) == [*texts(0, 100), *texts(150, 200)]


def test_a_stream_ends_over_an_aborted_tail(kafka: Kafka, tmp_path: Path) -> None:
    """AvailableNow plans to an offset behind which only aborted records and markers lie; reading must get there."""
    topic = topics.new_topic(kafka.bootstrap)
    topics.send(kafka.bootstrap, topic, numbers(0, 500))
    producer = topics.transactional(kafka.bootstrap)
    for number in range(10):
        topics.in_transaction(producer, topic, numbers(500 + number * 50, 550 + number * 50))
        topics.end_transaction(kafka.bootstrap, producer)
    query = into_parquet(kafka.stream(subscribe=topic, kafka__isolation__level="read_committed"), tmp_path)
    assert values(kafka.spark.read.parquet(str(tmp_path / "data"))) == texts(0, 500)
    progress = query.lastProgress
    assert progress is not None
    assert json.loads(progress["sources"][0]["endOffset"])[topic] == {"0": 1010}, "1,000 records, 10 markers"


def test_a_stream_in_limited_steps_goes_on_after_a_restart(kafka: Kafka, tmp_path: Path) -> None:
    topic = topics.new_topic(kafka.bootstrap, 2)
    for partition in range(2):
        topics.send(kafka.bootstrap, topic, numbers(0, 500), partition=partition)
    frame = kafka.stream(subscribe=topic, maxOffsetsPerTrigger=250)
    steps = [step["numInputRows"] for step in into_parquet(frame, tmp_path).recentProgress if step["numInputRows"]]
    assert steps == [250] * 4
    for partition in range(2):
        topics.send(kafka.bootstrap, topic, numbers(500, 600), partition=partition)
    into_parquet(frame, tmp_path)
    rows = kafka.spark.read.parquet(str(tmp_path / "data")).collect()
    assert Counter((row.partition, row.offset) for row in rows) == Counter((p, n) for p in range(2) for n in range(600))


def test_a_partition_that_is_added_is_read_from_its_beginning(kafka: Kafka, tmp_path: Path) -> None:
    topic = topics.new_topic(kafka.bootstrap)
    topics.send(kafka.bootstrap, topic, numbers(0, 10))
    frame = kafka.stream(subscribe=topic)
    into_parquet(frame, tmp_path)
    topics.add_partitions(kafka.bootstrap, topic, 3)
    topics.send(kafka.bootstrap, topic, numbers(10, 20), partition=2)
    into_parquet(frame, tmp_path)
    assert values(kafka.spark.read.parquet(str(tmp_path / "data"))) == texts(0, 20)


def test_a_stream_into_topics_partitions_and_headers_of_the_rows(kafka: Kafka, tmp_path: Path) -> None:
    source = topics.new_topic(kafka.bootstrap)
    targets = [topics.new_topic(kafka.bootstrap, 2) for _ in range(2)]
    topics.send(kafka.bootstrap, source, numbers(0, 400))
    frame = kafka.stream(subscribe=source).select(
        F.when(F.col("offset") < 200, targets[0]).otherwise(targets[1]).alias("topic"),
        (F.col("offset") % 2).cast("int").alias("partition"),
        "value",
        F.array(
            F.struct(F.lit("offset").alias("key"), F.col("offset").cast("string").cast("binary").alias("value"))
        ).alias("headers"),
    )
    kafka.write_stream(frame, tmp_path, includeHeaders=True)
    for which, target in enumerate(targets):
        messages = topics.read_committed(kafka.bootstrap, target, 2)
        assert sorted(value_of(message) for message in messages) == numbers(which * 200, which * 200 + 200)
        for message in messages:
            offset = int(value_of(message))
            assert message.partition() == offset % 2
            assert message.headers() == [("offset", b"%d" % offset)]


def test_an_aggregate_in_update_mode(kafka: Kafka, tmp_path: Path) -> None:
    source, target = topics.new_topic(kafka.bootstrap), topics.new_topic(kafka.bootstrap)
    frame = (
        kafka.stream(subscribe=source)
        .groupBy((F.col("value").cast("string").cast("int") % 3).cast("string").alias("key"))
        .agg(F.count("*").cast("string").alias("value"))
    )
    for start in (0, 300):
        topics.send(kafka.bootstrap, source, numbers(start, start + 300))
        kafka.write_stream(frame, tmp_path, "update", topic=target)
    written = [(message.key(), message.value()) for message in topics.read_committed(kafka.bootstrap, target)]
    assert Counter(written) == Counter((b"%d" % key, total) for key in range(3) for total in (b"100", b"200"))


def test_lost_data_fails_a_stream_that_asks_for_it(kafka: Kafka, tmp_path: Path) -> None:
    topic = topics.new_topic(kafka.bootstrap)
    topics.send(kafka.bootstrap, topic, numbers(0, 100))
    into_parquet(kafka.stream(subscribe=topic, maxOffsetsPerTrigger=50), tmp_path / "strict")
    topics.send(kafka.bootstrap, topic, numbers(100, 300))
    topics.delete_records(kafka.bootstrap, topic, {0: 200})
    with pytest.raises(StreamingQueryException, match=r"offset|data"):
        into_parquet(kafka.stream(subscribe=topic), tmp_path / "strict")
    into_parquet(kafka.stream(subscribe=topic, failOnDataLoss=False), tmp_path / "lenient")
    assert values(kafka.spark.read.parquet(str(tmp_path / "lenient" / "data"))) == texts(200, 300)


def test_offsets_by_a_consumer_group_as_of_old(kafka: Kafka, tmp_path: Path) -> None:
    topic = topics.new_topic(kafka.bootstrap, 2)
    for partition in range(2):
        topics.send(kafka.bootstrap, topic, numbers(0, 100), partition=partition)
    key = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
    kafka.spark.conf.set(key, "true")
    try:
        into_parquet(kafka.stream(subscribe=topic), tmp_path)
        assert len(kafka.read(subscribe=topic).collect()) == 200
    finally:
        kafka.spark.conf.unset(key)
    assert values(kafka.spark.read.parquet(str(tmp_path / "data"))) == sorted(texts(0, 100) * 2)


def test_a_topic_that_is_not_there(kafka: Kafka) -> None:
    missing = f"missing-{uuid.uuid4().hex[:8]}"
    with pytest.raises(Exception, match="UnknownTopicOrPartitionException"):
        kafka.read(assign=json.dumps({missing: [0]})).count()


def test_a_batch_without_a_topic_to_write_to_is_refused(kafka: Kafka) -> None:
    with pytest.raises(AnalysisException, match="topic"):
        kafka.write(kafka.spark.range(1).select(F.col("id").cast("string").alias("value")))
