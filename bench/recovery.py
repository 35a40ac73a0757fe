#!/usr/bin/env python3
"""How long a killed node, and one whose machine lost power, is away: 100 partitions with 4 GiB of active segments.

usage: recovery.py [--partitions 100] [--gib 4] [--record-bytes 1000] [--kafka] [--dir /tmp/recovery]

One node is filled by librdkafka (64 kB batches, eight idempotent producers), goes on being written to, and gets SIGKILL. Measured from the start of
the process that follows: the log line by which its voter leads the quorum, the ready line, and an acknowledged record on every
partition. Then the same again as after a power loss: no saved state and recovery points of 0, so that every byte is read.
With --kafka, a real Apache Kafka 4.3.1 is started on a copy of the directory as it is after the kill. Needs twice the space.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

KAFKA_UP = Path(__file__).parent.parent / "tests" / "oracle" / "kafka-up"
PORT = 19_392
TOPIC = "t"
MIB = 1 << 20


class Node:
    """One `barnabas serve` process and what its log said when."""

    def __init__(self, data: Path) -> None:
        self.stderr = data.with_name("stderr")
        self.began = time.monotonic()
        wall = time.time()
        command = [sys.executable, "-m", "barnabas.cli.main", "serve", "--node-id", "1", "--data", str(data)]
        command += ["--listen", f"127.0.0.1:{PORT}", "--log-level", "info"]
        with self.stderr.open("w") as stderr:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        assert self.process.stdout is not None
        assert "ready" in self.process.stdout.readline(), self.stderr.read_text()
        self.ready_s = time.monotonic() - self.began
        line = re.search(r"^(\S+ \S+),(\d+) .*leads the quorum", self.stderr.read_text(), re.MULTILINE)
        assert line is not None
        self.leads_s = time.mktime(time.strptime(line[1], "%Y-%m-%d %H:%M:%S")) + int(line[2]) / 1000 - wall

    def end(self, number: signal.Signals) -> float:
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait()
        return time.monotonic() - began


def fill(partitions: int, total: int, record_bytes: int) -> float:
    """Writes `total` bytes, evenly; returns the seconds."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{PORT}"})
    for created in admin.create_topics([NewTopic(TOPIC, partitions, 1)]).values():
        created.result()
    began = time.monotonic()
    producers = [
        Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{PORT}",
                "linger.ms": 50,
                "batch.size": 64_000,
                "enable.idempotence": True,
                "queue.buffering.max.kbytes": 64 * 1024,
            }
        )
        for _ in range(8)
    ]
    value = bytes(record_bytes)
    for number in range(total // record_bytes):
        # Runs of one batch, so that batches are full.
        producer = producers[number // 60_000 % 8]
        while True:
            try:
                producer.produce(TOPIC, value, partition=number // 60 % partitions)
                break
            except BufferError:
                producer.poll(0.05)
    for producer in producers:
        producer.flush()
    return time.monotonic() - began


def serving(partitions: int, began: float, timeout_s: float = 600) -> tuple[float, float]:
    """Seconds until the first and until every partition has acknowledged a record."""
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{PORT}", "linger.ms": 0, "retry.backoff.max.ms": 100})
    acknowledged: list[float] = []

    def delivered(error: object, _message: object) -> None:
        assert error is None, error
        acknowledged.append(time.monotonic() - began)

    for partition in range(partitions):
        producer.produce(TOPIC, b"after", partition=partition, on_delivery=delivered)
    producer.flush(timeout_s)
    assert len(acknowledged) == partitions, f"{len(acknowledged)} of {partitions}"
    return min(acknowledged), max(acknowledged)


def write_on(partitions: int, seconds: float) -> None:
    """Small records on every partition, up to the moment of the kill."""
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{PORT}", "linger.ms": 5})
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        for _ in range(100):
            producer.produce(TOPIC, bytes(100), partition=number % partitions)
            number += 1
        producer.poll(0.01)
    producer.purge()


def as_after_a_power_loss(data: Path) -> None:
    for name in ("log-state-checkpoint", "synced-state-checkpoint"):
        for file in data.glob(f"*/{name}"):
            file.unlink()
    (data / "recovery-point-offset-checkpoint").write_text("0\n0\n")


def tell(what: str, node: Node, partitions: int) -> None:
    first, every = serving(partitions, node.began)
    print(f"{what}: leads the quorum {node.leads_s:.2f} s, ready {node.ready_s:.2f} s, ", end="")
    print(f"first partition {first:.2f} s, all {partitions} partitions {every:.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--record-bytes", type=int, default=1_000)
    parser.add_argument("--kafka", action="store_true")
    parser.add_argument("--dir", type=Path, default=Path("/tmp/recovery"))
    options = parser.parse_args()
    total = int(options.gib * (1 << 30))
    shutil.rmtree(options.dir, ignore_errors=True)
    options.dir.mkdir(parents=True)
    data = options.dir / "data"
    try:
        node = Node(data)
        took = fill(options.partitions, total, options.record_bytes)
        print(f"{total / MIB:.0f} MiB in {took:.0f} s", flush=True)
        write_on(options.partitions, 3)
        node.end(signal.SIGKILL)
        if options.kafka:
            copy = options.dir / "copy"
            shutil.copytree(data, copy)
        node = Node(data)
        tell("after a kill", node, options.partitions)
        node.end(signal.SIGKILL)
        as_after_a_power_loss(data)
        node = Node(data)
        tell("after a power loss", node, options.partitions)
        print("\n".join(re.findall(r"recovered \d.*", node.stderr.read_text())[-3:]))
        print(f"clean stop: {node.end(signal.SIGTERM):.2f} s", flush=True)
        if options.kafka:
            began = time.monotonic()
            command = [str(KAFKA_UP), "open", "--data", str(copy), "--node-id", "1", "--port", str(PORT)]
            subprocess.run([*command, "--dir", str(options.dir / "kafka")], check=True, capture_output=True)
            first, every = serving(options.partitions, began)
            print(f"Kafka after a kill: first partition {first:.2f} s, all {every:.2f} s")
            subprocess.run([str(KAFKA_UP), "stop", "--dir", str(options.dir / "kafka")], check=False)
    finally:
        shutil.rmtree(options.dir, ignore_errors=True)


if __name__ == "__main__":
    main()
