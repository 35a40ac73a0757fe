"""Supervises the driver process of the flights pipeline: starts it, reads its output, kills it and restarts it.

After a deliberate kill a new driver starts at once. Any other exit code than 0 fails the run.

Invariants: the driver and its JVM form one process group, so a kill ends both. Spark's Python workers are in process
groups of their own: they keep writing for some seconds after that kill, as after a real crash.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from barnabas.cli.local_cluster import line_of
from barnabas.errors import BarnabasError
from examples.demo import environment, program
from examples.demo.flights.story import MicroBatch, Story

STALL_S: Final = 300.0  # longest time without a completed batch, including starts
QUOTED_LINES: Final = 12
SAID_CHARACTERS: Final = 120
JAVA: Final = "-XX:TieredStopAtLevel=1"  # for a few minutes of work, the C1 compiler alone is faster
WORKER: Final = "pyspark.worker"


class DriverFailed(BarnabasError):
    """The driver ended or made no progress; the text quotes its last output."""


class Driver:
    """Supervises the driver process; see the module.

    Args:
        arguments: command-line arguments of the job.
        log: file that receives the stderr of all drivers.
        tell: shows a line to the user.
    """

    def __init__(self, arguments: Sequence[str], log: Path, story: Story, tell: Callable[[str], None]) -> None:
        self._arguments = list(arguments)
        self._log = log
        self._story = story
        self._tell = tell
        self._process: asyncio.subprocess.Process | None = None
        self._killed = False
        self.starts = 0
        self.late = 0  # rows dropped by the watermark in all batches

    async def run(self) -> None:
        """Runs drivers, one after the other, until one reaches the end of the stream. Raises DriverFailed."""
        while True:
            self._killed = False
            self.starts += 1
            process = await self._start()
            try:
                while line := await self._line(process):
                    self._on(json.loads(line))
                code = await process.wait()
            finally:
                self._kill_group(process)
            if code == 0:
                return
            if not self._killed:
                raise DriverFailed(f"the driver ended with exit code {code}. Its last output:\n{self._last_output()}")

    def kill(self) -> int:
        """Sends SIGKILL to the driver and its JVM; returns the driver's pid."""
        process = self._running()
        self._killed = True
        self._kill_group(process)
        return process.pid

    def busy_worker(self) -> int | None:
        """Returns the pid of a Python worker that is running a task; None if there is none."""
        parents = dict(_parents())
        mine = {self._running().pid}
        while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
            mine |= more
        for pid in sorted(mine):
            parent = parents.get(pid, 0)  # a worker's parent is the daemon that forked it, with the same command line
            if parent in mine and WORKER in _command(pid) and WORKER in _command(parent) and _state(pid) == "R":
                return pid
        return None

    async def _start(self) -> asyncio.subprocess.Process:
        with self._log.open("ab") as stderr:
            self._process = await asyncio.create_subprocess_exec(
                *program("flights.job", *self._arguments),
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env=environment()
                | {
                    "JAVA_TOOL_OPTIONS": f"{JAVA} {os.environ.get('JAVA_TOOL_OPTIONS', '')}".rstrip(),
                    "PYTHONSAFEPATH": "1",  # Spark's workers import nothing of the working directory
                },
                start_new_session=True,
                limit=1 << 20,
            )
        return self._process

    async def _line(self, process: asyncio.subprocess.Process) -> bytes:
        try:
            return await asyncio.wait_for(line_of(process), STALL_S)
        except TimeoutError:
            raise DriverFailed(
                f"no batch for {STALL_S:.0f} s. The driver's last output:\n{self._last_output()}"
            ) from None

    def _on(self, what: dict[str, Any]) -> None:
        if "ready" in what:
            self._story.note("the driver is ready")
        elif "batch" in what:
            batch = what["batch"]
            self.late += batch["late"]
            self._story.on_batch(
                MicroBatch(
                    query=batch["query"],
                    batch_id=batch["batch_id"],
                    begin_s=self._story.at_s(batch["begin_s"]),
                    end_s=self._story.at_s(batch["end_s"]),
                    rows=batch["rows"],
                    event_time_max=batch["event_time_max"],
                    watermark=batch["watermark"],
                    driver_index=self.starts - 1,
                )
            )
        elif "idle" in what:
            self._story.on_idle(what["idle"]["query"], self._story.at_s(what["idle"]["at_s"]))
        elif "ended" in what:
            self._story.on_end(what["ended"]["query"], self._story.at_s(what["ended"]["at_s"]))
        elif "restarted" in what:
            text = f"the query {what['restarted']['query']} continues from its checkpoint"
            self._story.note(text)
            self._tell(f"{text}; it had failed: {_short(what['restarted']['why'])}")
        elif "failed" in what:
            raise DriverFailed(f"the query {what['failed']['query']} failed: {what['failed']['why']}")

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise DriverFailed("the driver has not been started")
        return self._process

    def _kill_group(self, process: asyncio.subprocess.Process) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # the whole process group has ended

    def _last_output(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-QUOTED_LINES:])


def _short(why: str) -> str:
    """Extracts the reason from Spark's error text."""
    return why.partition("terminated with exception: ")[2][:SAID_CHARACTERS] or why[:SAID_CHARACTERS]


def _parents() -> Iterator[tuple[int, int]]:
    """Yields (pid, pid of the parent) of every process; nothing if the system has no /proc."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has just ended
        yield int(entry.parent.name), int(fields[1])


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
