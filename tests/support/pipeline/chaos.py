"""The harness of kills: a driver process that runs queries, the points where it is held, and the book of what came out.

Each query copies numbered records from one topic to a topic of its own. A life: the driver starts, whatever it was
killed in is completed, and the outputs are read by librdkafka, read_committed, to the last record that was fed (no
earlier life may have left a record out or a second one); then points are armed, more is fed, and when every query is at
its point the driver is killed. So one session costs one start and gives a kill for each of its queries.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset

from barnabas.client import Admin
from tests.support.pipeline.chaos_topics import PARTITIONS, Feed, Output
from tests.support.pipeline.spark_cluster import JAVA_OPTIONS
from tests.support.processes.cluster import Cluster, KafkaNode
from tests.support.processes.copying import end_offset
from tests.support.processes.process_tree import alive, descendants, kill

ROOT = Path(__file__).parents[3]
INPUT = "input"
RECORDS = 200  # of a batch
RESULTS = "BARNABAS_CHAOS_RESULTS"  # names a file for the rows of the table, one JSON object a line
SETTINGS = {
    # small batches show a task in the middle of its rows
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
    "spark.sql.shuffle.partitions": "2",
}
UP_SECONDS_MAX = 180.0  # a session on a busy machine
DONE_SECONDS_MAX = 400.0  # far above what it takes, on a busy machine too


@dataclass(frozen=True)
class Query:
    """One streaming query: from which format to which, with which options; `output` is where the result is read."""

    name: str
    source: str
    source_options: dict[str, str]
    sink: str
    sink_options: dict[str, str]
    checkpoint: str
    output: str
    through_python: bool = False
    files: str = ""  # the folder of Parquet files that agree with the output
    later: bool = False  # started by a word only


class Points:
    """The files by which points are armed and released; see `chaos_points`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def arm(self, query: str, point: str, action: str = "hold", *, after: int = 0) -> None:
        """The next process that gets there, after so many times, is held or dies."""
        for state in ("at", "released"):
            (self.folder / state / query / point).unlink(missing_ok=True)
        path = self.folder / "armed" / query / point
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{point}")
        part.write_text(json.dumps({"action": action, "after": after}))
        part.rename(path)

    def disarm(self) -> None:
        """Disarms all points."""
        for path in (self.folder / "armed").glob("*/*"):
            path.unlink(missing_ok=True)

    def at(self, query: str, point: str) -> int | None:
        """Id of the process that is there, or was when it died; None before."""
        try:
            return int(json.loads((self.folder / "at" / query / point).read_text())["pid"])
        except FileNotFoundError:
            return None

    def release(self, query: str, point: str) -> None:
        """Releases the process that is held."""
        path = self.folder / "released" / query / point
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def environment(points: Points) -> dict[str, str]:
    """Of a driver, its Python processes and those of executors: where the points are, and what all of them import."""
    paths = [Path(__file__).with_name("preloaded"), ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "CHAOS_DIR": str(points.folder),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONUNBUFFERED": "1",
    }


@dataclass
class Plan:
    """What a driver runs."""

    queries: list[Query]
    jars: list[str]
    master: str = "local[8,4]"  # a task may fail three times; held ones must leave room for others
    settings: dict[str, str] = field(default_factory=dict)


class Driver:
    """One driver process with all its descendants.

    Attributes:
        said: the lines that it printed, in order.
    """

    def __init__(self, plan: Plan, folder: Path, points: Points, name: str = "driver") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.json"
        path.write_text(json.dumps({**asdict(plan)}))
        self.said: list[dict[str, Any]] = []
        self.errors = folder / f"{name}.stderr"
        self.zombies: list[int] = []
        self._failures_seen = 0
        with self.errors.open("a") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.pipeline.chaos_driver", str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment(points),
                start_new_session=True,
            )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.said.append(json.loads(line))

    def tell(self, word: str) -> None:
        """`stop`, or the name of a query to be started again."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def failures(self, query: str | None = None) -> list[str]:
        """Errors of queries that ended by themselves."""
        return [said["error"] for said in self.said if "failed" in said and query in (None, said["failed"])]

    def new_failures(self) -> list[dict[str, Any]]:
        """Failures since the last call."""
        failed = [said for said in self.said if "failed" in said]
        new, self._failures_seen = failed[self._failures_seen :], len(failed)
        return new

    def is_up(self) -> bool:
        return any("up" in said for said in self.said)

    def wait_up(self) -> None:
        self.wait_until(self.is_up, "the session is up", UP_SECONDS_MAX)

    def wait_until(self, reached: Callable[[], bool], what: str, seconds: float) -> None:
        """Asks until the condition holds; fails if the driver ends before."""
        deadline = time.monotonic() + seconds
        while not reached():
            assert self.process.poll() is None, f"the driver ended, not yet: {what}\n{self.log()}"
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{self.said[-5:]}\n{self.log()}"
            time.sleep(0.02)

    def kill(self, *, sparing: Iterable[int] = ()) -> None:
        """SIGKILL to the driver's group, PySpark's daemons and the workers, but for those that are to be zombies."""
        self.zombies = list(sparing)
        for pid in descendants(self.process.pid):
            if pid not in self.zombies:
                kill(pid)
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(30)
        self._close()

    def await_zombies(self, seconds: float) -> None:
        """Waits until the released processes have ended."""
        deadline = time.monotonic() + seconds
        while any(alive(pid) for pid in self.zombies) and time.monotonic() < deadline:
            time.sleep(0.05)

    def end_zombies(self) -> None:
        """SIGKILL to the workers that have outlived it."""
        for pid in self.zombies:
            kill(pid)
        self.zombies = []

    def stop(self) -> None:
        """Ends every query in order, and the session."""
        self.tell("stop")
        try:
            self.process.wait(120)
        finally:
            self.kill()

    def log(self) -> str:
        return self.errors.read_text()[-6000:]

    def _close(self) -> None:
        self._thread.join(30)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass


def open_transactions(bootstrap: str, sink_id: str) -> list[str]:
    """Transactional ids of a sink that have an open transaction."""

    async def ask() -> list[str]:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            found = await admin.list_transactions(states=["Ongoing", "PrepareCommit", "PrepareAbort"])
        return sorted(t.transactional_id for t in found if t.transactional_id.startswith(f"{sink_id}."))

    return asyncio.run(ask())


@dataclass(frozen=True)
class Row:
    """The result of one query: a row of the table in docs/pipeline.md."""

    point: str
    broker: str
    kills: int
    fed: int
    read: int
    repeated: int
    missing: int

    @property
    def verdict(self) -> str:
        return "exactly once" if not self.repeated and not self.missing else "NOT exactly once"


class Run:
    """Queries over several driver processes, their common input and their outputs.

    Attributes:
        kills: by query, how often something was killed while it was at its point.
        revived: by query, how often it failed by itself and was started again in the same driver.
    """

    def __init__(
        self, cluster: Cluster, folder: Path, queries: Sequence[Query], jars: Sequence[str] = (), **settings: str
    ) -> None:
        self.cluster = cluster
        self.folder = folder
        self.plan = Plan(list(queries), list(jars), settings={**SETTINGS, **settings})
        self.points = Points(folder / "points")
        self.broker = "Kafka" if any(isinstance(node, KafkaNode) for node in cluster.nodes.values()) else "Barnabas"
        self.kills: Counter[str] = Counter()
        self.revived: Counter[str] = Counter()
        self.outputs: dict[str, Output] = {}
        self.lives = 0
        self.killed: list[Driver] = []
        for topic in dict.fromkeys([INPUT, *(query.output for query in queries)]):
            cluster.create_topic(topic, PARTITIONS, replication_factor=min(3, len(cluster.nodes)))
        self.feed = Feed(cluster.bootstrap, INPUT)
        for query in queries:
            if not query.later:
                self.outputs[query.name] = Output(cluster.bootstrap, query.output)
        self.driver: Driver | None = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for driver in self.killed:
            driver.end_zombies()
        if self.driver is not None:
            self.driver.kill()
        for output in self.outputs.values():
            output.close()

    def start(self) -> Driver:
        """Starts the next driver."""
        self.lives += 1
        self.note("starts")
        self.driver = Driver(self.plan, self.folder / "lives", self.points)
        return self.driver

    def settle(self, *, revive: Sequence[str] = (), seconds: float = DONE_SECONDS_MAX) -> None:
        """Waits until every record fed is in every output: once, or this fails.

        Args:
            revive: queries that may fail by themselves, and are started again.
        """
        began, fed = time.monotonic(), self.feed.fed
        driver = self.driver
        while lagging := [name for name, output in self.outputs.items() if output.missing(fed)]:
            if driver is not None:
                self.revive(driver, revive)
            if time.monotonic() > began + seconds:
                raise AssertionError(f"not within {seconds} s: {self.story(lagging)}\n{driver.log() if driver else ''}")
            for name in lagging:
                self.outputs[name].read()
        for output in self.outputs.values():
            output.read()
        wrong = [name for name, output in self.outputs.items() if output.repeated()]
        assert not wrong, self.story(wrong)
        self.note(f"all {fed} are there, once")
        self.record()

    def revive(self, driver: Driver, names: Sequence[str]) -> None:
        """Restarts those of these queries that failed; no other may have failed."""
        assert driver.process.poll() is None, f"the driver ended:\n{driver.log()}"
        for failure in driver.new_failures():
            assert failure["failed"] in names, f"{failure['failed']} failed: {failure['error']}"
            self.note(f"{failure['failed']} is started again: {failure['error'].splitlines()[0][:200]}")
            self.revived[failure["failed"]] += 1
            driver.tell(failure["failed"])

    def check_files(self) -> None:
        """Where a query writes files, too, they hold each record fed, once."""
        for query in self.plan.queries:
            if query.files:
                values = pyarrow.dataset.dataset(query.files, format="parquet").to_table()["value"].to_pylist()
                found = Counter(int(value) for value in values)
                assert found == Counter(range(self.feed.fed)), f"{query.name}: the files hold {len(values)} rows"

    def note(self, what: str) -> None:
        """A line of the run's log."""
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} life {self.lives}: {what}\n")

    def story(self, names: Iterable[str]) -> str:
        """The progress of these queries."""
        rows = [self.row(name) for name in names]
        return "; ".join(
            f"{r.point}: {r.fed} fed, {r.read} read, {r.missing} missing, {r.repeated} repeated" for r in rows
        )

    def hold(self, orders: dict[str, str], *, after: dict[str, int] | None = None, records: int = RECORDS) -> None:
        """Feeds a batch and waits until each query (key) has a process at its point (value)."""
        for query, point in orders.items():
            self.points.arm(query, point, after=(after or {}).get(query, 0))
        self.feed.more(records)
        self.await_held(orders)

    def await_held(self, orders: dict[str, str]) -> None:
        """Waits until each query (key) has a process at its point (value)."""
        driver = self.driver
        assert driver is not None

        def where() -> list[str]:
            return [f"{query} at {point}" for query, point in orders.items() if self.points.at(query, point) is None]

        deadline = time.monotonic() + DONE_SECONDS_MAX
        while missing := where():
            self.revive(driver, ())
            assert time.monotonic() < deadline, f"never came: {missing}\n{driver.said[-8:]}\n{driver.log()}"
            time.sleep(0.02)
        self.note(f"{len(orders)} are at their points")

    def kill(self, queries: Iterable[str], *, zombies: dict[str, str] | None = None) -> None:
        """Kills the driver, with each of these queries at its point.

        Args:
            zombies: queries whose held process (by the point it is at) outlives the driver, until `wake_zombies`.
        """
        driver = self.driver
        assert driver is not None
        spared = [self.points.at(query, point) for query, point in (zombies or {}).items()]
        driver.kill(sparing=[pid for pid in spared if pid is not None])
        assert all(alive(pid) for pid in driver.zombies)
        self.points.disarm()
        self.kills.update(list(queries))
        self.driver = None
        self.killed.append(driver)

    def wake_zombies(self, zombies: dict[str, str], seconds: float = 20) -> None:
        """Releases the held processes of the killed driver, and waits until they have ended."""
        for query, point in zombies.items():
            self.points.release(query, point)
        self.killed[-1].await_zombies(seconds)
        left = [pid for pid in self.killed[-1].zombies if alive(pid)]
        self.note(f"{len(zombies) - len(left)} zombies have come to their end, {len(left)} have not")

    def finish(self) -> None:
        """Ends the queries in order; then nothing may be left open."""
        driver = self.driver
        assert driver is not None
        driver.stop()
        self.driver = None

    def pinned(self) -> list[str]:
        """Partitions of the outputs whose readers are held up by an open transaction."""
        found = []
        for output in self.outputs.values():
            for partition in range(PARTITIONS):
                stable, end = (end_offset(self.cluster, output.topic, partition, level) for level in (1, 0))
                if stable != end:
                    found.append(f"{output.topic}-{partition}: stable to {stable} of {end}")
        return found

    def row(self, name: str) -> Row:
        """The row of a query."""
        output = self.outputs[name]
        read = output.count
        return Row(
            name, self.broker, self.kills[name], self.feed.fed, read, output.repeated(), output.missing(self.feed.fed)
        )

    def judge(self) -> None:
        """The verdict at the end: each record once, in topics and files, and nothing left open."""
        for output in self.outputs.values():
            output.read_to([end_offset(self.cluster, output.topic, partition, 1) for partition in range(PARTITIONS)])
        self.record()
        wrong = [name for name, output in self.outputs.items() if output.repeated() or output.missing(self.feed.fed)]
        assert not wrong, self.story(wrong)
        self.check_files()
        assert not self.pinned(), self.pinned()
        left = [name for query in self.plan.queries for name in open_transactions(self.cluster.bootstrap, query.name)]
        assert not left, left

    def record(self) -> None:
        """Adds the rows of all queries, as they are now, to the file that RESULTS names, if it does."""
        for name in self.outputs:
            row = self.row(name)
            line = json.dumps({**asdict(row), "verdict": row.verdict, "date": time.strftime("%Y-%m-%d %H:%M")})
            if RESULTS in os.environ:
                with Path(os.environ[RESULTS]).open("a") as file:
                    file.write(line + "\n")
