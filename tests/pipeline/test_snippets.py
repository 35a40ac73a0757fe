"""The Python examples of README.md and docs/pipeline.md run as they are printed, with the address of a test broker."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clients.librdkafka import value_of

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

from prometheus_client import REGISTRY
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from tests.support.elsewhere import wait_until
from tests.support.pipeline import topics
from tests.support.processes.served import ServedBroker
from tests.support.snippets import snippets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
DELAYS, SOURCE, METRICS, _, SINK, BATCH, FRAMES, _ = snippets(
    ROOT / "docs" / "pipeline.md", "python"
)  # _: test_cluster_page, test_registry
PIPELINE = snippets(ROOT / "README.md", "python")[-1]


@pytest.fixture
def printed(spark: SparkSession, tmp_path: Path) -> Iterator[Printed]:
    """Runs examples against a broker of the test's own, since they name their topics."""
    broker = ServedBroker(tmp_path / "data").start()
    runner = Printed(broker.address, tmp_path, spark)
    yield runner
    for query in spark.streams.active:
        query.stop()
    broker.end()


class Printed:
    def __init__(self, bootstrap: str, folder: Path, spark: SparkSession) -> None:
        self.bootstrap = bootstrap
        self.names: dict[str, Any] = {"spark": spark, "F": F}
        self._folder = folder

    def run(self, code: str) -> None:
        """Runs an example; its relative and absolute output paths go to the test's folder."""
        assert "localhost:9092" in code
        code = code.replace("localhost:9092", self.bootstrap)
        for path in ("checkpoints/", "/data/", "delays/"):
            code = code.replace(f'"{path}', f'"{self._folder}/{path.strip("/")}/')
        exec(compile(code, "example", "exec"), self.names)


def test_the_query_of_the_readme(printed: Printed) -> None:
    for topic in ("orders", "shouted"):
        topics.new_topic(printed.bootstrap, name=topic)
    printed.run(PIPELINE)
    query = printed.names["query"]
    query.processAllAvailable()  # a stream without startingOffsets begins at the end of the topic
    topics.send(printed.bootstrap, "orders", [b"tea", b"coffee"])
    query.processAllAvailable()
    assert [m.value() for m in topics.read_committed(printed.bootstrap, "shouted")] == [b"TEA", b"COFFEE"]


def test_source_and_sink(printed: Printed) -> None:
    names = printed.names
    exec(METRICS.replace("start_http_server(9101)", "server, _ = start_http_server(0)"), names)
    topics.new_topic(printed.bootstrap, name="orders")
    topics.send(printed.bootstrap, "orders", [b"1", b"2", b"3"])
    printed.run(SOURCE)
    assert [bytes(row.value) for row in printed.names["frame"].collect()] == [b"1", b"2", b"3"]

    topics.new_topic(printed.bootstrap, name="copies")
    printed.run(BATCH)
    assert sorted(value_of(m) for m in topics.read_committed(printed.bootstrap, "copies")) == [b"1", b"2", b"3"]
    with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        printed.run(BATCH.replace('.mode("append")', ""))

    topics.new_topic(printed.bootstrap, name="invoices")
    printed.run(SOURCE.replace("spark.read.", "spark.readStream."))  # the sink's example writes a streaming frame
    printed.run(SINK)
    query = printed.names["query"]
    query.processAllAvailable()
    topics.send(printed.bootstrap, "orders", [b"4"])
    query.processAllAvailable()
    (invoice,) = topics.read_committed(printed.bootstrap, "invoices")
    assert b'"value":"NA=="' in (invoice.value() or b"")

    def served() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{names['server'].server_port}") as answer:
            return str(answer.read().decode())

    read_one = f'barnabas_query_rows_total{{query="{query.id}"}} 1.0'
    wait_until(lambda: read_one in served(), "Spark has told QueryMetrics of the row")
    names["spark"].streams.removeListener(names["metrics"])
    REGISTRY.unregister(names["metrics"])
    names["server"].shutdown()


def test_frames_of_a_batch(printed: Printed) -> None:
    for topic in ("orders", "amounts", "amounts-dead"):
        topics.new_topic(printed.bootstrap, name=topic)
    printed.run(SOURCE.replace("spark.read.", "spark.readStream."))
    printed.run(FRAMES)
    query = printed.names["query"]
    query.processAllAvailable()
    topics.send(printed.bootstrap, "orders", [b"4", b"four"])
    query.processAllAvailable()
    assert [value_of(m) for m in topics.read_committed(printed.bootstrap, "amounts")] == [b"4"]
    assert [value_of(m) for m in topics.read_committed(printed.bootstrap, "amounts-dead")] == [b"four"]


def test_the_query_of_the_tutorial(printed: Printed, spark: SparkSession) -> None:
    """Two days later the first hour is over, and its row is in the topic."""
    for topic in ("flights", "delays"):
        topics.new_topic(printed.bootstrap, name=topic)
    lines = [f"2013-01-0{day} 0{hour}:00:00,JFK,10,2" for day, hour in ((1, 5), (1, 5), (1, 6), (4, 5))]
    topics.send(printed.bootstrap, "flights", [line.encode() for line in lines])
    columns = "time_hour TIMESTAMP, origin STRING, dep_time INT, dep_delay INT"
    printed.names["flights"] = (
        spark.readStream.format("barnabas")
        .option("kafka.bootstrap.servers", printed.bootstrap)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .load()
        .select(F.from_csv(F.col("value").cast("string"), columns).alias("flight"))
        .select("flight.*")
    )
    printed.run(DELAYS)
    printed.names["query"].processAllAvailable()
    sent = [value_of(message) for message in topics.read_committed(printed.bootstrap, "delays")]
    assert len(sent) == 2
    assert b'"flights":2,"departed":2,"delay":4' in sent[0] + sent[1]
