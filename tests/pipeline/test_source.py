"""The source, in batches and streams: the checks that Spark's own connector passes, then what is different or more."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F

from barnabas.client.types import TopicPartition
from barnabas.pipeline.java import java_home
from barnabas.pipeline.planning import to_json
from tests.pipeline import test_official_connector as official
from tests.support.pipeline import topics
from tests.support.pipeline.spark_kafka import Kafka, into_parquet, numbers, texts, values
from tests.support.processes.served import ServedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.clients

# the same functions, collected here once more: with the fixture `kafka` of this module they read by our source
test_every_column = official.test_every_column
test_append_time_is_told_apart = official.test_append_time_is_told_apart
test_offsets_of_each_partition = official.test_offsets_of_each_partition
test_assigned_partitions = official.test_assigned_partitions
test_topics_by_pattern = official.test_topics_by_pattern
test_offsets_by_timestamp = official.test_offsets_by_timestamp
test_more_spark_partitions_than_the_topic_has = official.test_more_spark_partitions_than_the_topic_has
test_headers_and_what_is_null = official.test_headers_and_what_is_null
test_a_stream_ends_over_an_aborted_tail = official.test_a_stream_ends_over_an_aborted_tail
test_a_stream_in_limited_steps = official.test_a_stream_in_limited_steps_goes_on_after_a_restart
test_a_partition_that_is_added = official.test_a_partition_that_is_added_is_read_from_its_beginning
test_lost_data_fails_a_stream = official.test_lost_data_fails_a_stream_that_asks_for_it


@pytest.fixture
def kafka(spark: SparkSession, broker: ServedBroker) -> Kafka:
    return Kafka(spark, broker, "barnabas")


def test_rows_and_types_are_those_of_the_official_connector(kafka: Kafka, kafka_connector: str) -> None:
    topic = topics.new_topic(kafka.bootstrap, 2)
    topics.send(kafka.bootstrap, topic, numbers(0, 100), headers=[("h", b"1"), ("none", None)], key=b"k")
    topics.send(kafka.bootstrap, topic, [None, b"", *numbers(0, 50)], partition=1, compression_type="lz4")
    producer = topics.transactional(kafka.bootstrap)
    topics.in_transaction(producer, topic, numbers(0, 10))
    topics.end_transaction(kafka.bootstrap, producer)
    theirs = Kafka.__new__(Kafka)
    theirs.spark, theirs.bootstrap, theirs.format = kafka.spark, kafka.bootstrap, kafka_connector
    options: dict[str, Any] = {"subscribe": topic, "includeHeaders": True, "kafka__isolation__level": "read_committed"}
    ours, other = kafka.read(**options), theirs.read(**options)
    assert ours.schema == other.schema
    order = ("partition", "offset")
    assert ours.orderBy(*order).collect() == other.orderBy(*order).collect()
    assert ours.count() == 152


def test_the_official_connector_takes_our_offsets(kafka: Kafka, kafka_connector: str) -> None:
    topic = topics.new_topic(kafka.bootstrap, 2)
    topics.send(kafka.bootstrap, topic, numbers(0, 10))
    at = to_json({TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 0}, {TopicPartition(topic, 0): 3})
    theirs = kafka.spark.read.format(kafka_connector).option("kafka.bootstrap.servers", kafka.bootstrap)
    frame = theirs.options(subscribe=topic, startingOffsets=json.dumps(at)).load()
    assert frame.count() == 3
    assert "leader epochs" in json.dumps(at)


FOREIGN = """
import sys
from pyspark.sql import SparkSession
from barnabas.pipeline import BarnabasDataSource

spark = SparkSession.builder.master("local[1]").getOrCreate()
spark.dataSource.register(BarnabasDataSource)
bootstrap, source, target = sys.argv[1:]
frame = spark.read.format("barnabas").option("kafka.bootstrap.servers", bootstrap).option("subscribe", source).load()
chosen = frame.where("partition = 2 AND offset >= 60").select("key", "value")
chosen.write.format("barnabas").mode("append").option("kafka.bootstrap.servers", bootstrap).option("topic", target).save()
"""


@pytest.mark.chaos
def test_any_session_takes_it(kafka: Kafka) -> None:
    """One that a user has made, without a setting of ours; one more session, hence not in the suite."""
    source, target = by_partition(kafka), topics.new_topic(kafka.bootstrap)
    environment = {**os.environ, "JAVA_HOME": str(java_home())}
    command = [sys.executable, "-c", FOREIGN, kafka.bootstrap, source, target]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert values(kafka.read(subscribe=target)) == texts(60, 100)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codecs_are_read(kafka: Kafka, codec: str) -> None:
    topic = topics.new_topic(kafka.bootstrap)
    topics.send(kafka.bootstrap, topic, numbers(0, 2000), compression_type=codec)
    assert values(kafka.read(subscribe=topic)) == texts(0, 2000)


def test_committed_records_are_read_unless_others_are_asked_for(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap)
    producer = official.every_second_aborted(kafka.bootstrap, topic, 4, 100)
    topics.in_transaction(producer, topic, numbers(400, 500))
    topics.send(kafka.bootstrap, topic, numbers(500, 600))
    assert values(kafka.read(subscribe=topic)) == [*texts(0, 100), *texts(200, 300)], "up to the last stable offset"
    uncommitted = kafka.read(subscribe=topic, kafka__isolation__level="read_uncommitted")
    assert values(uncommitted) == texts(0, 600)
    topics.end_transaction(kafka.bootstrap, producer)
    assert values(kafka.read(subscribe=topic)) == [*texts(0, 100), *texts(200, 300), *texts(500, 600)]


def test_a_task_of_many_fetches(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap)
    sent = [b"%06d" % number + bytes(number % 97) for number in range(20_000)]
    topics.send(kafka.bootstrap, topic, sent, batch_size="5000")
    frame = kafka.read(subscribe=topic, kafka__max__partition__fetch__bytes=10_000).orderBy("offset")
    assert [bytes(row.value) for row in frame.select("value").collect()] == sent


def by_partition(kafka: Kafka) -> str:
    topic = topics.new_topic(kafka.bootstrap, 4)
    for partition in range(4):
        for half in range(2):
            at = 1_700_000_000_000 + half * 3_600_000
            topics.send(kafka.bootstrap, topic, numbers(half * 50, half * 50 + 50), partition=partition, timestamp=at)
    return topic


def test_filters_are_pushed_down(kafka: Kafka) -> None:
    topic = by_partition(kafka)
    frame = kafka.read(subscribe=topic)
    one = frame.where((F.col("partition") == 2) & (F.col("offset") >= 60))
    assert one.rdd.getNumPartitions() == 1
    assert values(one) == texts(60, 100)
    assert values(frame.where((F.col("topic") == "another") | F.lit(False))) == []
    between = frame.where(F.col("partition").isin(0, 3) & F.col("offset").between(10, 19))
    assert between.rdd.getNumPartitions() == 1, "small ranges share a task"
    assert values(between) == sorted(texts(10, 20) * 2)


def test_a_time_skips_what_is_older(kafka: Kafka) -> None:
    topic = by_partition(kafka)
    frame = kafka.read(subscribe=topic)
    later = datetime.fromtimestamp(1_700_000_000 + 60, UTC)
    assert values(frame.where(F.col("timestamp") > F.lit(later))) == sorted(texts(50, 100) * 4)
    never = frame.where(F.col("timestamp") >= F.lit(later + timedelta(days=1)))
    assert never.rdd.getNumPartitions() == 1
    assert never.count() == 0


def test_a_session_that_pushes_nothing_down(kafka: Kafka) -> None:
    topic = by_partition(kafka)
    key = "spark.sql.python.filterPushdown.enabled"
    kafka.spark.conf.set(key, "false")
    try:
        assert values(kafka.read(subscribe=topic).where("partition = 1 and offset < 3")) == texts(0, 3)
    finally:
        kafka.spark.conf.set(key, "true")


def test_only_some_columns(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap)
    topics.send(kafka.bootstrap, topic, numbers(0, 3), headers=[("a", b"x")])
    frame = kafka.read(subscribe=topic, columns="offset, value, headers")
    assert frame.columns == ["offset", "value", "headers"]
    assert [(row.offset, row.headers[0].key) for row in frame.orderBy("offset").collect()] == [
        (0, "a"),
        (1, "a"),
        (2, "a"),
    ]


def test_an_empty_topic(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap, 2)
    assert kafka.read(subscribe=topic).collect() == []


def test_a_stream_that_goes_on_while_it_is_fed(kafka: Kafka, tmp_path: Path) -> None:
    topic = topics.new_topic(kafka.bootstrap, 2)
    frame = kafka.stream(subscribe=topic).selectExpr("CAST(value AS STRING) AS value")
    name = f"fed_{uuid.uuid4().hex[:8]}"
    query = frame.writeStream.format("memory").queryName(name).start()
    try:
        for start in (0, 100, 200):
            topics.send(kafka.bootstrap, topic, numbers(start, start + 100), partition=start // 100 % 2)
            query.processAllAvailable()
            assert values(kafka.spark.table(name)) == texts(0, start + 100)
    finally:
        query.stop()


def test_a_stream_begins_at_the_end_where_nothing_else_is_said(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap)
    topics.send(kafka.bootstrap, topic, numbers(0, 10))
    name = f"end_{uuid.uuid4().hex[:8]}"
    frame = kafka.stream(subscribe=topic, startingOffsets="latest").selectExpr("CAST(value AS STRING) AS value")
    query = frame.writeStream.format("memory").queryName(name).start()
    try:
        query.processAllAvailable()
        topics.send(kafka.bootstrap, topic, numbers(10, 20))
        query.processAllAvailable()
        assert values(kafka.spark.table(name)) == texts(10, 20)
    finally:
        query.stop()


def test_records_that_are_deleted_under_a_batch(kafka: Kafka) -> None:
    """Planned, then lost before the tasks start: the plan is made when the frame is first used."""
    topic = topics.new_topic(kafka.bootstrap)
    topics.send(kafka.bootstrap, topic, numbers(0, 100))
    for lenient in (False, True):
        frame = kafka.read(subscribe=topic, failOnDataLoss=not lenient)
        ordered = frame.selectExpr("CAST(value AS STRING) AS value")
        assert ordered.rdd.getNumPartitions() == 1  # planned here
        deleted = 40 if not lenient else 60
        topics.delete_records(kafka.bootstrap, topic, {0: deleted})
        if lenient:
            assert sorted(row.value for row in ordered.rdd.collect()) == texts(60, 100)
        else:
            with pytest.raises(Exception, match=r"failOnDataLoss.*offsets 0 to 39 .*are lost, the log holds 40 to 100"):
                ordered.rdd.collect()


# -- bad input -----------------------------------------------------------------------------------------------------


def refused(frame: DataFrame, words: str) -> None:
    """The driver says why before a task starts."""
    tracker = frame.sparkSession.sparkContext.statusTracker()
    before = tracker.getJobIdsForGroup()
    with pytest.raises(Exception, match=words):
        frame.count()
    assert tracker.getJobIdsForGroup() == before


def test_a_topic_that_is_not_there(kafka: Kafka) -> None:
    missing = f"missing-{uuid.uuid4().hex[:8]}"
    refused(kafka.read(subscribe=missing), f"option 'subscribe' = '{missing}' .*create the topic")
    refused(kafka.read(assign=json.dumps({missing: [0]})), "option 'assign'.*create the topic")


def test_a_partition_that_is_not_there(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap, 2)
    refused(kafka.read(assign=json.dumps({topic: [0, 2]})), "option 'assign'.*partitions from 0 to 1")
    refused(
        kafka.read(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 0}})),
        "option 'startingOffsets' leaves out partition 1.*name every partition",
    )


def test_offsets_that_are_out_of_range(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap)
    topics.send(kafka.bootstrap, topic, numbers(0, 100))
    topics.delete_records(kafka.bootstrap, topic, {0: 10})
    at = json.dumps({topic: {"0": 5}})
    refused(
        kafka.read(subscribe=topic, startingOffsets=at), "'startingOffsets' = '5' is out of range.*offsets 10 to 100"
    )
    assert kafka.read(subscribe=topic, startingOffsets=at, failOnDataLoss=False).count() == 90
    beyond = json.dumps({topic: {"0": 101}})
    refused(kafka.read(subscribe=topic, endingOffsets=beyond), "'endingOffsets' = '101' is out of range")
    crossed = {"startingOffsets": json.dumps({topic: {"0": 50}}), "endingOffsets": json.dumps({topic: {"0": 40}})}
    refused(kafka.read(subscribe=topic, **crossed), "'endingOffsets' = '40' lies before the beginning.*offset 50")


def test_a_time_after_every_record(kafka: Kafka) -> None:
    topic = topics.new_topic(kafka.bootstrap)
    topics.send(kafka.bootstrap, topic, numbers(0, 3), timestamp=1_700_000_000_000)
    beyond: dict[str, Any] = {"subscribe": topic, "startingTimestamp": 1_800_000_000_000}
    refused(kafka.read(**beyond), "'startingTimestamp' = '1800000000000' is later than every record.*Strategy")
    assert kafka.read(**beyond, startingOffsetsByTimestampStrategy="latest").count() == 0


def test_a_cluster_that_cannot_be_reached(kafka: Kafka) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        frame = kafka.read(subscribe="t", kafka__bootstrap__servers=address, kafka__request__timeout__ms=2000)
        refused(frame, f"'kafka.bootstrap.servers' = '{address}' cannot be reached.*check the address")


def test_options_that_contradict_or_mean_nothing_fail_at_load(kafka: Kafka) -> None:
    for load in (kafka.read, kafka.stream):
        with pytest.raises(AnalysisException, match=r"assign and subscribe.*contradict"):
            load(subscribe="a", assign='{"a":[0]}')
        with pytest.raises(AnalysisException, match=r"write 'startingOffsets' if that is meant"):
            load(subscribe="a", startingOffset="earliest")


def test_an_end_of_a_stream_is_refused_in_plain_words(kafka: Kafka, tmp_path: Path) -> None:
    """At its start: Spark does not tell a source at `load` whether it reads a stream."""
    with pytest.raises(StreamingQueryException, match=r"option 'endingOffsets'.*a stream has no end") as refused:
        into_parquet(kafka.stream(subscribe="a", endingOffsets="latest"), tmp_path)
    assert "UnboundLocalError" not in str(refused.value)


def test_a_schema_of_ones_own_is_refused(kafka: Kafka) -> None:
    reader = kafka.spark.read.format("barnabas").schema("value STRING")
    frame = reader.options(**{"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "t"}).load()
    refused(frame, "option 'schema' = 'struct<value:string>'.*convert by select")


def test_a_stream_over_a_topic_that_is_not_there(kafka: Kafka, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match=r"option 'subscribe'.*create the topic"):
        into_parquet(kafka.stream(subscribe=f"missing-{uuid.uuid4().hex[:8]}"), tmp_path)
