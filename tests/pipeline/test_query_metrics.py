"""QueryMetrics beside running queries: the lag that Spark's own connector reports, and the steps of our sink."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

from prometheus_client import CollectorRegistry

from barnabas.pipeline import QueryMetrics
from barnabas.pipeline.query_metrics import lag_of
from tests.support.elsewhere import wait_until
from tests.support.pipeline import topics
from tests.support.pipeline.spark_kafka import Kafka, into_parquet, numbers
from tests.support.processes.served import ServedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.clients


@pytest.fixture
def series(spark: SparkSession) -> Iterator[CollectorRegistry]:
    registry = CollectorRegistry()
    listener = QueryMetrics(registry)
    spark.streams.addListener(listener)
    yield registry
    spark.streams.removeListener(listener)


def test_a_copy_with_the_orphan_of_another_driver(
    spark: SparkSession, broker: ServedBroker, series: CollectorRegistry, tmp_path: Path
) -> None:
    source, target = topics.new_topic(broker.address, 2), topics.new_topic(broker.address)
    topics.send(broker.address, source, numbers(0, 50))
    topics.send(broker.address, source, numbers(50, 60), partition=1)
    orphan = topics.transactional(broker.address, "metered.7-0.0", timeout_ms=900_000)
    orphan.begin_transaction()
    orphan.produce(target, b"of a driver that died")
    assert orphan.flush(topics.ANSWER_SECONDS_MAX) == 0
    stream = Kafka(spark, broker, "barnabas").stream(subscribe=source, maxOffsetsPerTrigger=30)
    options = {"kafka.bootstrap.servers": broker.address, "topic": target, "sink.id": "metered"}
    writer = stream.select("value").writeStream.format("barnabas").queryName("metered").options(**options)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(300)

    def value(name: str, **labels: str) -> float | None:
        return series.get_sample_value(f"barnabas_query_{name}", {"query": "metered", **labels})

    wait_until(lambda: value("running") == 0, "Spark has told the listener of the end")
    assert value("rows_total") == 60
    assert value("aborted_parts_total") == 1
    assert value("max_offsets_behind_latest", topic=source) == 0
    for step in ("triggerExecution", "addBatch", "sinkStart", "decision", "commit"):
        assert value("step_seconds_count", step=step) == 2, step
        assert (value("step_seconds_sum", step=step) or 0) < 300
    assert (value("step_seconds_sum", step="decision") or 0) > 0


def test_the_lag_that_the_official_connector_reports(
    spark: SparkSession, broker: ServedBroker, kafka_connector: str, tmp_path: Path
) -> None:
    topic = topics.new_topic(broker.address, 2)
    topics.send(broker.address, topic, numbers(0, 50))
    topics.send(broker.address, topic, numbers(50, 60), partition=1)
    found = {}
    for name in ("barnabas", kafka_connector):
        stream = Kafka(spark, broker, name).stream(subscribe=topic, maxOffsetsPerTrigger=30)
        query = into_parquet(stream, tmp_path / name)
        found[name] = [json.loads(progress.json) for progress in query.recentProgress]
    theirs = [progress["sources"][0]["metrics"] for progress in found[kafka_connector]]
    for ours in found.values():
        lags = [lag_of(progress)[topic] for progress in ours]
        assert [float(each["minOffsetsBehindLatest"]) for each in theirs] == [lag.min for lag in lags]
        assert [float(each["maxOffsetsBehindLatest"]) for each in theirs] == [lag.max for lag in lags]
        assert [float(each["avgOffsetsBehindLatest"]) for each in theirs] == [lag.avg for lag in lags]
