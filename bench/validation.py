"""What the check of a produced batch costs: microseconds a batch, as a table for docs/benchmarks.md.

usage: validation.py [--rounds 9]

Each figure is the least of several rounds, for `check_leader_batch` or, where the batch is long, for its whole inspection.
Columns: record.validation=header and =full in plain Python, and =full with the loops that mypyc compiles (needs a C compiler; they
are built in a temporary directory).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
COUNTS = (1, 100, 10_000)
CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
NOW = 1_700_000_000_000


def least(work: Callable[[], object], times: int, rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(times):
            work()
        best = min(best, (time.perf_counter() - began) / times)
    return best * 1e6


def figures(rounds: int) -> dict[str, list[float]]:
    """By codec and count: bytes of the batch, µs under header and under full."""
    from barnabas.protocol.record_codec import NewRecord
    from barnabas.protocol.records import build_batch
    from barnabas.storage.inspection import Inspection
    from barnabas.storage.log_config import AppendOrigin, LogConfig
    from barnabas.storage.validation import LongBatch, check_leader_batch

    found = {}
    for codec, name in enumerate(CODECS):
        for count in COUNTS:
            rows = [
                NewRecord(b"key%05d" % (n % 1_000), (b"value %d of something" % n * 6)[:70], NOW + n // 7)
                for n in range(count)
            ]
            batch = build_batch(rows, compression=codec)
            line = [float(len(batch))]
            for mode in ("header", "full"):
                config = LogConfig(record_validation=mode)

                def check(config: LogConfig = config, batch: bytearray = batch) -> None:
                    try:
                        check_leader_batch(batch, config, AppendOrigin.CLIENT, NOW)
                    except LongBatch:
                        inspection = Inspection(batch, config, NOW)
                        inspection.run()
                        check_leader_batch(inspection, config, AppendOrigin.CLIENT, NOW)

                line.append(least(check, max(1, 20_000 // count), rounds))
            found[f"{count:,} {name}"] = line
    return found


def elsewhere(tree: Path, rounds: int) -> dict[str, list[float]]:
    command = [sys.executable, str(Path(__file__).resolve()), "--json", "--rounds", str(rounds)]
    done = subprocess.run(
        command, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, capture_output=True, check=True
    )
    result: dict[str, list[float]] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.json:
        print(json.dumps(figures(arguments.rounds)))
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        shutil.copytree(ROOT / "barnabas", tree / "barnabas", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("setup.py", "build_backend.py", "pyproject.toml"):
            shutil.copy(ROOT / name, tree / name)
        plain = elsewhere(tree, arguments.rounds)
        build = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", ".", "--build-temp", "build-temp"]
        subprocess.run(build, cwd=tree, check=True, stdout=subprocess.DEVNULL)
        compiled = elsewhere(tree, arguments.rounds)
    print("| records | bytes | header | full, plain Python | full, compiled |\n|---|---|---|---|---|")
    for name, (size, header, full) in plain.items():
        print(f"| {name} | {size:,.0f} | {header:,.1f} | {full:,.1f} | {compiled[name][2]:,.1f} |")


if __name__ == "__main__":
    main()
