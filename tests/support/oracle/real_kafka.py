"""How tests start a real Kafka: the tool, what it needs, its settings."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

KAFKA_UP = Path(__file__).parents[2] / "oracle" / "kafka-up"
MISSING = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]  # of what fetches and runs it
START_SECONDS_MAX = 240  # the first start on a machine downloads Kafka
STOP_SECONDS_MAX = 120  # kafka-up kills it after 60
TOOL_SECONDS_MAX = 240  # a tool of Java; on a busy machine Java alone needs ten seconds and more to start
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
COPIES_MAX = 10
UNKNOWN_SETTING = "of.a.plugin=secret"  # to Kafka and to Barnabas; the test kit refuses it
# On both sides of every comparison. Groups may be set to short sessions, else a test would wait for long ones.
SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "group.consumer.min.heartbeat.interval.ms=100",
    "group.consumer.min.session.timeout.ms=500",
    UNKNOWN_SETTING,
)


class NotStarted(Exception):
    """Kafka has ended, or did not listen in time; with the end of what it said."""


def needs_java(without: str = "no real Kafka to compare with") -> None:
    """Skips the test where Java or Maven is missing; `without` says what is left out then."""
    if MISSING:
        pytest.skip(f"{without}: {' and '.join(MISSING)} not installed")


@contextmanager
def running_kafka(
    folder: Path, port: int, settings: Iterable[str] = (), environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """A Kafka whose data directory is `node-1/data` below the folder; it is stopped at the end.

    Args:
        port: the first of a block: for clients, then for the controller, then what the settings name.
        settings: "key=value".
        environment: variables that it gets in addition.

    Raises:
        NotStarted: Kafka did not start.
    """
    needs_java()
    folder.mkdir(exist_ok=True)
    command = ["bash", str(KAFKA_UP), "start", "--port", str(port), "--dir", str(folder)]
    for setting in settings:
        command += ["--set", setting]
    log = folder / "kafka-up.log"
    try:
        with log.open(
            "w"
        ) as output:  # not a pipe: the broker inherits it, and a pipe would stay open as long as Kafka runs
            done = subprocess.run(
                command,
                stdout=output,
                stderr=output,
                timeout=START_SECONDS_MAX,
                check=False,
                env={**os.environ, **(environment or {})},
            )
        if done.returncode:
            raise NotStarted(log.read_text()[-500:])
        yield
    finally:
        stop_kafka(folder)


def stop_kafka(folder: Path) -> None:
    """Stops what kafka-up has started with this folder."""
    subprocess.run(["bash", str(KAFKA_UP), "stop", "--dir", str(folder)], timeout=STOP_SECONDS_MAX, check=False)


def copy_of_running(data: Path, copy: Path) -> None:
    """Copies the data directory of a Kafka that runs: what a crash leaves. Its preallocated indexes are mostly holes."""
    for _ in range(COPIES_MAX):
        done = subprocess.run(["cp", "-r", "--sparse=always", str(data), str(copy)], capture_output=True, check=False)
        if done.returncode == 0:
            return
        shutil.rmtree(copy)  # a file vanished under it, such as one of a deleted topic
    raise AssertionError(done.stderr.decode())
