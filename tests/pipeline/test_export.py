"""`barnabas export`: from a cluster and from the directories of stopped brokers, the same rows; the books balance."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

import pyarrow as pa
import pyarrow.parquet

from barnabas.pipeline.columns import COLUMNS, arrow_schema
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.export import Exported, _write, export_directories, export_topics
from barnabas.pipeline.planning import OffsetRange
from barnabas.protocol.records import iter_batches
from tests.support.pipeline import topics
from tests.support.pipeline.small_disk import small_disk
from tests.support.pipeline.spark_kafka import numbers, texts, values
from tests.support.processes.cli import called
from tests.support.processes.served import ServedBroker

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
        topics.await_markers(served.address)
        topics.delete_records(served.address, topic, {0: 50})
        cluster = export_topics(lambda: spark, served.address, [topic], tmp_path / "cluster")
        everything = export_topics(lambda: spark, served.address, [topic], tmp_path / "all", committed=False)
        with pytest.raises(PipelineError, match=r"option 'data'.*is used by a running broker: stop the broker"):
            export_directories(lambda: spark, [tmp_path / "data"], [topic], tmp_path / "running")
    finally:
        served.end()
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
        served.end()
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
        served.end()
    folder = data / f"{topic}-0"
    log = next(folder.glob("*.log"))
    later = bytearray(log.read_bytes())
    # The same records once more, at 10 to 14: as if 5 to 9 had been removed. The producer may have made several batches.
    for position, batch in list(iter_batches(later)):
        later[position : position + 8] = (batch.base_offset + 10).to_bytes(8, "big")
    log.write_bytes(log.read_bytes() + later)
    done = export_directories(lambda: spark, [data], [topic], tmp_path / "out")
    assert [(p.start, p.end, p.rows, p.removed) for p in done.by_partition()] == [(0, 15, 10, 5)]


@pytest.mark.chaos
def test_a_killed_export_is_not_taken_for_a_whole_one(tmp_path: Path, broker: ServedBroker) -> None:
    """A session for each of two runs, hence not in the suite."""
    partitions = 6
    topic = topics.new_topic(broker.address, partitions)
    for partition in range(partitions):
        topics.send(broker.address, topic, numbers(0, 100_000), partition=partition)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "barnabas.cli.main", "export", "--topic", topic, "-b", broker.address]
    command += ["--to", str(out)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as first:
        deadline = time.monotonic() + 120
        while not list(out.glob("*.parquet")):
            assert time.monotonic() < deadline, "nothing is written"
            time.sleep(0.001)
        os.killpg(first.pid, signal.SIGKILL)
    assert len(list(out.glob("*.parquet"))) < partitions, "it was killed too late"
    assert not (out / "_SUCCESS").exists()
    again = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (again.returncode, "is not empty: name a new directory, or empty it" in again.stderr) == (1, True)
    shutil.rmtree(out)
    again = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 0, again.stderr
    assert f"{100_000 * partitions} rows in {partitions} files" in again.stdout
    found = Counter(path_rows(out))
    assert found == {(partition, number): 1 for partition in range(partitions) for number in range(100_000)}


def path_rows(folder: Path) -> Iterator[tuple[int, int]]:
    """Partition and value of every row."""
    table = pyarrow.parquet.read_table(folder, columns=["partition", "value"])
    return zip(table["partition"].to_pylist(), map(int, table["value"].to_pylist()), strict=True)


def test_what_a_task_cannot_write_is_told(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pylist(
        [{"value": random.Random(number).randbytes(1000)} for number in range(100)], schema=arrow_schema(COLUMNS)
    )
    expected = r"option 'to' = .*cannot be written \(.*File too large.*with room for"
    with pytest.raises(PipelineError, match=expected), small_disk():
        _write(str(tmp_path), OffsetRange("t", 0, 0, 100), [rows])
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path: Path, broker: ServedBroker) -> None:
    """Bad calls end before Spark starts, in one line."""
    topic = topics.new_topic(broker.address)
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").touch()

    def refused(*args: str) -> str:
        ran = called("export", *args)
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
    nowhere = ("--topic", topic, "--to", str(tmp_path / "d"))
    assert "no broker answers at 127.0.0.1:1" in refused(*nowhere, "-b", "127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        assert "does not answer; is it a Kafka broker?" in refused(*nowhere, "-b", address, "--timeout", "0.2")
        assert time.monotonic() - began < 20, "the timeout of the client's default is 30 s"
