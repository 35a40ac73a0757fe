"""`barnabas export`: from a cluster and from the directories of stopped brokers, the same rows; the books balance."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.export import Exported, export_directories, export_topics
from tests.pipeline import topics
from tests.pipeline.test_official_connector import numbers, texts, values
from tests.process.conftest import end
from tests.process.served import ServedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.process


def balance(done: Exported) -> list[tuple[int, int, int, int, int]]:
    return [(p.partition, p.end - p.start, p.rows, p.control, p.aborted) for p in done.by_partition()]


def test_from_a_cluster_and_from_its_directory(spark: SparkSession, tmp_path: Path) -> None:
    served = ServedBroker(tmp_path / "data", "log.segment.bytes=1048576").start()
    try:
        topic = topics.new_topic(served.address, 2)
        topics.send(served.address, topic, numbers(0, 3000), batch_size="4000", headers=[("h", bytes(1000))])
        topics.send(served.address, topic, numbers(3000, 4000), partition=1, compression_type="zstd")
        producer = topics.transactional(served.address)
        for number in (4000, 5000):
            topics.in_transaction(producer, topic, numbers(number, number + 100))
            producer.abort_transaction(topics.ANSWER_SECONDS_MAX)
        topics.delete_records(served.address, topic, {0: 50})
        cluster = export_topics(lambda: spark, served.address, [topic], tmp_path / "cluster")
        everything = export_topics(lambda: spark, served.address, [topic], tmp_path / "all", committed=False)
        with pytest.raises(PipelineError, match=r"option 'data'.*is used by a running broker: stop the broker"):
            export_directories(lambda: spark, [tmp_path / "data"], [topic], tmp_path / "running")
    finally:
        end(served)
    wanted = [(0, 3152, 2950, 2, 200), (1, 1000, 1000, 0, 0)]
    assert balance(cluster) == wanted
    assert balance(everything) == [(0, 3152, 3150, 2, 0), (1, 1000, 1000, 0, 0)]
    stopped = export_directories(lambda: spark, [tmp_path / "data"], [topic], tmp_path / "stopped")
    assert balance(stopped) == wanted
    assert len(stopped.parts) > 3, "one task a segment"
    frames = [spark.read.parquet(str(done.to)).orderBy("partition", "offset") for done in (cluster, stopped)]
    assert frames[0].schema == frames[1].schema
    assert frames[0].collect() == frames[1].collect()
    assert values(frames[1]) == [*texts(50, 4000)]
    assert frames[1].where("headers[0].key = 'h' and partition = 0").count() == 2950
    whole = export_directories(lambda: spark, [tmp_path / "data"], [topic], tmp_path / "whole", committed=False)
    assert balance(whole) == balance(everything)


def test_an_open_transaction_ends_what_is_exported(spark: SparkSession, tmp_path: Path) -> None:
    served = ServedBroker(tmp_path / "data").start()
    try:
        topic = topics.new_topic(served.address)
        topics.send(served.address, topic, numbers(0, 10))
        topics.in_transaction(topics.transactional(served.address), topic, numbers(10, 20))
        topics.send(served.address, topic, numbers(20, 30))
        assert balance(export_topics(lambda: spark, served.address, [topic], tmp_path / "c")) == [(0, 10, 10, 0, 0)]
    finally:
        end(served)
    done = export_directories(lambda: spark, [tmp_path / "data"], [topic], tmp_path / "d")
    assert balance(done) == [(0, 10, 10, 0, 0)]
    assert done.notes == (f"{topic}-0: a transaction is open from offset 10 on, up to 29",)


def test_a_compacted_topic_has_fewer_rows_than_offsets(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    served = ServedBroker(data).start()
    try:
        topic = topics.new_topic(served.address)
        topics.send(served.address, topic, numbers(0, 5))
    finally:
        end(served)
    folder = data / f"{topic}-0"
    log = next(folder.glob("*.log"))
    later = bytearray(log.read_bytes())
    later[0:8] = (10).to_bytes(8, "big")  # the same records once more, at 10 to 14: as if 5 to 9 had been removed
    log.write_bytes(log.read_bytes() + later)
    done = export_directories(lambda: spark, [data], [topic], tmp_path / "out")
    assert [(p.start, p.end, p.rows, p.removed) for p in done.by_partition()] == [(0, 15, 10, 5)]


def test_the_command(tmp_path: Path, broker: ServedBroker) -> None:
    """Bad calls end before Spark starts, in one line."""
    topic = topics.new_topic(broker.address)
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").touch()

    def refused(*args: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", "barnabas.cli.main", "export", *args],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 1, ran.stderr
        assert "Traceback" not in ran.stderr
        return ran.stderr

    base = ("--topic", topic, "-b", broker.address)
    assert "is not empty: name a new directory" in refused(*base, "--to", str(full))
    for target in ("/proc/nowhere", str(full / "x")):
        assert f"'{target}' cannot be written" in refused(*base, "--to", target)
    assert "names a topic that does not exist: nothing" in refused(
        "--topic", "nothing", "-b", broker.address, "--to", str(tmp_path / "a")
    )
    assert "has no meta.properties" in refused(*base, "--to", str(tmp_path / "b"), "--data", str(tmp_path))
    assert "is used by a running broker" in refused(*base, "--to", str(tmp_path / "c"), "--data", str(broker.data))
    assert "cannot be reached" in refused("--topic", topic, "-b", "127.0.0.1:1", "--to", str(tmp_path / "d"))
