"""Crash matrix: the broker is killed at every log write of a transaction's life, some of them half done, under librdkafka.

The client lives on: it asks again until its commit or abort is answered. After the restart what was acknowledged is there, the
transaction is seen whole or not at all, its offsets with it, and nothing is left open. Where Java is, Kafka's own tool then reads
every log that the runs left behind. All points are tried in a thread; some of them again by SIGKILL of a process.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.protocol.messages.transactions import DescribeTransactionsRequest
from barnabas.testing import Broker
from barnabas.testing.backend import Mode
from barnabas.testing.simulation.invariants import TransactionHistory, TransactionOutcome, check_atomic, check_stable
from tests.support.clients.librdkafka import value_of
from tests.support.oracle.real_kafka import KAFKA_UP, needs_java
from tests.support.oracle.wire import Wire
from tests.support.processes.fixtures import process_broker

confluent_kafka = pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition  # noqa: E402  # after the check that it is there

pytestmark = pytest.mark.process

TOPIC, GROUP, PARTITIONS = "crashes", "crashes-group", 2
SETTINGS = ("offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1", f"num.partitions={PARTITIONS}")
LIMIT_S = 60
LOGS = "*.log"
QUICK = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
    # With its default, and no broker but one, librdkafka forgets that broker and goes on waiting for the forgotten one.
    "metadata.recovery.strategy": "none",
}


def save_logs(kafka: Broker, folder: Path) -> None:
    """Copies the log files of the broker."""
    if kafka.mode == "process":
        shutil.copytree(kafka.broker(1).directory, folder)
        return
    disk = kafka.backend("its files")._brokers[1].disks[0]  # type: ignore[attr-defined]  # files in memory have no public way out
    for name in disk.listdir(""):
        for each in disk.listdir(name) if name.rpartition("-")[2].isdigit() else ():
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / each).write_bytes(disk.read(f"{name}/{each}"))


class Run:
    """One transaction, during which the broker crashes at one write of a log, or at none.

    Attributes:
        writes: paths of the writes of logs; if it crashes, of the write at which it does.
    """

    def __init__(self, folder: Path, mode: Mode, at: int | None, *, commit: bool, half: bool) -> None:
        self.at = at
        self.half = half
        self.commit = commit
        self.writes: list[str] = []
        self.kafka = process_broker(*SETTINGS, mode=mode)
        with self.kafka:
            self._play()
            self._judge()
            self.kafka.stop_broker()
            save_logs(self.kafka, folder)
            if mode == "process":
                assert "Traceback" not in self.kafka.broker(1).log, self.kafka.broker(1).log

    def _play(self) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": self.kafka.bootstrap_servers,
            "transactional.id": uuid.uuid4().hex,
            "linger.ms": 1,
            **QUICK,
        }
        producer = Producer(settings)
        producer.init_transactions(60)
        self._write(producer, "first", 1)
        self._until_done(producer.commit_transaction)
        disk, end = self.kafka.disk(1), self._end_of(producer)
        if self.at is None:
            with disk.watch("write", path=LOGS) as writes:
                end()
                self._await_state(settings["transactional.id"], "CompleteCommit" if self.commit else "CompleteAbort")
                self.writes = [each["path"] for each in writes.calls]
        else:
            kill = disk.kill("write", nth=self.at + 1, done="half" if self.half else "nothing", path=LOGS)
            ending = threading.Thread(target=end)
            ending.start()
            kill.wait(timeout=LIMIT_S)
            self.kafka.restart(1)
            ending.join()
            assert kill.hits == 1
            self.writes = [each["path"] for each in kill.calls]
        # The next transaction goes through, so that one is complete.
        producer.begin_transaction()
        producer.produce(TOPIC, b"third", partition=0)
        self._until_done(producer.commit_transaction)
        self._await_state(settings["transactional.id"], "CompleteCommit")

    def _end_of(self, producer: Any) -> Callable[[], None]:
        """The second transaction."""

        def end() -> None:
            self._write(producer, "second", 2)
            self._until_done(producer.commit_transaction if self.commit else producer.abort_transaction)

        return end

    def _write(self, producer: Any, name: str, offset: int) -> None:
        consumer = Consumer({"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": GROUP})
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, f"{name}-{partition}".encode(), partition=partition)
        producer.flush(60)
        position = [TopicPartition(TOPIC, 1, offset)]
        metadata = consumer.consumer_group_metadata()
        self._until_done(lambda: producer.send_offsets_to_transaction(position, metadata, 30))
        consumer.close()

    def _await_state(self, transactional_id: str, state: str) -> None:
        """Markers and completion follow the answer; the broker may die at these, too."""
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        deadline = time.monotonic() + 60
        told: Any = None
        while told != state:
            assert time.monotonic() < deadline, f"{told} instead of {state}"
            try:
                with Wire(self.kafka.bootstrap_servers) as wire:
                    told = wire.call(request, 0).transaction_states[0].transaction_state
            except OSError:
                pass  # it is asked again
            time.sleep(0.005)

    def _until_done(self, call: Any) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def _judge(self) -> None:
        reader = Consumer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "group.id": GROUP,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
                **QUICK,
            }
        )
        with Wire(self.kafka.bootstrap_servers) as wire:
            for partition in range(PARTITIONS):
                check_stable(end_offset(wire, partition, 1), end_offset(wire, partition, 0))
        reader.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        delivered: list[bytes] = []
        ends = 0
        deadline = time.monotonic() + 60
        while ends < PARTITIONS and time.monotonic() < deadline:
            message = reader.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                ends += 1
            else:
                delivered.append(value_of(message))
        committed = reader.committed([TopicPartition(TOPIC, 1)], 60)[0].offset
        reader.close()
        check_atomic(
            [
                TransactionHistory(TransactionOutcome.COMMITTED, [b"first-0", b"first-1"]),
                TransactionHistory(
                    TransactionOutcome.COMMITTED if self.commit else TransactionOutcome.ABORTED,
                    [b"second-0", b"second-1"],
                ),
                TransactionHistory(TransactionOutcome.COMMITTED, [b"third"]),
            ],
            delivered,
        )
        assert committed == (2 if self.commit else 1)


def end_offset(wire: Wire, partition: int, isolation_level: int) -> int:
    """High watermark (0) or last stable offset (1)."""
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[
            ListOffsetsTopic(name=TOPIC, partitions=[ListOffsetsPartition(partition_index=partition, timestamp=-1)])
        ],
    )
    return int(wire.call(request, 5).topics[0].partitions[0].offset)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the runs keep their data; afterwards Kafka's tool has read every log in it."""
    yield tmp_path
    logs = sorted(str(path) for path in tmp_path.glob("*/*-*/*.log") if path.stat().st_size)
    assert logs
    needs_java("the logs were not read by DumpLogSegments")
    command = ["bash", str(KAFKA_UP), "tool", "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration"]
    ours = [log for log in logs if "__cluster_metadata" not in log]
    dumped = subprocess.run(
        [*command, "--files", ",".join(ours)], capture_output=True, text=True, timeout=240, check=False
    )
    assert dumped.returncode == 0, dumped.stderr[-2000:]
    assert dumped.stdout.count("Dumping ") == len(ours)
    for trouble in ("isvalid: false", "Found invalid", "corrupt", "mismatch"):
        assert trouble not in dumped.stdout, dumped.stdout[-2000:]


IDS = ["commit-before", "commit-half-way", "abort-half-way"]
KINDS = pytest.mark.parametrize(
    ("commit", "half"),
    [(True, False), (True, True), (False, True)],
    ids=IDS,
)


@KINDS
@pytest.mark.usefixtures("no_errors")
def test_killed_at_every_write(folder: Path, commit: bool, half: bool) -> None:
    writes = Run(folder / "whole", "thread", None, commit=commit, half=half).writes
    folders = [path.split("/")[-2].rsplit("-", 1)[0] for path in writes]
    assert folders.count(TOPIC) == 2 * PARTITIONS
    assert folders.count("__consumer_offsets") == 2
    assert folders.count("__transaction_state") >= 4
    for at in range(len(writes)):
        Run(folder / f"at-{at}", "thread", at, commit=commit, half=half)


@pytest.mark.parametrize(
    ("commit", "half"),
    [
        pytest.param(True, False, marks=pytest.mark.soak),
        (True, True),
        pytest.param(False, True, marks=pytest.mark.soak),
    ],
    ids=IDS,
)
def test_a_process_is_killed_at_a_write(folder: Path, commit: bool, half: bool) -> None:
    """The write of one of the markers."""
    (path,) = Run(folder / "at-8", "process", 8, commit=commit, half=half).writes
    assert path.startswith(f"{TOPIC}-")
