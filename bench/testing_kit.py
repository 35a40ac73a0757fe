#!/usr/bin/env python3
"""What the test kit costs: starts in new processes, fresh clusters in one process, the plugin's import, workers of xdist.

usage: testing_kit.py [--starts 20] [--fresh 1000] [--brokers 1,3] [--workers 8] [--processes]

"start" is a new Python process that imports the kit and starts a cluster: wall time until it serves, and CPU time. "fresh" is what
the fixture `kafka` does for each test: a new cluster and its end, in a process that has started one before; several brokers come from
the spare cluster, with `--pause` seconds of a test in between. Every start must succeed. `--processes` measures mode "process", too.
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
import json, time
import pytest
from barnabas.testing.fixtures import KafkaSession, Wanted

class Config:
    def getoption(self, name): return None
    def getini(self, name): return [] if name == "kafka_config" else ""

session = KafkaSession(Config())
wanted = Wanted({brokers}, {{}}, {{}}, "cluster")
starts, ends = [], []
for number in range({count} + 1):
    time.sleep({pause})
    began = time.perf_counter()
    kafka = session.take(wanted)
    served = time.perf_counter()
    kafka.wait(kafka.core().leaked_clients(0.25, set()))
    kafka.stop()
    if number:  # the first one imports
        starts.append(served - began)
        ends.append(time.perf_counter() - served)
session.close()
print(json.dumps([starts, ends]))
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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    result: object = json.loads(done.stdout.splitlines()[-1])
    return result


def shown(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"median {statistics.median(ordered) * 1e3:.1f}, p99 {p99 * 1e3:.1f}, most {ordered[-1] * 1e3:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--fresh", type=int, default=1000)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of a test between two fresh clusters")
    parser.add_argument("--brokers", default="1,3")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--processes", action="store_true")
    arguments = parser.parse_args()
    imports = [run(IMPORT) for _ in range(arguments.starts)]
    print(f"import of the plugin: {shown([float(str(each)) for each in imports])}")
    for brokers in map(int, arguments.brokers.split(",")):
        for mode in ("thread", "process") if arguments.processes else ("thread",):
            took = []
            for _ in range(arguments.starts):
                answer = run(START.format(brokers=brokers, mode=mode))
                assert isinstance(answer, list)
                took.append(answer)
            print(f"start of {brokers} ({mode}): {shown([each[0] for each in took])}")
            print(f"  CPU of the starting process: {shown([each[1] for each in took])}")
        answer = run(FRESH.format(brokers=brokers, count=arguments.fresh, pause=arguments.pause))
        assert isinstance(answer, list)
        print(f"fresh cluster of {brokers}, {arguments.fresh} times: {shown(answer[0])}; end: {shown(answer[1])}")
    if arguments.workers:
        print(f"{arguments.workers} workers of xdist: {workers_mib(arguments.workers):.0f} MiB together (PSS)")


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
    main()
    print(f"({time.monotonic() - began:.0f} s)")
