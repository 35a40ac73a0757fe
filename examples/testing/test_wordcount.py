"""Tests of the application in wordcount.py, whose workers are killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import wordcount

from barnabas.testing.clients import KitConsumer, KitProducer
from barnabas.testing.faults.handles import Faults

CHANGELOG = "wordcount-counts-changelog"
COUNTS = [(b'"tea"', b"1"), (b'"milk"', b"1"), (b'"tea"', b"2")]

pytestmark = pytest.mark.kafka(topics={"words": 1, CHANGELOG: 1})
Worker = Callable[[], AbstractContextManager[None]]
Counts = Callable[[], list[tuple[bytes, bytes]]]


@pytest.fixture
def worker(kafka_bootstrap_servers: str, tmp_path: Path) -> Worker:
    """Runs a worker, and kills it at the end of the block."""

    @contextmanager
    def run() -> Iterator[None]:
        command = [sys.executable, wordcount.__file__, kafka_bootstrap_servers, str(tmp_path)]
        with (tmp_path / "worker.log").open("a") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                yield
            finally:
                process.kill()

    return run


@pytest.fixture
def counts(make_kafka_consumer: Callable[..., KitConsumer]) -> Counts:
    """Reads the first three committed counts."""
    reader = make_kafka_consumer(isolation_level="read_committed", auto_offset_reset="earliest")
    reader.assign((CHANGELOG, 0))
    return lambda: [(each.key, each.value) for each in reader.take(3, timeout=60)]


def test_words_are_counted(worker: Worker, counts: Counts, kafka_producer: KitProducer) -> None:
    for word in (b"tea", b"milk", b"tea"):
        kafka_producer.send("words", word)
    with worker():
        assert counts() == COUNTS


def test_a_worker_is_killed_while_it_commits(
    worker: Worker, counts: Counts, kafka_producer: KitProducer, kafka_faults: Faults
) -> None:
    for word in (b"tea", b"milk"):
        kafka_producer.send("words", word)
    held = kafka_faults.on("EndTxn", txn="wordcount-*").hold()
    with worker():
        held.wait(timeout=60)
    kafka_producer.send("words", b"tea")
    with worker():  # Faust takes ten seconds to notice that the changelog has aborted records alone
        assert counts() == COUNTS
