"""Spark's own Kafka connector against Barnabas, unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Producer

from tests.process.served import ServedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_reads_a_topic(spark: SparkSession, kafka_connector: str, broker: ServedBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    for n in range(10):
        producer.produce("first", b"%d" % n)
    assert producer.flush(30) == 0
    frame = spark.read.format(kafka_connector).option("kafka.bootstrap.servers", broker.address)
    rows = frame.option("subscribe", "first").load().selectExpr("CAST(value AS STRING) v").collect()
    assert sorted(int(row.v) for row in rows) == list(range(10))
