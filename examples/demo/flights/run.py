"""`make demo-spark`: a year of flights and weather through Spark, exactly once, while processes are killed.

Starts three brokers, replays flights and weather transactionally in event-time order, and runs two queries in a Spark
driver: departure delay per airport and hour joined with the weather, and delay per airline, manufacturer and week. The
sink writes the results exactly once to topics and Parquet files, with one decision per batch. During the run SIGKILL
ends a Python worker, a broker and the driver. Then the results are read without Spark and compared with the expected
results; an HTML page shows them.

Exit code 0: every figure is correct. 1: a figure is wrong, or the run failed. 2: the call is wrong, or there is no
data.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from barnabas.cli.local_cluster import ClusterFailed, LocalCluster
from barnabas.client.admin import Admin, NewTopic
from barnabas.client.errors import KafkaError
from barnabas.pipeline import PipelineError
from barnabas.runtime.loop import run
from examples.demo.flights import chaos as chaos_
from examples.demo.flights import dataset as data_
from examples.demo.flights import figures
from examples.demo.flights.dataset import Dataset
from examples.demo.flights.driver import Driver, DriverFailed
from examples.demo.flights.names import BY_CARRIER, BY_HOUR, QUERIES, TOPIC_OF, folder_of
from examples.demo.flights.page import check_page, write_page
from examples.demo.flights.replay import WATERMARK, replay_flights, send_tables
from examples.demo.flights.story import Story
from examples.demo.rows import InputMissing

BROKERS: Final = 3
PARTITIONS: Final = {data_.FLIGHTS: 4, data_.WEATHER: 2, data_.PLANES: 1, data_.AIRLINES: 1}
RESULT_PARTITIONS: Final = 2
CLOSED: Final = timedelta(days=8)  # after the last row; the last window is a week long and has closed by then
TICK_S: Final = 0.2

console = Console()


def spark_demo(*, data: Path | None, kills: bool, report: Path, months: int) -> int:
    """Runs the demonstration; returns the exit code.

    Args:
        data: an empty directory that keeps the brokers' data and Spark's files; None: they are removed.
        kills: whether anything is killed.
        report: path of the HTML page.
        months: how many months of the year are replayed, 1 to 12.
    """
    try:
        check_page(report)
    except OSError as error:
        print(f"demo: --report {report} cannot be written ({error.strerror}): name another file", file=sys.stderr)
        return 2
    try:
        _need_spark()
        dataset = data_.load(months)
    except (InputMissing, PipelineError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="barnabas-flights-", ignore_cleanup_errors=True) as scratch:
        try:
            return run(_demo(dataset, data or Path(scratch) / "data", kills, report.resolve()))
        except asyncio.CancelledError:
            return 130  # SIGTERM: brokers and driver were stopped
        except (ClusterFailed, DriverFailed, KafkaError) as error:
            console.print(f"[red]demo failed: {error}[/red]")
            return 1


def _need_spark() -> None:
    from barnabas.pipeline import session  # noqa: F401 # reports a missing extra here instead of in the driver's log
    from barnabas.pipeline.java import java_home

    java_home()


async def _demo(dataset: Dataset, data: Path, kills: bool, report: Path) -> int:
    story = Story(QUERIES)
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # as Ctrl-C: all processes end
    cluster = LocalCluster(data, brokers=BROKERS)
    await cluster.start()
    try:
        console.print(f"{BROKERS} brokers on {cluster.bootstrap}, ready after {story.now_s:.2f} s; data in {data}")
        await _topics(cluster.bootstrap)
        await send_tables(cluster.bootstrap, dataset)
        last = dataset.days[-1].day
        driver = Driver(
            [cluster.bootstrap, str(data), WATERMARK, str(last + CLOSED)], data / "spark.log", story, console.print
        )
        await _run(cluster, driver, dataset, story, kills)
        console.print(f"the stream has come to its end after {story.now_s:.0f} s; reading the results without Spark")
        results = {
            query: {
                "topic": await figures.read_topic(cluster.bootstrap, TOPIC_OF[query]),
                "Parquet": figures.read_files(folder_of(data, query)),
            }
            for query in QUERIES
        }
        left_open = await figures.open_partitions(cluster.bootstrap)
    finally:
        await cluster.stop()
    found = figures.checks(dataset, data_.compute_expected(dataset), results[BY_HOUR], results[BY_CARRIER], left_open)
    write_page(report, story, found, results[BY_HOUR]["topic"], results[BY_CARRIER]["topic"])
    _print(story, found, driver)
    console.print(f"The page: {report}")
    if not all(check.holds for check in found):
        console.print("[red]A figure does not hold.[/red]")
        return 1
    return 0


async def _run(cluster: LocalCluster, driver: Driver, dataset: Dataset, story: Story, kills: bool) -> None:
    """Runs replay, queries, kills and observers until the queries have ended."""
    columns = (TextColumn("{task.description:<26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        days = len(dataset.days)
        replayed = progress.add_task("days replayed", total=days)
        read = {query: progress.add_task(f"days read, delays {query}", total=days) for query in QUERIES}
        beside = [
            asyncio.create_task(
                replay_flights(cluster.bootstrap, dataset, story, lambda day: progress.update(replayed, completed=day))
            ),
            asyncio.create_task(chaos_.watch_transactions(cluster.bootstrap, story)),
            asyncio.create_task(_show(progress, read, dataset, story)),
        ]
        if kills:
            chaos = chaos_.Chaos(cluster, driver, story, TOPIC_OF[BY_HOUR], console.print)
            plan = chaos.run(chaos_.PLAN, dataset.days[0].day, dataset.days[-1].day)
            beside.append(asyncio.create_task(plan))
        running = asyncio.create_task(driver.run())
        try:
            while not running.done():
                await asyncio.sleep(TICK_S)
                for each in beside:
                    if each.done():
                        each.result()  # a failure of any other task fails the run
            await running
        finally:
            for each in (running, *beside):
                each.cancel()
            await asyncio.gather(running, *beside, return_exceptions=True)


async def _show(progress: Progress, read: dict[str, TaskID], dataset: Dataset, story: Story) -> None:
    """Updates the progress bars of the queries."""
    day_of = {str(day.day): number for number, day in enumerate(dataset.days, start=1)}
    while True:
        for query, bar in read.items():
            latest = max((b.event_time_max[:10] for b in story.batches if b.query == query), default="")
            done = len(dataset.days) if latest > str(dataset.days[-1].day) else day_of.get(latest, 0)
            progress.update(bar, completed=done)
        await asyncio.sleep(TICK_S)


async def _topics(bootstrap: str) -> None:
    compacted = {"cleanup.policy": "compact"}
    topics = [
        NewTopic(name, count, configs=compacted if name in (data_.PLANES, data_.AIRLINES) else {})
        for name, count in PARTITIONS.items()
    ]
    topics += [NewTopic(name, RESULT_PARTITIONS) for name in TOPIC_OF.values()]
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics(topics)


def _print(story: Story, found: list[figures.Check], driver: Driver) -> None:
    committed = sum(1 for each in story.transactions if each.committed)
    table = Table(title="A year of flights, exactly once", show_header=False)
    for check in found:
        right = (
            f"[green]{check.found:,}[/green]" if check.holds else f"[red]{check.found:,}, not {check.expected:,}[/red]"
        )
        table.add_row(check.what, right)
    table.add_section()
    table.add_row("transactions of the replay", f"{committed} committed, {len(story.transactions) - committed} aborted")
    table.add_row("batches of Spark", f"{len(story.batches)}, by {driver.starts} driver{'s' * (driver.starts != 1)}")
    for kill in story.kills:
        back = "not recovered from" if kill.back_s is None else f"recovered after {kill.back_s - kill.at_s:.1f} s"
        table.add_row(f"killed: {kill.what}", back)
    table.add_row("seconds", f"{story.now_s:.0f}")
    console.print(table)
