#!/usr/bin/env python3
"""Barnabas beside a real Apache Kafka 4.3.1, or beside another checkout of Barnabas: the same librdkafka load in one run.

usage: side_by_side.py [--pairs 5] [--only bulk,latency,…] [--scale 1.0] [--out results.json] [--against CHECKOUT]

Both brokers run at once, each idle while the other is measured; the order alternates from pair to pair. Kafka is warmed up
first by the same load. Reported are medians over the pairs, of each figure and of the ratio Barnabas / Kafka within a pair.
Needs Java 17 and Maven (tests/oracle/kafka-up brings Kafka from Maven Central), unless --against puts another checkout in Kafka's place.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KAFKA_UP = HERE.parent / "tests" / "oracle" / "kafka-up"
CASES = "bulk,latency,txn,txn16,e2e,partitions"


class Barnabas:
    """A `barnabas serve` process of a checkout, on a fresh directory."""

    def __init__(self, directory: str, checkout: Path = HERE.parent) -> None:
        started = time.perf_counter()
        self.log = Path(directory + ".log")
        command = [sys.executable, "-m", "barnabas.cli.main", "serve", "--node-id", "1", "--listen", "127.0.0.1:0"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--data", directory, "--log-level", "info"],
                cwd=checkout,
                env=os.environ | {"PYTHONPATH": str(checkout)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.ready_s = time.perf_counter() - started
        if "listen=" not in line:
            raise SystemExit(f"{checkout} does not serve: {line}{self.log.read_text()}")
        self.bootstrap = dict(part.split("=", 1) for part in line.split()[1:])["listen"]
        self.pids = str(self.process.pid)
        time.sleep(0.5)
        self.rss_mb = rss_mb(self.process.pid)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


class Kafka:
    """A real Kafka, by the oracle script."""

    def __init__(self, directory: str, port: int) -> None:
        self.directory = directory
        started = time.perf_counter()
        out = subprocess.run(
            [KAFKA_UP, "start", "--port", str(port), "--dir", directory], check=True, capture_output=True, text=True
        )
        self.ready_s = time.perf_counter() - started
        self.bootstrap = out.stdout.strip().splitlines()[-1].split("\x1b[0m")[-1]
        self.pids = subprocess.run(
            [KAFKA_UP, "pids", "--dir", directory], check=True, capture_output=True, text=True
        ).stdout.strip()
        time.sleep(2)
        self.rss_mb = rss_mb(int(self.pids))

    def stop(self) -> None:
        subprocess.run([KAFKA_UP, "stop", "--dir", self.directory], check=False)


def rss_mb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) // 1024
    return 0


def load(name: str, broker: Barnabas | Kafka, only: str, scale: float, *extra: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(HERE / "kbench.py"), name, broker.bootstrap, "--pids", broker.pids, "--only", only]
    out = subprocess.run([*command, "--scale", str(scale), *extra], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def derived(row: dict[str, Any]) -> dict[str, float]:
    """The figures of one row that are compared, units in the names."""
    cpu, case = row["broker_cpu_s"], row["case"]
    figures: dict[str, float] = {"wall_s": row["wall_s"]}
    for key in ("p50_ms", "p99_ms", "txn_s", "mb_s", "krec_s"):
        if key in row:
            figures[key] = row[key]
    if case.startswith(("produce_", "consume_")) and "mb_s" in row:
        megabytes = row["mb_s"] * row["wall_s"]
        figures["cpu_s_per_gb"] = cpu / megabytes * 1000 if megabytes else 0.0
        figures["cpu_s_per_million"] = cpu / row["records"] * 1e6 if row["records"] else 0.0
    elif row.get("n"):
        figures["cpu_us_each"] = cpu / row["n"] * 1e6
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", default=CASES)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--port", type=int, default=39092)
    parser.add_argument("--out", default="")
    parser.add_argument("--against", type=Path, help="another checkout of Barnabas, in Kafka's place")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="barnabas-bench-") as scratch:
        other: Kafka | Barnabas
        if args.against is None:
            other = Kafka(os.path.join(scratch, "kafka"), args.port)
        else:
            other = Barnabas(os.path.join(scratch, "other"), args.against.resolve())
        try:
            barnabas = Barnabas(os.path.join(scratch, "barnabas"))
            try:
                results = measure(args, other, barnabas)
            finally:
                barnabas.stop()
        finally:
            other.stop()
    table(results)
    if args.out:
        Path(args.out).write_text(json.dumps(results, indent=1) + "\n")


def measure(args: argparse.Namespace, other: Kafka | Barnabas, barnabas: Barnabas) -> dict[str, Any]:
    load("other", other, "latency", args.scale / 10, "--warmup")
    load("barnabas", barnabas, "latency", args.scale / 10)
    samples: dict[str, dict[str, dict[str, list[float]]]] = {}
    for pair in range(args.pairs):
        for case in args.only.split(","):
            order: list[tuple[str, Kafka | Barnabas]] = [("other", other), ("barnabas", barnabas)]
            for name, broker in order if pair % 2 == 0 else reversed(order):
                for row in load(name, broker, case, args.scale):
                    if "error" in row:
                        print(f"pair {pair + 1} {name} {case}: {row['error']}", file=sys.stderr)
                        continue
                    for figure, value in derived(row).items():
                        samples.setdefault(row["case"], {}).setdefault(figure, {}).setdefault(name, []).append(value)
            print(f"pair {pair + 1}/{args.pairs} {case}", file=sys.stderr, flush=True)
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "date": time.strftime("%Y-%m-%d"),
        "pairs": args.pairs,
        "other": "Kafka" if isinstance(other, Kafka) else str(args.against),
        "ready_s": {"other": round(other.ready_s, 2), "barnabas": round(barnabas.ready_s, 2)},
        "rss_idle_mb": {"other": other.rss_mb, "barnabas": barnabas.rss_mb},
        "samples": samples,
    }


def table(results: dict[str, Any]) -> None:
    """Prints a Markdown table: medians, and the median of the ratios within each pair."""
    print(f"{results['machine']}, {results['date']}, {results['pairs']} pairs\n")
    print(f"| case | figure | {results['other']} | Barnabas | ratio (median of pairs) |\n|---|---|---|---|---|")
    for case, figures in results["samples"].items():
        for figure, by_name in figures.items():
            ours, theirs = by_name.get("barnabas", []), by_name.get("other", [])
            if not ours or not theirs:
                continue
            ratios = [a / b for a, b in zip(ours, theirs, strict=False) if b]
            ratio = f"{statistics.median(ratios):.2f}" if ratios else "-"
            print(f"| {case} | {figure} | {statistics.median(theirs):.3g} | {statistics.median(ours):.3g} | {ratio} |")
    for key in ("ready_s", "rss_idle_mb"):
        print(f"| start | {key} | {results[key]['other']} | {results[key]['barnabas']} | |")


if __name__ == "__main__":
    main()
