"""The flights pipeline piece by piece on the shared session; all of it, with its kills, is `chaos`: it takes minutes.

Plain Python computes the expected results (`dataset.compute_expected`); the queries must produce the same values.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.support.clients.librdkafka import value_of

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

from pyspark.sql import functions as F

from barnabas.cli.local_cluster import LocalCluster
from examples.demo import environment, program
from examples.demo.flights import dataset as data
from examples.demo.flights import figures, job, queries, replay, run
from examples.demo.flights.driver import Driver
from examples.demo.flights.names import QUERIES, TOPIC_OF, folder_of
from examples.demo.flights.story import Story
from tests.support.flights import january
from tests.support.pipeline import topics
from tests.support.processes.cli import ForeignModules
from tests.support.processes.served import ServedBroker
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["january"]

EXAMPLES = Path(__file__).parents[2] / "examples" / "flights"
DEMO_SECONDS_MAX = 1_200  # on a machine that does much else
KILL_POINTS = 20
HOUR = "yyyy-MM-dd'T'HH:mm:ss'Z'"


def records(spark: SparkSession, events: list[data.Event]) -> DataFrame:
    """Events as the source gives records, as far as the queries look at them."""
    rows = [(event.key, event.value, offset) for offset, event in enumerate(events)]
    return spark.createDataFrame(rows, "key BINARY, value BINARY, offset BIGINT")


def canonical(rows: list[Any]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


def test_the_queries_come_to_what_plain_python_comes_to(spark: SparkSession, january: data.Dataset) -> None:
    events = [event for day in january.days for event in day.events]
    flights = queries.flights_of(records(spark, [e for e in events if e.topic == data.FLIGHTS]), "1 day")
    weather = queries.weather_of(records(spark, [e for e in events if e.topic == data.WEATHER]), "1 day")
    planes = queries.planes_of(records(spark, january.planes + january.planes[:10]))  # a topic not compacted yet
    airlines = queries.airlines_of(records(spark, january.airlines))
    expected = data.compute_expected(january)
    by_hour = [row.asDict() for row in queries.by_hour(flights, weather).collect()]
    assert canonical(by_hour) == canonical(list(expected.hours.values()))
    by_carrier = [row.asDict() for row in queries.by_carrier(flights, planes, airlines).collect()]
    assert canonical(by_carrier) == canonical(list(expected.carriers.values()))
    assert sum(row["flights"] for row in by_carrier) == len(january.flights) == 26_865


class Reporting:
    """A query that has reported this."""

    def __init__(self, *progress: dict[str, Any]) -> None:
        self.recentProgress = list(progress)


def progress(run: str, batch_id: int, watermark: str = "", **durations: int) -> dict[str, Any]:
    event_time = {"watermark": watermark} if durations else {}  # Spark knows none before the first batch of a run
    return {
        "runId": run,
        "batchId": batch_id,
        "timestamp": "2026-11-24T12:00:00.000Z",
        "numInputRows": 1,
        "stateOperators": [],
        "eventTime": event_time,
        "durationMs": {"triggerExecution": 9, **durations},
    }


def test_a_query_that_finds_nothing_new_says_so_once_in_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    reported: dict[str, tuple[str, int]] = {}

    def report(*reports: dict[str, Any]) -> str:
        return job._report_batches("by hour", cast("Any", Reporting(*reports)), reported)

    done = progress("1", 4, "2013-02-01", addBatch=5)
    assert report(done) == "2013-02-01"
    assert report(done, progress("1", 5)) == "2013-02-01"
    assert report(progress("2", 5)) == "", "the driver was killed after batch 4, and another one goes on"
    assert report(progress("2", 5), progress("2", 5)) == ""
    assert report(progress("2", 5), progress("2", 5, "2013-03-01", addBatch=5)) == "2013-03-01"
    told = [next(iter(json.loads(line))) for line in capsys.readouterr().out.splitlines()]
    assert told == ["batch", "idle", "batch"]


async def test_the_replay_closes_the_windows_again_and_again(
    broker: ServedBroker, january: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (data.FLIGHTS, data.WEATHER):
        topics.new_topic(broker.address, 1, name=name)
    monkeypatch.setattr(replay, "CLOSING_EVERY_S", 0.01)
    story = Story(("by hour",))
    short = dataclasses.replace(january, days=january.days[:1])
    replaying = asyncio.create_task(replay.replay_flights(broker.address, short, story, lambda number: None))
    await until(lambda: [each.day for each in story.transactions] >= ["2013-01-01", *["closing"] * 3])
    replaying.cancel()
    await asyncio.wait([replaying])
    assert all(each.committed for each in story.transactions)
    topics.delete_topics(broker.address, data.FLIGHTS, data.WEATHER)


def test_the_example_of_the_tutorial(
    spark: SparkSession, broker: ServedBroker, january: data.Dataset, tmp_path: Path
) -> None:
    """Two runs over three days: each hour that the watermark has passed comes out once, in the topic and in the files."""
    for name in ("flights", "delays"):
        topics.new_topic(broker.address, 2, name=name)
    subprocess.run([sys.executable, str(EXAMPLES / "replay.py"), broker.address, "3"], check=True, timeout=120)
    delays = _example("delays")
    for _ in range(2):
        assert delays.start(spark, broker.address, str(tmp_path), until_now=True).awaitTermination(DEMO_SECONDS_MAX)
    newest = max(row["time_hour"] for row in january.flights if row["time_hour"] < "2013-01-04")
    day_before = newest.replace("2013-01-03", "2013-01-02")  # the watermark: hours that end by then are over
    expected = Counter(
        (hour, origin, row["flights"], row["delay"])
        for (hour, origin), row in data.compute_expected(january).hours.items()
        if hour < day_before
    )
    files = spark.read.parquet(str(tmp_path / "parquet")).withColumn("hour", F.date_format("hour", HOUR)).collect()
    assert Counter((row.hour, row.origin, row.flights, row.delay) for row in files) == expected
    sent = [json.loads(value_of(message)) for message in topics.read_committed(broker.address, "delays", 2)]
    assert Counter((row["hour"][:19] + "Z", row["origin"], row["flights"], row["delay"]) for row in sent) == expected


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"flights_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.chaos
def test_the_demonstration(tmp_path: Path) -> None:
    """Four months through all three kills; its own checks decide, here it is only looked whether they were made."""
    page = tmp_path / "page.html"
    foreign = ForeignModules(tmp_path / "cwd")
    command = [*program("__main__"), "--spark", "--months", "4", "--report", str(page)]
    ran = subprocess.run(
        command,
        cwd=foreign.folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS_MAX,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert not foreign.imported()
    for what in ("a Python worker", "a broker", "the driver"):
        assert re.search(rf"killed: {what} +│ recovered after", ran.stdout), ran.stdout
    found = re.search(r"^const data = (\{.*\});$", page.read_text(), re.MULTILINE)
    assert found is not None
    assert all(check["holds"] for check in json.loads(found.group(1))["checks"])


class Counted(Story):
    """Counts what the drivers report of their queries."""

    events = 0

    def _on_progress(self) -> None:
        self.events += 1
        super()._on_progress()

    def has_told(self, events: int) -> bool:
        return self.events >= events


def is_next(driver: Driver, start: int, running: asyncio.Task[None]) -> bool:
    return driver.starts >= start or running.done()


@pytest.mark.chaos
async def test_the_driver_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    """It is killed after its first or second report, at once or a little later; at the end of the stream, too."""
    dataset, story = data.load(2), Counted(QUERIES)
    cluster = LocalCluster(tmp_path / "cluster", brokers=1)
    end = str(dataset.days[-1].day + run.CLOSED)
    driver = Driver([cluster.bootstrap, str(tmp_path), replay.WATERMARK, end], tmp_path / "spark.log", story, print)
    tasks: list[asyncio.Task[None]] = []

    def drive() -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(driver.run()))
        return tasks[-1]

    await cluster.start()
    try:
        await run._topics(cluster.bootstrap)
        await replay.send_tables(cluster.bootstrap, dataset)
        replaying = replay.replay_flights(cluster.bootstrap, dataset, story, lambda number: None)
        tasks.append(asyncio.create_task(replaying))
        running = drive()
        for point in range(KILL_POINTS):
            reported = asyncio.create_task(story.until(partial(story.has_told, story.events + 1 + point % 2)))
            await asyncio.wait([reported, running], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(point % 4 * 0.4)
            reported.cancel()
            start = driver.starts + 1
            if running.done():
                await running  # it has come to the end: the next driver finds nothing but closing records
                running = drive()
            else:
                driver.kill()
            await until(partial(is_next, driver, start, running))
        await running
        tasks[0].cancel()
        await asyncio.wait(tasks)
        hours, carriers = [
            {
                "topic": await figures.read_topic(cluster.bootstrap, TOPIC_OF[query]),
                "Parquet": figures.read_files(folder_of(tmp_path, query)),
            }
            for query in QUERIES
        ]
        left_open = await figures.open_partitions(cluster.bootstrap)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await cluster.stop()
    found = figures.checks(dataset, data.compute_expected(dataset), hours, carriers, left_open)
    assert [check for check in found if not check.holds] == []
