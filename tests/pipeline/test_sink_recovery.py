"""A driver is killed after its decision, within phase two, with a task prepared: its successor completes all of it, once.

The short form of the chaos matrix (`test_chaos`), with our source as well as our sink: two Spark sessions.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

from tests.support.pipeline.chaos import INPUT, RECORDS, Query, Run
from tests.support.processes.cluster import Cluster

POINTS = {
    "task-prepared": ("task is prepared", 0),
    "mid-phase-two": ("phase two", 2),  # of two transactions and two files
}


def test_the_successor_of_a_killed_driver_completes_its_batch(cluster: Cluster, tmp_path: Path) -> None:
    at = {"kafka.bootstrap.servers": cluster.bootstrap}
    source = {**at, "subscribe": INPUT, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(RECORDS)}
    source["minPartitions"] = "1"  # a task for each partition

    def copy(name: str) -> Query:
        files = str(tmp_path / "files" / name)
        sink = {**at, "topic": name, "sink.id": name, "files.path": files}
        return Query(name, "barnabas", source, "chaos", sink, str(tmp_path / "checkpoints" / name), name, files=files)

    with Run(cluster, tmp_path, [copy(name) for name in POINTS]) as run:
        run.start()
        run.hold({name: point for name, (point, _) in POINTS.items()}, after={n: a for n, (_, a) in POINTS.items()})
        held_up = run.pinned()
        run.kill(POINTS)
        assert held_up, "nobody had prepared anything"
        run.feed.more(RECORDS)
        run.start()
        run.settle()
        run.finish()
        run.judge()
