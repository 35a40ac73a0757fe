"""The commands and the job of docs/pipeline.md on a standalone cluster: an environment is unpacked on two executors."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

import pyspark

from barnabas.pipeline.java import java_home
from tests.support.clients.librdkafka import value_of
from tests.support.pipeline import topics
from tests.support.pipeline.spark_cluster import JAVA_OPTIONS, SparkCluster
from tests.support.pipeline.spark_kafka import numbers
from tests.support.processes.served import ServedBroker
from tests.support.snippets import snippets

pytestmark = pytest.mark.process

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"
(SUBMIT,) = snippets(PAGE, "bash")
JOB = next(text for text in snippets(PAGE, "python") if "appName" in text)
COPY = """
frame = (
    spark.readStream.format("barnabas")
    .option("kafka.bootstrap.servers", "{bootstrap}")
    .option("subscribe", "{source}")
    .option("startingOffsets", "earliest")
    .load()
)
copy = frame.repartition(4).selectExpr("value").writeStream.format("barnabas")
options = {{"kafka.bootstrap.servers": "{bootstrap}", "topic": "{target}", "checkpointLocation": "checkpoint"}}
assert copy.options(**options).trigger(availableNow=True).start().awaitTermination(300)
"""


def pack(archive: Path) -> None:
    """An environment whose interpreter is this one: its packages need no copy on this machine."""
    interpreter = archive.with_name("python")
    interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    interpreter.chmod(0o755)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(interpreter, "bin/python")


def test_a_job_with_a_packed_environment(broker: ServedBroker, tmp_path: Path) -> None:
    source, target = topics.new_topic(broker.address, 4), topics.new_topic(broker.address)
    for partition in range(4):
        topics.send(broker.address, source, numbers(partition * 50, partition * 50 + 50), partition=partition)
    pack(tmp_path / "env.tar.gz")
    (tmp_path / "job.py").write_text(JOB + COPY.format(bootstrap=broker.address, source=source, target=target))
    environment = {**os.environ, "JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["JAVA_TOOL_OPTIONS"] = JAVA_OPTIONS
    environment["PATH"] = f"{Path(pyspark.__file__).parent / 'bin'}{os.pathsep}{environment['PATH']}"
    environment.pop("PYSPARK_PYTHON", None)
    environment.pop("PYSPARK_DRIVER_PYTHON", None)
    with SparkCluster(tmp_path / "spark", dict(os.environ)) as cluster:
        commands = SUBMIT.replace("spark://HOST:7077", cluster.url)
        ended = subprocess.run(
            ["bash", "-e", "-c", commands], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=350
        )
        assert ended.returncode == 0, ended.stderr[-5000:]
    copied = [value_of(message) for message in topics.read_committed(broker.address, target)]
    assert sorted(copied) == numbers(0, 200)
    unpacked = {
        path.relative_to(tmp_path).parts[1] for path in tmp_path.glob("spark/work-*/*/*/environment/bin/python")
    }
    assert unpacked == {"work-0", "work-1"}, "both executors have the environment"
