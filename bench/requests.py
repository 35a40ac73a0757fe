#!/usr/bin/env python3
"""What a Produce request costs the broker: CPU of its process for each request, kernel included; of two checkouts in turn if asked.

usage: requests.py [--against CHECKOUT] [--rounds 9] [--only TEXT] [--plain]

A process serves each checkout. One connection sends requests to it, each after the answer to the one before (acks=all, one partition);
the requests are built beforehand. CPU is what the kernel's scheduler counted for all threads of the process (Linux), in nanoseconds. The
order of the checkouts alternates from round to round. Reported are medians, and the median of the ratios within a round.

The loops that mypyc compiles are built in a temporary directory, unless `--plain` asks for plain Python.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from barnabas.protocol import registry
from barnabas.protocol.messages.admin import CreatableTopic, CreateTopicsRequest
from barnabas.protocol.messages.header import RequestHeader
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.protocol.schema import encode

HERE = Path(__file__).resolve().parent.parent
SOURCES = ("barnabas", "setup.py", "build_backend.py", "pyproject.toml")
CASES = {  # records in the batch, bytes of each
    "1 record of 100 B": (1, 100),
    "150 records of 100 B": (150, 100),
    "1,000 records of 100 B": (1_000, 100),
    "9,000 records of 100 B": (9_000, 100),
    "16 records of 1 kB": (16, 1_000),
    "1,000 records of 1 kB": (1_000, 1_000),
}
ROUND_BYTES = 16_000_000  # sent in a round, at most
ROUND_REQUESTS = 3_000


def frame(request: object, api_key: int, version: int) -> bytes:
    header = RequestHeader(request_api_key=api_key, request_api_version=version, correlation_id=1, client_id="rdkafka")
    body = encode(header, registry.request_header_version(api_key, version)) + encode(request, version)
    return struct.pack(">i", len(body)) + body


def produce(count: int, size: int) -> bytes:
    now_ms = int(time.time() * 1000)
    value = os.urandom(size)
    batch = bytes(build_batch([NewRecord(None, value, now_ms + number // 50) for number in range(count)]))
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])]
    return frame(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data), 0, 9)


class Served:
    """A `barnabas serve` process of a checkout, and a connection to it. `metrics` is the address of its metrics, if it has any."""

    def __init__(self, checkout: Path, data: str, *options: str, module: str = "barnabas.cli.main") -> None:
        command = [sys.executable, "-m", module, "serve", "--listen", "127.0.0.1:0", "--data", data, *options]
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        self.process = subprocess.Popen(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        told = dict(part.split("=", 1) for part in line.split()[1:])
        self.metrics = told.get("metrics", "")
        host, port = told["listen"].rsplit(":", 1)
        self.connection = socket.create_connection((host, int(port)))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        self.ask(frame(CreateTopicsRequest(topics=[settings], timeout_ms=10_000), 19, 5))

    def ask(self, request: bytes) -> bytes:
        self.connection.sendall(request)
        answer = self.connection.recv(65_536)
        while len(answer) < 4 or len(answer) < 4 + struct.unpack_from(">i", answer)[0]:
            answer += self.connection.recv(65_536)
        return answer

    def cpu_ns(self) -> int:
        tasks = Path(f"/proc/{self.process.pid}/task")
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir())

    def measure(self, request: bytes) -> float:
        """Microseconds of CPU for each request of a round."""
        times = max(10, min(ROUND_REQUESTS, ROUND_BYTES // len(request)))
        for _ in range(times // 10):
            self.ask(request)
        before = self.cpu_ns()
        for _ in range(times):
            self.ask(request)
        return (self.cpu_ns() - before) / times / 1_000

    def end(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()


def compiled(checkout: Path, tree: Path) -> Path:
    """A copy of the checkout with its compiled loops."""
    tree.mkdir()
    for name in SOURCES:
        source = checkout / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, tree / name)
    build = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", ".", "--build-temp", "build-temp"]
    subprocess.run(build, cwd=tree, check=True, capture_output=True)
    return tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="")
    parser.add_argument("--plain", action="store_true")
    arguments = parser.parse_args()
    checkouts = {"this": HERE} | ({} if arguments.against is None else {"other": arguments.against.resolve()})
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.plain:
            checkouts = {name: compiled(checkout, Path(folder, name)) for name, checkout in checkouts.items()}
        compare(
            checkouts, folder, arguments.rounds, {name: size for name, size in CASES.items() if arguments.only in name}
        )


def compare(checkouts: dict[str, Path], folder: str, rounds: int, cases: dict[str, tuple[int, int]]) -> None:
    print("| broker CPU a request | " + " | ".join(checkouts) + (" | ratio |" if len(checkouts) > 1 else " |"))
    print("|---|" + "---|" * (len(checkouts) + (len(checkouts) > 1)))
    for case, (count, size) in cases.items():
        request = produce(count, size)
        found: dict[str, list[float]] = {name: [] for name in checkouts}
        served = {
            name: Served(checkout, f"{folder}/data-{name}-{count}-{size}") for name, checkout in checkouts.items()
        }
        try:
            for number in range(rounds):
                for name in list(served) if number % 2 else reversed(served):
                    found[name].append(served[name].measure(request))
        finally:
            for each in served.values():
                each.end()
        cells = [f"{statistics.median(values):.1f} µs" for values in found.values()]
        if "other" in found:
            pairs = zip(found["this"], found["other"], strict=True)
            cells.append(f"{statistics.median(this / other for this, other in pairs):.3f}")
        print(f"| {case} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
