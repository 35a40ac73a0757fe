"""Tests of the application in sales.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sales import write_invoices

from barnabas.pipeline import session
from barnabas.testing import Cluster
from barnabas.testing.clients import KitConsumer, KitProducer
from barnabas.testing.faults.handles import Faults

pytestmark = pytest.mark.kafka(topics={"sales": 2, "invoices": 1})
SALES = [b"tea", b"milk"]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Starting Spark takes most of the time, so the tests share one session."""
    running = session("sales", spark__sql__shuffle__partitions=2)
    yield running
    running.stop()


@pytest.fixture
def invoices(kafka_producer: KitProducer, make_kafka_consumer: Callable[..., KitConsumer]) -> Callable[[], set[bytes]]:
    """Reads an invoice for each sale, and a mark behind the last one: there is no other invoice before it."""
    for number, sale in enumerate(SALES):
        kafka_producer.send("sales", sale, partition=number)

    def read() -> set[bytes]:
        kafka_producer.send("invoices", b"end")
        reader = make_kafka_consumer(isolation_level="read_committed", auto_offset_reset="earliest")
        reader.assign(("invoices", 0))
        return {record.value for record in reader.take(len(SALES) + 1)}

    return read


def test_an_invoice_for_each_sale(
    kafka: Cluster, spark: SparkSession, invoices: Callable[[], set[bytes]], tmp_path: Path
) -> None:
    write_invoices(spark, kafka.bootstrap_servers, str(tmp_path)).awaitTermination()
    assert invoices() == {b"invoice for tea", b"invoice for milk", b"end"}


def test_a_broker_dies_between_a_commit_and_its_answer(
    kafka: Cluster, kafka_faults: Faults, spark: SparkSession, invoices: Callable[[], set[bytes]], tmp_path: Path
) -> None:
    answer = kafka_faults.on("EndTxn").disconnect(at="applied")
    query = write_invoices(spark, kafka.bootstrap_servers, str(tmp_path))
    answer.wait(timeout=60)
    kafka.kill(1)
    kafka.restart(1)
    query.awaitTermination()
    assert invoices() == {b"invoice for tea", b"invoice for milk", b"end"}
