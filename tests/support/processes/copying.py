"""An exactly-once copy on a cluster with faults: a feeder, a copier process, a reader, and checks at the end.

The feeder is an idempotent librdkafka producer with acks=all in a thread; what it was acknowledged must be in the
input, what is in the input must be in the output once and in order, and a read_committed reader that reads along must
see nothing else.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.testing.simulation.invariants import (
    Violation,
    check_acknowledged,
    check_copy,
    check_live,
    check_stable,
)
from tests.support.clients.librdkafka import place_of, value_of
from tests.support.processes.cluster import Cluster
from tests.support.requests import request_of

SOURCE, TARGET = "input", "output"
RECORDS_PER_TRANSACTION = 750
RESTARTS_MAX = 20
# "none": with its default, librdkafka looks for a broker only once a second after it has lost all (docs/cluster.md).
QUICK = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 20,
    "metadata.recovery.strategy": "none",
    "log_level": 0,
}


class CopyWorker:
    """A copier's process, started again when it gives up.

    Attributes:
        progress: (monotonic seconds, records copied by all its processes) of each transaction whose commit was
            answered.
    """

    def __init__(
        self,
        client: str,
        bootstrap: str,
        folder: Path,
        *,
        session_ms: int | None = None,
    ) -> None:
        self.progress: list[tuple[float, int]] = []
        self.started_count = 0
        self.stderr_path = folder / "copier.stderr"
        module = [sys.executable, "-m", "tests.support.processes.copiers"]
        self._command = [*module, client, bootstrap, SOURCE, TARGET, "copier", str(RECORDS_PER_TRANSACTION)]
        if session_ms is not None:
            self._command.append(str(session_ms))
        self._over = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._supervise, name="copier", daemon=True)
        self._thread.start()

    @property
    def copied(self) -> int:
        """Records in transactions whose commit was answered."""
        return self.progress[-1][1] if self.progress else 0

    def kill(self) -> None:
        """Kills the process by SIGKILL; the next one starts at once."""
        if self._process is not None:
            self._process.kill()

    def log_positions(self) -> None:
        """The process writes to its log where it is."""
        if self._process is not None:
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(0.2)

    def end(self) -> None:
        """Kills the process; no other one starts."""
        self._over.set()
        self.kill()
        self._thread.join()

    def log(self) -> str:
        return self.stderr_path.read_text() if self.stderr_path.exists() else ""

    def _supervise(self) -> None:
        while not self._over.is_set() and self.started_count <= RESTARTS_MAX:
            self.started_count += 1
            done = self.copied
            with self.stderr_path.open("a") as stderr:
                self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=stderr, text=True)
            if self._over.is_set():
                self._process.kill()
            assert self._process.stdout is not None
            for line in self._process.stdout:
                if line.endswith("}\n"):
                    told = json.loads(line)
                    self.progress.append((told["at"], done + told["records"]))
            self._process.wait()
            self._process.stdout.close()


class Feeder:
    """Sends numbered records to each partition in turn, at a pace, as many as `allow` permits.

    Attributes:
        acknowledged: values by partition, in the order sent.
        acknowledged_at: monotonic seconds of each acknowledgement; `times` has them by partition.
        allowed: how many records may be sent so far.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        per_second: int,
    ) -> None:
        self.acknowledged: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
        self.acknowledged_at: list[float] = []
        self.times: dict[int, list[float]] = {partition: [] for partition in range(partitions)}
        self.failures: list[str] = []
        self.sent = 0
        self._topic = topic
        self._partitions = partitions
        self._per_second = per_second
        self.allowed = 0
        self._more = threading.Condition()
        self._over = False
        self._given_up = False
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "delivery.timeout.ms": 120_000,
                **QUICK,
            }
        )
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._thread.start()

    def has_acknowledged(self, records: int) -> bool:
        """Whether that many records are acknowledged."""
        return len(self.acknowledged_at) >= records

    def allow(self, records: int) -> None:
        """Permits that many more records."""
        with self._more:
            self.allowed += records
            self._more.notify()

    def end(self) -> None:
        """Waits until everything allowed is sent and answered."""
        with self._more:
            self._over = True
            self._more.notify()
        self._thread.join()
        assert not self.failures, f"{len(self.failures)} records were refused: {self.failures[:3]}"

    def give_up(self) -> None:
        """Ends without waiting: the test has failed."""
        self._given_up = True

    def _run(self) -> None:
        while not self._given_up:
            with self._more:
                while self.sent == self.allowed and not self._over and not self._given_up:
                    self._more.wait(0.05)
                    self._producer.poll(0)
                if self.sent == self.allowed:
                    break
                share = self.allowed
            began, first = time.monotonic(), self.sent
            while self.sent < share and not self._given_up:
                due = first + int((time.monotonic() - began) * self._per_second) + 1
                while self.sent < min(due, share):
                    self._send(self.sent)
                    self.sent += 1
                self._producer.poll(0.005)
        left = self._producer.flush(0 if self._given_up else 120)
        if left:
            self.failures.append(f"{left} without an answer")

    def _send(self, number: int) -> None:
        partition = number % self._partitions
        value = b"%d-%d" % (partition, number // self._partitions)

        def on_delivery(error: Any, _message: Any) -> None:
            if error is not None:
                self.failures.append(f"{value!r}: {error}")
            else:
                self.acknowledged[partition].append(value)
                self.acknowledged_at.append(time.monotonic())
                self.times[partition].append(self.acknowledged_at[-1])

        while True:
            try:
                self._producer.produce(self._topic, value, partition=partition, on_delivery=on_delivery)
                return
            except BufferError:
                if self._given_up:
                    return
                self._producer.poll(0.05)


class Reader:
    """Reads a topic during the run, read_committed, in a thread.

    Attributes:
        seen: values by partition, in the order delivered.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
    ) -> None:
        self.seen: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
        self.offsets: dict[int, int] = {}
        self.went_back: list[str] = []
        self._over = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                **QUICK,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        return sum(map(len, self.seen.values()))

    def end(self) -> None:
        """Stops reading; the offsets must never have gone back."""
        self.stop()
        assert not self.went_back, self.went_back[:3]

    def stop(self) -> None:
        """Stops reading."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            self._consumer.close()

    def wait_for(self, records: int, seconds: float) -> None:
        """Waits until it has read that many records; `judge` checks them."""
        deadline = time.monotonic() + seconds
        while self.count < records and time.monotonic() < deadline:
            time.sleep(0.02)

    def _run(self) -> None:
        while not self._over.is_set():
            for message in self._consumer.consume(10_000, 0.1):
                if message.error() is not None:
                    continue  # a broker is away; it comes again
                _, partition, offset = place_of(message)
                if offset <= self.offsets.get(partition, -1):
                    self.went_back.append(f"{partition}: {offset} after {self.offsets[partition]}")
                self.offsets[partition] = offset
                self.seen[partition].append(value_of(message))


def read_all(cluster: Cluster, topic: str, partitions: int, *, isolation_level: str, seconds: float = 60) -> Any:
    """Every value of a topic by partition, up to its present ends."""
    ends = {partition: end_offset(cluster, topic, partition, 0) for partition in range(partitions)}
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "judge",
            "isolation.level": isolation_level,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            **QUICK,
        }
    )
    found: dict[int, list[bytes]] = {partition: [] for partition in ends}
    left = {partition: None for partition, end in ends.items() if end > 0}
    consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
    deadline = time.monotonic() + seconds
    while left:
        assert time.monotonic() < deadline, f"{topic} is not read to its end: {list(left)} of {ends}"
        for message in consumer.consume(10_000, 0.2):
            error = message.error()
            if error is None:
                found[place_of(message)[1]].append(value_of(message))
            elif error.code() == -191:  # _PARTITION_EOF
                _, partition, offset = place_of(message)
                if offset >= ends[partition]:
                    left.pop(partition, None)
    consumer.close()
    return found


def end_offset(cluster: Cluster, topic: str, partition: int, isolation_level: int) -> int:
    """High watermark (0) or last stable offset (1), as the leader has it."""
    asked = {"name": topic, "partitions": [{"partition_index": partition, "timestamp": -1}]}
    request = request_of("ListOffsets", replica_id=-1, isolation_level=isolation_level, topics=[asked])

    def answer() -> Any:
        return cluster.ask(request, 5, of=cluster.leader(topic, partition)).topics[0].partitions[0]

    return int(cluster.wait_for(answer, lambda part: part.error_code == 0, f"{topic}-{partition} has an end").offset)


class CopyRun:
    """One copy through whatever the test does to the cluster; `with CopyRun(...) as run: …; run.judge()`."""

    step_seconds_max = 120.0  # until what was let in is copied

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        *,
        client: str = "librdkafka",
        partitions: int = 4,
        per_second: int = 6_000,
        start_worker: Callable[[], CopyWorker] | None = None,
    ) -> None:
        """Starts feeder, reader and copier."""
        self.cluster = cluster
        self.partitions = partitions
        for topic in (SOURCE, TARGET):
            cluster.create_topic(topic, partitions, min__insync__replicas="2")
        self.feeder = Feeder(cluster.bootstrap, SOURCE, partitions, per_second=per_second)
        self.reader = Reader(cluster.bootstrap, TARGET, partitions)
        self.worker = CopyWorker(client, cluster.bootstrap, folder) if start_worker is None else start_worker()

    def __enter__(self) -> CopyRun:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        self.worker.end()
        if failed is None:
            self.feeder.end()
            self.reader.end()
        else:
            self.feeder.give_up()
            self.reader.stop()

    def feed(self, records: int) -> None:
        """Feeds that many more records; returns when half of them are sent and the copy has progressed."""
        before = self.feeder.sent
        copied = self.worker.copied
        self.feeder.allow(records)
        self._wait_until(
            lambda: self.feeder.sent >= before + records // 2 and self.worker.copied > copied,
            f"half of {records} records are sent and some copied",
        )

    def wait_until_copied(self, seconds: float | None = None) -> None:
        """Waits until every fed record is copied: as reported, or as read if a worker was killed before its report."""
        allowed = self.feeder.allowed
        self._wait_until(
            lambda: self.worker.copied >= allowed or self.reader.count >= allowed, "everything is copied", seconds
        )

    def _wait_until(self, reached: Callable[[], bool], what: str, seconds: float | None = None) -> None:
        try:
            self.cluster.wait_until(reached, what, self.step_seconds_max if seconds is None else seconds)
        except AssertionError as late:
            self.worker.log_positions()
            feeder, worker = self.feeder, self.worker
            late.add_note(
                f"{feeder.allowed} allowed, {feeder.sent} sent, {len(feeder.acknowledged_at)} acknowledged, {self.reader.count} read"
            )
            for partition in range(self.partitions if self.reader.count < feeder.allowed else 0):
                stable, end = (end_offset(self.cluster, TARGET, partition, level) for level in (1, 0))
                late.add_note(f"{TARGET}-{partition}: read to {self.reader.offsets.get(partition)}, {stable=} {end=}")
            late.add_note(
                f"{worker.copied} copied in {worker.started_count} processes; the log of the worker:\n{worker.log()[-3000:]}"
            )
            raise

    def _what_is_wrong(self) -> Violation | None:
        """Of what there is, as far as it can be read."""
        source = read_all(self.cluster, SOURCE, self.partitions, isolation_level="read_uncommitted")
        target = read_all(self.cluster, TARGET, self.partitions, isolation_level="read_committed")
        try:
            check_copy(source, target)
        except Violation as violation:
            return violation
        return None

    def judge(self, *, seconds: float | None = None) -> None:
        """Waits until everything is copied, then checks it."""
        self.feeder.end()
        cluster = self.cluster
        try:
            self.wait_until_copied(seconds)
        except AssertionError as late:
            late.add_note(str(self._what_is_wrong()))
            raise
        self.worker.end()
        self.reader.wait_for(self.feeder.sent, 60)
        self.reader.end()
        source = read_all(cluster, SOURCE, self.partitions, isolation_level="read_uncommitted")
        target = read_all(cluster, TARGET, self.partitions, isolation_level="read_committed")
        for partition, acknowledged in self.feeder.acknowledged.items():
            check_acknowledged(acknowledged, source[partition])
        check_copy(source, target)
        for partition, seen in self.reader.seen.items():
            check_live(seen, target[partition])
        assert self.reader.count == self.feeder.sent
        for partition in range(self.partitions):
            check_stable(
                end_offset(cluster, TARGET, partition, 1),
                end_offset(cluster, TARGET, partition, 0),
            )
