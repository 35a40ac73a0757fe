#!/usr/bin/env python3
"""What huge requests and attacks cost others: the catalogue of tests/support/processes/huge against one broker, then each attack of
tests/support/processes/attacked.py against a broker of its own.

usage: stalls.py [--partitions 10000] [--topics 10000] [--only TEXT] [--stacks MS] [--out results.json]

While each request is served, another client produces with acks=all at depth 1. Printed for each: that client's longest pause and the
99.9th percentile of its waits (less than 1,000 answers: the longest), the longest turn
of the broker's loop (CPU time), how much the broker's resident memory grew, how long the answer took, its size and its error codes. With --stacks it also prints where
the CPU time of each turn above MS milliseconds went; the samples make the turns a little longer.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tests.support.processes.attacked import ATTACKS, attack_each  # noqa: E402  # after the path
from tests.support.processes.huge import CATALOGUE  # noqa: E402  # as above
from tests.support.processes.huge.request import BrokerObjects  # noqa: E402  # as above
from tests.support.processes.stalling import Stalled, send_each  # noqa: E402  # as above
from tests.support.processes.watched_broker import STACKS_VARIABLE  # noqa: E402  # as above


def main() -> None:
    """Prints one line a request and the worst at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--stacks", type=float, default=0.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    world = BrokerObjects(partitions=arguments.partitions, topics=arguments.topics)
    chosen = [huge for huge in CATALOGUE if arguments.only in huge.name]
    found: list[Stalled] = []
    os.environ[STACKS_VARIABLE] = str(arguments.stacks)
    with tempfile.TemporaryDirectory() as folder:
        print(
            f"{'request':52s} {'pause ms':>9s} {'p99.9 ms':>8s} {'turn ms':>8s} {'RSS MB':>7s} {'answer s':>8s} {'kB':>7s}  codes"
        )
        for stalled in send_each(Path(folder), world, chosen) if chosen else ():
            found.append(stalled)
            wrong = "" if stalled.as_expected else f"  NOT {sorted(stalled.huge.codes)}"
            print(
                f"{stalled.huge.name:52s} {stalled.pause_s * 1000:9.1f} {stalled.p999_s * 1000:8.1f} {stalled.turn_s * 1000:8.1f} "
                f"{stalled.growth_bytes / 2**20:7.1f} {stalled.answer_s:8.2f} {stalled.answer_bytes / 1000:7.0f}  "
                f"{sorted(stalled.codes)}{wrong}",
                flush=True,
            )
            if stalled.stacks:
                print(stalled.stacks, end="", flush=True)
    if found:
        print(f"longest pause {max(each.pause_s for each in found) * 1000:.1f} ms, {len(found)} requests")
    attacked = attacks(arguments.only)
    if arguments.out is not None:
        rows: list[dict[str, Any]] = [
            {
                "request": each.huge.name,
                "pause_ms": each.pause_s * 1000,
                "p999_ms": each.p999_s * 1000,
                "turn_ms": each.turn_s * 1000,
                "rss_mb": each.growth_bytes / 2**20,
            }
            for each in found
        ]
        rows += attacked
        arguments.out.write_text(json.dumps({"at": time.time(), "cpus": os.cpu_count(), "rows": rows}, indent=1))


def attacks(only: str) -> list[dict[str, Any]]:
    """Prints one line for each attack; returns the rows."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for each in attack_each(Path(folder), [one for one in ATTACKS if only in one.name]):
            pause_ms, p999_ms, turn_ms = each.pause_s * 1000, each.p999_s * 1000, each.turn_s * 1000
            rss_mb = each.growth_bytes / 2**20
            print(f"{each.attack.name:52s} {pause_ms:9.1f} {p999_ms:8.1f} {turn_ms:8.1f} {rss_mb:7.1f}", flush=True)
            row = {"pause_ms": pause_ms, "p999_ms": p999_ms, "turn_ms": turn_ms, "rss_mb": rss_mb}
            rows.append({"request": each.attack.name, **row})
    return rows


if __name__ == "__main__":
    main()
