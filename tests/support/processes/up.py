"""`barnabas up` as a process in a session of its own."""

from __future__ import annotations

import re
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.process_tree import command_lines, kill
from tests.support.security.planted import without_secrets

COMMAND = [sys.executable, "-m", "barnabas.cli.main"]
READY = re.compile(r"ready bootstrap=(\S+)(?: metrics=(\S+))?(?: command_config=(\S+))?\n")
SECONDS_MAX = 120.0


class Up:
    """`barnabas up` in a session of its own, so that signals reach it alone."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self.data = data
        self.stderr_path = data.with_name(data.name + ".stderr")
        with self.stderr_path.open("w") as stderr:
            self.process = subprocess.Popen(
                [*COMMAND, "up", "--data", str(data), *arguments],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            line = self.process.stdout.readline() if selector.select(SECONDS_MAX) else ""
        ready = READY.fullmatch(line)
        assert ready is not None, f"{line!r} {self.stderr()}"
        self.bootstrap = ready.group(1)
        self.metrics = (ready.group(2) or "").split(",")  # HOST:PORT of each node's metrics

    def stderr(self) -> str:
        return without_secrets(self.stderr_path.read_text(), "the output of barnabas up")

    def nodes(self) -> dict[int, int]:
        """Pid of each node that runs, by node id."""
        lines = command_lines(rf"serve.*{re.escape(str(self.data))}/node-")
        return {int(node[1]): pid for pid, line in lines.items() if (node := re.search(r"--node-id (\d+) ", line))}

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS_MAX)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pid in self.nodes().values():  # they end by themselves
            kill(pid)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """The directory of a cluster. No node of it is left at the end."""
    yield tmp_path / "cluster"
    left = command_lines(rf"serve.*{re.escape(str(tmp_path))}/cluster/node-")
    for pid in left:
        kill(pid)
    assert not left, "every node ends with the command that started it"
