#!/usr/bin/env python3
"""TLS beside plaintext, on Barnabas and on a real Apache Kafka 4.3.1: the same librdkafka load in one run.

usage: tls.py [--pairs 3] [--scale 0.3] [--sizes 1000,10000] [--without-kafka] [--out results.json]

Each broker has a plaintext and a TLS listener with the same EC certificate (P-256), and is idle while the other is measured. Reported are
medians: throughput, latency at depth 1, CPU of the broker, and the ratio TLS / plaintext of the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tests.support.processes.ports import free_port_block  # noqa: E402  # after the path
from tests.support.processes.served import ServedBroker  # noqa: E402  # as above
from tests.support.security.certificates import CertificateAuthority  # noqa: E402  # as above

KAFKA_UP = HERE.parent / "tests" / "oracle" / "kafka-up"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=0.3)
    parser.add_argument("--sizes", default="1000,10000")
    parser.add_argument("--without-kafka", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="barnabas-bench-") as scratch:
        folder = Path(scratch)
        authority = CertificateAuthority(folder / "ca")
        keys = authority.issue("node").by_file()
        tls, plain = free_port_block(2), free_port_block(2)
        listeners = f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls}"
        settings = [f"{key}={value}" for key, value in {"listeners": listeners, **keys}.items()]
        broker = ServedBroker(folder / "data", *settings, listens=False).start()
        targets = {"Barnabas": (str(broker.pid), plain, tls)}
        if not arguments.without_kafka:
            targets["Kafka"] = kafka(folder, keys)
        try:
            rows = measure(arguments, targets, ["security.protocol=ssl", f"ssl.ca.location={authority.certificate}"])
        finally:
            broker.stop()
            subprocess.run([KAFKA_UP, "stop", "--dir", str(folder / "kafka")], check=False)
    show(rows)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


def kafka(folder: Path, keys: dict[str, str]) -> tuple[str, int, int]:
    """Process id, plaintext port and TLS port of a started Kafka."""
    port = free_port_block(3)
    plain, controller, tls = (f"127.0.0.1:{port + number}" for number in range(3))
    settings = {
        "listeners": f"PLAINTEXT://{plain},CONTROLLER://{controller},SSL://{tls}",
        "advertised.listeners": f"PLAINTEXT://{plain},SSL://{tls}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
        **keys,
    }
    command = [str(KAFKA_UP), "start", "--port", str(port), "--dir", str(folder / "kafka")]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    with (folder / "kafka-up.log").open("w") as output:
        subprocess.run(command, check=True, stdout=output, stderr=output)
    pid = (folder / "kafka" / "node-1" / "pid").read_text().strip()
    time.sleep(4)
    return pid, port, port + 2


def measure(
    arguments: argparse.Namespace, targets: dict[str, tuple[str, int, int]], secure: list[str]
) -> dict[str, dict[str, list[float]]]:
    """Figures by "case, figure" and "broker protocol"."""
    found: dict[str, dict[str, list[float]]] = {}
    for pair in range(-1, arguments.pairs):  # the first one warms up
        scale = arguments.scale if pair >= 0 else arguments.scale / 5
        order = [(name, protocol) for name in targets for protocol in ("plaintext", "TLS")]
        for name, protocol in order if pair % 2 else reversed(order):
            pid, plain, tls = targets[name]
            conf = [part for each in (secure if protocol == "TLS" else []) for part in ("--conf", each)]
            address = f"127.0.0.1:{tls if protocol == 'TLS' else plain}"
            command = [sys.executable, str(HERE / "kbench.py"), name, address, "--pids", pid, "--scale", str(scale)]
            for case in (["--only", "bulk", "--sizes", arguments.sizes], ["--only", "latency"]):
                out = subprocess.run([*command, *case, *conf], check=True, capture_output=True, text=True).stdout
                for line in out.splitlines():
                    if line.startswith("{") and pair >= 0:
                        add(found, f"{name} {protocol}", json.loads(line))
        print(f"pair {pair + 1}/{arguments.pairs}", file=sys.stderr, flush=True)
    return found


def add(found: dict[str, dict[str, list[float]]], column: str, row: dict[str, Any]) -> None:
    figures: dict[str, float] = {key: row[key] for key in ("mb_s", "p50_ms", "p99_ms") if key in row}
    if row.get("records"):
        figures["cpu_us_each"] = row["broker_cpu_s"] / row["records"] * 1e6
    elif row.get("n"):
        figures["cpu_us_each"] = row["broker_cpu_s"] / row["n"] * 1e6
    for figure, value in figures.items():
        found.setdefault(f"{row['case']}, {figure}", {}).setdefault(column, []).append(value)


def show(rows: dict[str, dict[str, list[float]]]) -> None:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}\n")
    print(f"| case | {' | '.join(columns)} | Barnabas TLS / plaintext |\n|{'---|' * (len(columns) + 2)}")
    for name, row in rows.items():
        medians = {column: statistics.median(values) for column, values in row.items()}
        ratio = medians["Barnabas TLS"] / medians["Barnabas plaintext"] if medians.get("Barnabas plaintext") else 0.0
        print(f"| {name} | {' | '.join(f'{medians.get(each, 0):.3g}' for each in columns)} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
