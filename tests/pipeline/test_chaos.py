"""The exactly-once sink through kills at every point of a batch, and the harness on a sink that is not exactly once.

A query has the name of the point where it is when its driver is killed; one driver runs one query for each point.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.pipeline.conftest import Connector
from tests.support.oracle.real_kafka import needs_java
from tests.support.pipeline.chaos import (
    DONE_SECONDS_MAX,
    INPUT,
    RECORDS,
    Driver,
    Query,
    Run,
    environment,
    open_transactions,
)
from tests.support.pipeline.chaos_topics import PARTITIONS
from tests.support.pipeline.spark_cluster import FOR_DRIVER, SparkCluster
from tests.support.processes.cluster import GROUP, Cluster, Node, barnabas_nodes, kafka_nodes
from tests.support.processes.copying import end_offset
from tests.support.processes.process_tree import alive

if TYPE_CHECKING:
    from tests.support.pipeline.lake import Lake

pytestmark = pytest.mark.chaos

KILLS = int(os.environ.get("BARNABAS_CHAOS_KILLS", "10"))  # at each point
CLEANUP_S = 1
CLEANUP = f"transaction.abort.timed.out.transaction.cleanup.interval.ms={CLEANUP_S * 1000}"
SETTINGS = (
    "default.replication.factor=3",
    "min.insync.replicas=2",
    "group.initial.rebalance.delay.ms=0",
    "offsets.topic.num.partitions=8",
    "transaction.state.log.num.partitions=8",
    CLEANUP,
)

# query: (its point, as in chaos_points, and how often that is passed by the same process before)
DRIVER_POINTS = {
    "driver-mid-batch": ("task writes", 2),
    "task-prepared": ("task is prepared", 0),
    "before-decision": ("before the decision", 0),
    "after-decision": ("after the decision", 0),
    "mid-phase-two": ("phase two", 1),
    "before-sparks-log": ("before Spark's log", 0),
    "files-before-decision": ("before the decision", 0),
    "files-mid-phase-two": ("phase two", 2),  # of two transactions and two files
    "frames-before-decision": ("before the decision", 0),
    "frames-after-decision": ("after the decision", 0),
    "frames-mid-phase-two": ("phase two", 3),  # of four transactions and four files
    "tables-before-decision": ("before the decision", 0),
    "tables-after-decision": ("after the decision", 0),
    "tables-mid-phase-two": ("phase two", 2),  # of two parts each of a topic, of Delta's and of Iceberg's table
}
ZOMBIE_POINTS = {
    "zombie-task-begins": ("task begins", 0),
    "zombie-task-writes": ("task writes", 2),
    "zombie-driver-decides": ("before the decision", 0),
}


@pytest.fixture(params=["barnabas", "kafka"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Three brokers of Barnabas, or one real Kafka."""
    (tmp_path / "cluster").mkdir()
    nodes: Sequence[Node]
    if request.param == "kafka":
        needs_java()
        nodes = kafka_nodes(tmp_path / "cluster", CLEANUP, count=1)
    else:
        nodes = barnabas_nodes(tmp_path / "cluster", *SETTINGS)
    with Cluster(nodes) as running:
        yield running


def source(cluster: Cluster) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "subscribe": INPUT,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(RECORDS),
        "minPartitions": "1",  # a task for each partition
    }


def copy(cluster: Cluster, folder: Path, name: str, *, files: bool = False, **options: str) -> Query:
    """A query by Spark's own source, which takes the fewest processes, and our sink; its sink id is its name.

    "frames-…" writes two frames to topic and files by `write_batch`.
    """
    sink = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": f"out-{name}", "sink.id": name, **options}
    place = str(folder / "files" / name) if files else ""
    if files:
        sink["files.path"] = place
    checkpoint = str(folder / "checkpoints" / name)
    kind = "write_batch" if name.startswith("frames") else "chaos"
    return Query(name, "kafka", source(cluster), kind, sink, checkpoint, f"out-{name}", files=place)


def tables(folder: Path) -> list[Lake]:
    from tests.support.pipeline.lake import Lake

    folder.mkdir()
    columns = pa.schema({"key": pa.binary(), "value": pa.binary()})
    return [Lake(folder, kind, columns) for kind in ("delta", "iceberg")]


def options_of(lakes: Sequence[Lake]) -> dict[str, str]:
    return {name: value for lake in lakes for name, value in lake.options.items()}


@pytest.fixture
def jars(connector: Connector) -> list[str]:
    if connector.missing:
        pytest.skip(f"Spark's own connector cannot be had: {connector.missing}")
    return [str(jar) for jar in connector.jars]


@pytest.mark.parametrize("cluster", ["barnabas"], indirect=True)
def test_the_harness_sees_what_sparks_own_sink_repeats(cluster: Cluster, jars: list[str], tmp_path: Path) -> None:
    name = "official"
    sink = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": "out"}
    query = Query(name, "kafka", source(cluster), "kafka", sink, str(tmp_path / "c"), "out", True)
    with Run(cluster, tmp_path, [query], jars) as run:
        output = run.outputs[name]
        run.feed.more(RECORDS)
        for life in range(3):
            driver = run.start()
            driver.wait_up()
            driver.wait_until(lambda: output.has_all(run.feed.fed), "everything is copied", 120)
            assert output.repeated() >= 100 * life, "what tasks had written before a kill is written again"
            if life < 2:
                run.hold({name: "map"}, after={name: 3})
                more = output.count + 100
                driver.wait_until(partial(output.has, more), "another task has written", 60)
                run.kill([name])
        run.finish()
        assert not run.pinned()
        run.record()


def test_driver_is_killed_at_each_point(cluster: Cluster, jars: list[str], tmp_path: Path) -> None:
    """All that it consists of, but for the zombies: they wake when its successor has decided the same batch and not committed it."""
    points = {name: point for name, (point, _) in {**DRIVER_POINTS, **ZOMBIE_POINTS}.items()}
    after = {name: passed for name, (_, passed) in {**DRIVER_POINTS, **ZOMBIE_POINTS}.items()}
    zombies = {name: points[name] for name in ZOMBIE_POINTS}
    pytest.importorskip("deltalake", reason="the extra `tables` is not installed")
    lakes = {name: tables(tmp_path / name) for name in points if name.startswith("tables")}
    queries = [
        copy(cluster, tmp_path, name, files=name.startswith(("files", "frames")), **options_of(lakes.get(name, ())))
        for name in points
    ]
    with Run(cluster, tmp_path, queries, jars) as run:
        run.feed.more(RECORDS)
        run.start()
        run.settle()
        for _ in range(KILLS):
            run.hold(points, after=after)
            run.kill(points, zombies=zombies)
            run.start()
            run.hold(dict.fromkeys(zombies, "after the decision"), records=0)
            run.wake_zombies(zombies)
            for name in zombies:
                run.points.release(name, "after the decision")
            run.settle()
        run.feed.more(RECORDS)
        run.settle()
        run.finish()
        run.judge()
        for name, pair in lakes.items():
            for lake in pair:
                assert sorted(map(int, lake.column("value"))) == list(range(run.feed.fed)), f"{name}: {lake.kind}"


ON_BARNABAS = pytest.mark.parametrize("cluster", ["barnabas"], indirect=True)

WORKER_POINTS = {
    "worker-mid-write": ("task writes", 2),
    "worker-prepared": ("task is prepared", 0),
    "sink-process-before-decision": ("before the decision", 0),
    "sink-process-after-decision": ("after the decision", 0),
    "sink-process-mid-phase-two": ("phase two", 1),
    "start-repeats-phase-two": ("phase two is repeated", 1),
}


@ON_BARNABAS
def test_python_workers_are_killed(cluster: Cluster, jars: list[str], tmp_path: Path) -> None:
    """Those of tasks, which Spark repeats, and the one that commits, whose query fails and is started again; and twins."""
    revive = [name for name in WORKER_POINTS if name.startswith(("sink-process", "start"))]
    names = [*WORKER_POINTS, "twin"]
    with Run(cluster, tmp_path, [copy(cluster, tmp_path, name, files=name == "twin") for name in names], jars) as run:
        run.start()
        run.feed.more(RECORDS)
        run.settle()
        run.points.arm("twin", "twin")  # from here on every task has one
        for _ in range(KILLS):
            for name, (point, after) in WORKER_POINTS.items():
                run.points.arm(name, point, "die", after=after)
            run.feed.more(RECORDS)
            run.settle(revive=revive)
            for name, (point, _) in WORKER_POINTS.items():
                assert run.points.at(name, point) is not None, f"{name}: nobody came to {point!r}"
            run.kills.update(names)
        run.points.disarm()
        run.feed.more(RECORDS)
        run.settle()
        run.finish()
        run.judge()
        written = sum(end_offset(cluster, "out-twin", partition, 0) for partition in range(PARTITIONS))
        assert written >= run.feed.fed + KILLS * RECORDS, "there were no twins"


@ON_BARNABAS
def test_brokers_are_killed(cluster: Cluster, jars: list[str], tmp_path: Path) -> None:
    """Each while every query is held at its point, so that what it does next meets the loss."""

    def leader(name: str) -> int:
        return cluster.leader(f"out-{name}", 0)

    def of_driver(name: str) -> int:
        return cluster.coordinator(f"{name}.driver")

    def of_task(name: str) -> int:
        return cluster.coordinator(open_transactions(cluster.bootstrap, name)[0])

    def of_group(name: str) -> int:
        return cluster.coordinator(f"eos-{name}", GROUP)

    roles = {
        "broker-leads-output": ("task writes", 2, leader),
        "broker-coordinates-driver": ("before the decision", 0, of_driver),
        "broker-coordinates-tasks": (
            "phase two",
            0,
            of_task,
        ),  # the records of a feed may come in two batches of one task each
        "broker-coordinates-group": ("before the decision", 0, of_group),
    }
    with Run(cluster, tmp_path, [copy(cluster, tmp_path, name) for name in roles], jars) as run:
        run.start()
        run.feed.more(RECORDS)
        run.settle()
        turn = 0
        while min(run.kills[name] for name in roles) < KILLS:
            run.hold(
                {name: point for name, (point, _, _) in roles.items()}, after={n: a for n, (_, a, _) in roles.items()}
            )
            nodes = {name: find(name) for name, (_, _, find) in roles.items()}
            victim = nodes[min(roles, key=lambda name: run.kills[name])]
            turn += 1
            run.note(f"broker {victim} is killed: {nodes}")
            cluster.kill(victim)
            for name, (point, _, _) in roles.items():
                run.points.release(name, point)
            run.settle()
            cluster.start_node(victim)
            cluster.wait_in_sync(INPUT, "__transaction_state", "__consumer_offsets", *(f"out-{name}" for name in roles))
            run.kills.update(name for name, node in nodes.items() if node == victim)
        run.finish()
        run.judge()


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s",
}
# query: where the first of two copies stands while Spark starts the second one and takes that
SLOW_POINTS = {
    "slow-task-begins": "task begins",
    "slow-task-writes": "task writes",
    "slow-task-prepared": "task is prepared",
}


@ON_BARNABAS
def test_spark_itself_starts_twins(cluster: Cluster, jars: list[str], tmp_path: Path) -> None:
    """By speculation, on a cluster of two workers: a task stands still, its twin is what counts, and Spark kills the slow one."""
    queries = [copy(cluster, tmp_path, name) for name in SLOW_POINTS]
    with (
        Run(cluster, tmp_path, queries, jars, **SPECULATION, **FOR_DRIVER) as run,
        SparkCluster(tmp_path / "spark", environment(run.points)) as spark,
    ):
        run.plan.master = spark.url
        run.start()
        run.feed.more(RECORDS)
        run.settle()
        for _ in range(KILLS):
            run.hold(SLOW_POINTS)
            slow = {name: run.points.at(name, point) for name, point in SLOW_POINTS.items()}
            run.settle()  # though none of them goes on
            assert run.driver is not None
            run.driver.wait_until(partial(all_ended, slow.values()), "Spark has killed the slow ones", 60)
            run.kills.update(list(SLOW_POINTS))
        run.feed.more(RECORDS)
        run.settle()
        run.finish()
        run.judge()
    assert not any(run.revived.values()), "a query has failed on the way"


def all_ended(pids: Iterable[int | None]) -> bool:
    return not any(alive(pid) for pid in pids if pid is not None)


TIMEOUT_S = 30  # longer than a batch takes on a busy machine


def test_driver_is_down_for_longer_than_the_transaction_timeout(
    cluster: Cluster, jars: list[str], tmp_path: Path
) -> None:
    """With two-phase commit it makes no difference; without it the query stops, says what is to be done, and writes nothing."""
    names = [f"timeout-{number}" for number in range(KILLS)]
    options: dict[str, Any] = {"transaction.timeout.ms": str(TIMEOUT_S * 1000)}
    with Run(cluster, tmp_path, [copy(cluster, tmp_path, name, **options) for name in names], jars) as run:
        run.start()
        run.feed.more(RECORDS)
        run.settle()
        run.hold(dict.fromkeys(names, "phase two"), after=dict.fromkeys(names, 1))
        run.kill(names)
        time.sleep(TIMEOUT_S + 2 * CLEANUP_S)
        driver = run.start()
        if run.broker == "Barnabas":
            run.settle()
            run.feed.more(RECORDS)
            run.settle()
            run.finish()
            run.judge()
            return
        told: dict[str, str] = {}

        def all_stopped() -> bool:
            told.update({said["failed"]: said["error"] for said in driver.new_failures()})
            return set(told) == set(names)

        driver.wait_until(all_stopped, "each query has stopped", DONE_SECONDS_MAX)
        for name, error in told.items():
            assert "HalfCommitted" in error, error
            assert "sink.forget" in error, error
            output = run.outputs[name]
            output.read()
            assert (output.repeated(), output.missing(run.feed.fed)) == (0, RECORDS // 2), "one of two parts is visible"
        run.finish()
        run.record()
        assert not run.pinned()


@ON_BARNABAS
def test_two_drivers_on_one_checkpoint(cluster: Cluster, jars: list[str], tmp_path: Path) -> None:
    """Both run the same queries; whichever is put out is started again, until each query was put out often enough."""
    names = ["two-drivers-a", "two-drivers-b"]
    with Run(cluster, tmp_path, [copy(cluster, tmp_path, name) for name in names], jars) as run:
        drivers = [run.start(), Driver(run.plan, tmp_path / "twin", run.points)]
        run.driver = None
        try:
            for driver in drivers:
                driver.wait_up()
            deadline = time.monotonic() + 60 * KILLS
            while min(run.kills[name] for name in names) < KILLS:
                run.feed.more(RECORDS)
                assert time.monotonic() < deadline, run.kills
                while any(output.missing(run.feed.fed) for output in run.outputs.values()):
                    assert time.monotonic() < deadline, run.story(names)
                    for output in run.outputs.values():
                        output.read()
                    for driver in drivers:
                        failed = driver.new_failures()
                        run.kills.update(said["failed"] for said in failed)
                        for said in failed:
                            run.note(f"{said['failed']}: {said['error'].splitlines()[0][:200]}")
                            driver.tell(said["failed"])
                assert not any(output.repeated() for output in run.outputs.values()), run.story(names)
            drivers[1].kill()
            run.driver = drivers[0]
            run.feed.more(RECORDS)
            run.settle(revive=names)
            run.finish()
        finally:
            for driver in drivers:
                driver.kill()
        run.judge()


def test_a_wiped_checkpoint_is_refused(cluster: Cluster, jars: list[str], tmp_path: Path) -> None:
    """A query that has lost its checkpoint would write everything again."""
    name = "wiped"
    first = copy(cluster, tmp_path, name)
    others = [
        dataclasses.replace(first, name=f"again-{number}", checkpoint=f"{first.checkpoint}-{number}", later=True)
        for number in range(KILLS)
    ]
    with Run(cluster, tmp_path, [first, *others], jars) as run:
        driver = run.start()
        run.feed.more(RECORDS)
        run.settle()
        for other in others:
            driver.tell(other.name)
            driver.wait_until(partial(has_failed, driver, other.name), f"{other.name} is refused", DONE_SECONDS_MAX)
            (error,) = driver.failures(other.name)
            assert "sink.id" in error, error
            assert "belongs to query" in error, error
            run.kills[name] += 1
        driver.new_failures()
        run.feed.more(RECORDS)
        run.settle()
        run.finish()
        run.judge()


def has_failed(driver: Driver, name: str) -> bool:
    return bool(driver.failures(name))
