#!/usr/bin/env python3
"""What the test kit costs: starts in new processes, fresh clusters in one process, the plugin's import, workers of xdist.

usage: testing_kit.py [--starts 20] [--fresh 1000] [--brokers 1,3] [--workers 8] [--processes]
       testing_kit.py --starts 1000 --fresh 10000 --brokers 1 --workers 0    what make soak runs: none may fail

"start" is a new Python process that imports the kit and starts a cluster: wall time until it serves, and CPU time. "fresh" is what
the fixture `kafka` does for each test: a new cluster and its end, in a process that has started one before; several brokers come from
the clusters that earlier ones left and from spare ones, with `--pause` seconds of a test in between; that test creates a topic. A failure is counted and shown, and the exit code is 1 then.
`--processes` measures mode "process", too.
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
from collections.abc import Sequence
from pathlib import Path

IMPORTS_MAX = 20
START = """
import json, time
began, cpu = time.perf_counter(), time.process_time()
from barnabas.testing import Cluster
with Cluster({brokers}, mode={mode!r}):
    print(json.dumps([time.perf_counter() - began, time.process_time() - cpu]))
"""
IMPORT = """
import json, time
import pytest
began = time.perf_counter()
import barnabas.testing.plugin
print(json.dumps(time.perf_counter() - began))
"""
FRESH = """
import json, sys, time
from barnabas.testing import Broker, Cluster
from barnabas.testing.namespace import leaked_clients
from barnabas.testing.pool import ClusterPool

spares = ClusterPool()
starts, ends, failures = [], [], 0
for number in range({count} + 1):
    time.sleep({pause})
    try:
        began = time.perf_counter()
        kafka = Broker().start() if {brokers} == 1 else spares.take({brokers}, lambda: Cluster({brokers}))
        took = time.perf_counter() - began
        if {brokers} > 1:
            kafka.create_topic("orders", 3)
        served = time.perf_counter()
        kafka.wait(leaked_clients(kafka.core(), 0.25, set()))
        spares.give_back(kafka)
    except Exception as error:
        failures += 1
        print(f"fresh cluster {{number}}: {{error!r}}", file=sys.stderr)
        continue
    if number:  # the first one imports
        starts.append(took)
        ends.append(time.perf_counter() - served)
spares.close()
print(json.dumps([starts, ends, failures]))
"""
WORKER = """
import os
import pytest

@pytest.mark.parametrize("number", range(16))
def test_it(kafka, kafka_topic, kafka_producer, number):
    kafka_producer.send(kafka_topic, b"x")
    with open("/proc/self/smaps_rollup") as file:
        pss = next(line.split()[1] for line in file if line.startswith("Pss:"))
    with open(f"pss-{os.getpid()}", "w") as file:
        file.write(pss)
"""


def run(script: str) -> object:
    """What the script prints last; None if it fails, whose errors are shown."""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return None
    result: object = json.loads(done.stdout.splitlines()[-1])
    return result


def shown(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"median {statistics.median(ordered) * 1e3:.1f}, p99 {p99 * 1e3:.1f}, most {ordered[-1] * 1e3:.1f} ms"


def main() -> int:
    """Prints the figures; returns the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--fresh", type=int, default=1000)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of a test between two fresh clusters")
    parser.add_argument("--brokers", default="1,3")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--processes", action="store_true")
    arguments = parser.parse_args()
    imports = [run(IMPORT) for _ in range(min(arguments.starts, IMPORTS_MAX))]
    print(f"import of the plugin: {shown([float(str(each)) for each in imports])}")
    failures = 0
    for brokers in map(int, arguments.brokers.split(",")):
        for mode in ("thread", "process") if arguments.processes else ("thread",):
            failures += started(brokers, mode, arguments.starts)
        answer = run(FRESH.format(brokers=brokers, count=arguments.fresh, pause=arguments.pause))
        if not isinstance(answer, list):
            failures += 1
            continue
        failures += answer[2]
        took = f"{shown(answer[0])}; end: {shown(answer[1])}"
        print(f"fresh cluster of {brokers}, {arguments.fresh} times, {answer[2]} failures: {took}", flush=True)
    if arguments.workers:
        print(f"{arguments.workers} workers of xdist: {workers_mib(arguments.workers):.0f} MiB together (PSS)")
    return failures


def started(brokers: int, mode: str, count: int) -> int:
    """Prints the figures of starts in new processes; returns how many failed."""
    answers = [run(START.format(brokers=brokers, mode=mode)) for _ in range(count)]
    took = [each for each in answers if isinstance(each, list)]
    failures = len(answers) - len(took)
    print(f"start of {brokers} ({mode}), {count} times, {failures} failures: {shown([each[0] for each in took])}")
    print(f"  CPU of the starting process: {shown([each[1] for each in took])}", flush=True)
    return failures


def workers_mib(count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_worker.py").write_text(WORKER)
        options = [
            "-p",
            "barnabas.testing.plugin",
            "-p",
            "xdist.plugin",
            "-n",
            str(count),
            "-q",
            "-p",
            "no:cacheprovider",
        ]
        alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command = [sys.executable, "-m", "pytest", *options]
        subprocess.run(command, cwd=folder, env=alone, check=True, stdout=subprocess.DEVNULL)
        return sum(int(path.read_text()) for path in Path(folder).glob("pss-*")) / 1024


if __name__ == "__main__":
    began = time.monotonic()
    failed = main()
    print(f"({time.monotonic() - began:.0f} s)")
    sys.exit(1 if failed else 0)
