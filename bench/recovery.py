#!/usr/bin/env python3
"""How long a killed node, and one whose machine lost power, is away: 100 partitions with 4 GiB of active segments.

usage: recovery.py [--partitions 100] [--gib 4] [--record-bytes 1000] [--batch-bytes 64000] [--kafka] [--dir /tmp/recovery]

Three voters; one of them is a broker, too. It is filled by librdkafka (eight idempotent producers), goes on being written to, and gets
SIGKILL. Measured from the start of the process that follows: the answer to a pre-vote that is asked for over the wire until it comes,
the ready line, and an acknowledged record on every partition. The same again after clean stops that get SIGKILL before their end, then as after a power loss: no saved state and recovery
points of 0, so that every byte is read. `--record-bytes 100 --batch-bytes 1 --gib 0.25` makes batches of one record.
With --kafka, a real Apache Kafka 4.3.1 is started on a copy of the directory as it is after the kill. Needs twice the space.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.protocol import registry
from barnabas.protocol.messages.header import RequestHeader
from barnabas.protocol.messages.quorum import (
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
    VoteResponse,
    VoteResponsePartition,
)
from barnabas.protocol.schema import decode, encode

KAFKA_UP = Path(__file__).parent.parent / "tests" / "oracle" / "kafka-up"
PORT = 19_392
TOPIC = "t"
MIB = 1 << 20
CUT_SHORT = (0.2, 0.5, 0.8)  # of the time that a clean stop takes: then it gets SIGKILL


QUORUM = {1: PORT + 1, 2: PORT + 2, 3: PORT + 3}  # controller listeners
VOTE_VERSION = 2


def serve(node_id: int, data: Path, *options: str, stderr: Path) -> subprocess.Popen[str]:
    """A `barnabas serve` process of the quorum."""
    voters = ",".join(f"{each}@127.0.0.1:{port}" for each, port in QUORUM.items())
    command = [sys.executable, "-m", "barnabas.cli.main", "serve", "--node-id", str(node_id), "--data", str(data)]
    command += ["--quorum", voters, "--log-level", "info", *options]
    with stderr.open("w") as file:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)


def ask_for_a_vote(connection: socket.socket, epoch: int) -> VoteResponsePartition:
    """Asks node 1 for a pre-vote as voter 2, whose log is newer than any."""
    partition = VoteRequestPartition(
        partition_index=0,
        replica_epoch=epoch,
        replica_id=2,
        last_offset_epoch=epoch,
        last_offset=1 << 40,
        pre_vote=True,
    )
    request = VoteRequest(
        voter_id=1, topics=[VoteRequestTopic(topic_name="__cluster_metadata", partitions=[partition])]
    )
    header = RequestHeader(request_api_key=52, request_api_version=VOTE_VERSION, correlation_id=1, client_id="bench")
    frame = encode(header, registry.request_header_version(52, VOTE_VERSION)) + encode(request, VOTE_VERSION)
    connection.sendall(struct.pack(">i", len(frame)) + frame)
    answer = b""
    while len(answer) < 4 or len(answer) < 4 + struct.unpack_from(">i", answer)[0]:
        received = connection.recv(65536)
        if not received:
            raise ConnectionResetError
        answer += received
    response = decode(VoteResponse, answer, VOTE_VERSION, 8 + registry.response_header_version(52, VOTE_VERSION))
    return response.topics[0].partitions[0]


class Node:
    """The broker's process, and when it did what."""

    def __init__(self, data: Path) -> None:
        self.stderr = data.with_name("stderr")
        self.vote = "no answer"
        self.votes_s = self.votes_cpu_s = -1.0
        self.began = time.monotonic()
        self.process = serve(1, data, "--listen", f"127.0.0.1:{PORT}", stderr=self.stderr)
        asking = threading.Thread(target=self._ask)
        asking.start()
        assert self.process.stdout is not None
        assert "ready" in self.process.stdout.readline(), self.stderr.read_text()
        self.ready_s = time.monotonic() - self.began
        asking.join()

    def _ask(self) -> None:
        while self.process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", QUORUM[1]), timeout=5) as connection:
                    found = ask_for_a_vote(connection, 0)
                    if found.leader_epoch > 0:
                        found = ask_for_a_vote(connection, found.leader_epoch)
            except OSError:
                time.sleep(0.002)
                continue
            self.votes_s = time.monotonic() - self.began
            stat = Path(f"/proc/{self.process.pid}/stat").read_text().split()
            self.votes_cpu_s = (int(stat[13]) + int(stat[14])) / os.sysconf("SC_CLK_TCK")
            self.vote = "granted" if found.vote_granted else f"not granted, code {found.error_code}"
            return

    def end(self, number: signal.Signals) -> float:
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait()
        return time.monotonic() - began

    def cut_short(self, after_s: float) -> str:
        """Begins a clean stop and kills the process after this number of seconds. Returns what happened."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(after_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return f"the next one cut short after {after_s:.2f} s"
        return f"the next one took less than {after_s:.2f} s"


def fill(partitions: int, total: int, record_bytes: int, batch_bytes: int) -> float:
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
                **({"batch.size": batch_bytes} if batch_bytes > 1 else {"batch.num.messages": 1}),
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
    print(
        f"{what}: votes {node.votes_s:.2f} s ({node.vote}; {node.votes_cpu_s:.2f} s of CPU), ready {node.ready_s:.2f} s, ",
        end="",
    )
    print(f"first partition {first:.2f} s, all {partitions} partitions {every:.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--record-bytes", type=int, default=1_000)
    parser.add_argument("--batch-bytes", type=int, default=64_000)
    parser.add_argument("--kafka", action="store_true")
    parser.add_argument("--dir", type=Path, default=Path("/tmp/recovery"))
    options = parser.parse_args()
    total = int(options.gib * (1 << 30))
    shutil.rmtree(options.dir, ignore_errors=True)
    options.dir.mkdir(parents=True)
    data = options.dir / "data"
    if options.kafka:  # it opens the copy as the only voter; a pre-vote for a stranger is refused
        del QUORUM[2], QUORUM[3]
    others = [
        serve(
            each,
            options.dir / f"voter-{each}",
            "--set",
            "process.roles=controller",
            stderr=options.dir / f"stderr-{each}",
        )
        for each in list(QUORUM)[1:]
    ]
    try:
        node = Node(data)
        took = fill(options.partitions, total, options.record_bytes, options.batch_bytes)
        print(f"{total / MIB:.0f} MiB in {took:.0f} s", flush=True)
        write_on(options.partitions, 3)
        node.end(signal.SIGKILL)
        if options.kafka:
            copy = options.dir / "copy"
            shutil.copytree(data, copy)
        node = Node(data)
        tell("after a kill", node, options.partitions)
        for part in CUT_SHORT:
            write_on(options.partitions, 3)
            took = node.end(signal.SIGTERM)
            node = Node(data)
            write_on(options.partitions, 3)
            cut = node.cut_short(took * part)
            node = Node(data)
            tell(f"after a stop of {took:.2f} s, {cut}", node, options.partitions)
        node.end(signal.SIGKILL)
        as_after_a_power_loss(data)
        node = Node(data)
        tell("after a power loss", node, options.partitions)
        print("\n".join(re.findall(r"Recovery goes on.*", node.stderr.read_text())[-3:]))
        print(f"clean stop: {node.end(signal.SIGTERM):.2f} s", flush=True)
        if options.kafka:
            began = time.monotonic()
            command = [str(KAFKA_UP), "open", "--data", str(copy), "--node-id", "1", "--port", str(PORT)]
            subprocess.run([*command, "--dir", str(options.dir / "kafka")], check=True, capture_output=True)
            first, every = serving(options.partitions, began)
            print(f"Kafka after a kill: first partition {first:.2f} s, all {every:.2f} s")
            subprocess.run([str(KAFKA_UP), "stop", "--dir", str(options.dir / "kafka")], check=False)
    finally:
        for other in others:
            other.kill()
        shutil.rmtree(options.dir, ignore_errors=True)


if __name__ == "__main__":
    main()
