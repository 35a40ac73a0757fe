"""The driver of the flights pipeline as the demonstration sees it: a process that is started, heard, killed and started again.

Driven by: its JSON lines. Emits: batches into the story. A driver that was killed on purpose is followed by another one at once;
one that ends otherwise than with 0 fails the run.

Invariants: the driver leads a process group with its Java; both die together, so that none goes on alone. Spark's Python workers
are in groups of their own: they outlive that kill by seconds, and go on writing meanwhile, as after a real crash.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from barnabas.cli.flights.story import Batch, Story
from barnabas.cli.local_cluster import line_of
from barnabas.errors import BarnabasError

__all__ = ["Driver", "DriverFailed"]

STALL_S: Final = 300.0  # without a completed batch, starts included
SAID_LINES: Final = 12
SAID_CHARACTERS: Final = 120
JAVA: Final = "-XX:TieredStopAtLevel=1"  # for minutes of work, the quick compiler is the faster one
WORKER: Final = "pyspark.worker"


class DriverFailed(BarnabasError):
    """The driver ended, or went on no longer; the text has the last of what it said."""


class Driver:
    """See the module.

    Args:
        arguments: of the job.
        log: what all drivers write to stderr.
        tell: shows a line to the user.
    """

    def __init__(self, arguments: Sequence[str], log: Path, story: Story, tell: Callable[[str], None]) -> None:
        self._arguments = list(arguments)
        self._log = log
        self._story = story
        self._tell = tell
        self._process: asyncio.subprocess.Process | None = None
        self._killed = False
        self.lives = 0
        self.late = 0  # rows that the watermark dropped, over all batches

    async def run(self) -> None:
        """Runs drivers, one after the other, until one has come to the end of the stream. Raises DriverFailed."""
        while True:
            self._killed = False
            self.lives += 1
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
                raise DriverFailed(f"the driver ended with exit code {code}. It said:\n{self._said()}")

    def kill(self) -> int:
        """SIGKILL to the driver and its Java; the pid it had."""
        process = self._running()
        self._killed = True
        self._kill_group(process)
        return process.pid

    def busy_worker(self) -> int | None:
        """The pid of a Python worker that is at work on a task just now."""
        parents = dict(_parents())
        mine = {self._running().pid}
        while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
            mine |= more
        for pid in sorted(mine):
            parent = parents.get(pid, 0)  # a worker's is the daemon that forked it, with the same command line
            if parent in mine and WORKER in _command(pid) and WORKER in _command(parent) and _state(pid) == "R":
                return pid
        return None

    async def _start(self) -> asyncio.subprocess.Process:
        with self._log.open("ab") as stderr:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "barnabas.cli.flights.job", *self._arguments),
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env=os.environ | {"JAVA_TOOL_OPTIONS": f"{JAVA} {os.environ.get('JAVA_TOOL_OPTIONS', '')}".rstrip()},
                start_new_session=True,
                limit=1 << 20,
            )
        return self._process

    async def _line(self, process: asyncio.subprocess.Process) -> bytes:
        try:
            return await asyncio.wait_for(line_of(process), STALL_S)
        except TimeoutError:
            raise DriverFailed(f"no batch for {STALL_S:.0f} s. The driver said:\n{self._said()}") from None

    def _on(self, what: dict[str, Any]) -> None:
        if "ready" in what:
            self._story.note("the driver is ready")
        elif "batch" in what:
            batch = what["batch"]
            self.late += batch["late"]
            self._story.on_batch(
                Batch(
                    query=batch["query"],
                    batch_id=batch["batch_id"],
                    begin_s=self._story.at_s(batch["begin_s"]),
                    end_s=self._story.at_s(batch["end_s"]),
                    rows=batch["rows"],
                    event_time_max=batch["event_time_max"],
                    watermark=batch["watermark"],
                    life=self.lives - 1,
                )
            )
        elif "restarted" in what:
            text = f"the query {what['restarted']['query']} goes on from its checkpoint"
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
            pass  # all of it has ended

    def _said(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-SAID_LINES:])


def _short(why: str) -> str:
    """Spark's reason without Spark's frame around it."""
    return why.partition("terminated with exception: ")[2][:SAID_CHARACTERS] or why[:SAID_CHARACTERS]


def _parents() -> Iterator[tuple[int, int]]:
    """(pid, pid of the parent) of every process; none where the system has no /proc."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
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
