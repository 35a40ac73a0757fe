"""A broker as users run it: `barnabas serve` as a process of its own, on a free port, over a folder of the test."""

from __future__ import annotations

import os
import re
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.support.security.planted import without_secrets

READY = re.compile(r"ready node=(\d+) listen=(\S+):(\d+) pid=(\d+)")
READY_SECONDS_MAX = 120.0  # far above what it takes: two cores may be busy with much else


class ServedBroker:
    """One data directory and the process that serves it. The port stays the same over restarts.

    Args:
        data: the data directory.
        settings: "key=value" as for `--set`.
        module: what is run as the `barnabas` command.
        port: for clients; 0 takes a free one at the first start.
        arguments: more of `barnabas serve`.
        listens: for clients; False for a node that is a controller only.
        descriptors_max: hard and soft limit of open descriptors; None: those of the tests.
        soft_descriptors_max: the soft limit alone.
        host: the address it listens on.
        inside: what its command line begins with, such as a command that enters a network namespace and keeps the
            process id.
    """

    def __init__(
        self,
        data: Path,
        *settings: str,
        node_id: int = 1,
        module: str = "barnabas.cli.main",
        port: int = 0,
        arguments: Sequence[str] = (),
        listens: bool = True,
        descriptors_max: int | None = None,
        soft_descriptors_max: int | None = None,
        host: str = "127.0.0.1",
        inside: Sequence[str] = (),
    ) -> None:
        self.module = module
        self.data = data
        self.settings = settings
        self.node_id = node_id
        self.port = port
        self.arguments = tuple(arguments)
        self.listens = listens
        self._limits: tuple[int, int] | None = None
        if descriptors_max is not None or soft_descriptors_max is not None:
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if descriptors_max is None else descriptors_max
            self._limits = (soft_descriptors_max or hard, hard)
        self.host = host
        self.inside = tuple(inside)
        self.ready_seconds = 0.0  # from the start of the process to its ready line
        self.stderr_path = data.with_name(data.name + ".stderr")
        self.process: subprocess.Popen[str] | None = None
        self._began = 0.0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> Self:
        """Starts the process and waits for its ready line; its stderr on failure."""
        self.launch()
        return self.await_ready()

    def launch(self) -> None:
        """Starts the process; a node of a cluster is ready once enough others are there."""
        command = [*self.inside, sys.executable, "-m", self.module, "serve"]
        command += ["--node-id", str(self.node_id), "--data", str(self.data)]
        if self.listens:
            command += ["--listen", self.address]
        command += [*self.arguments, "--log-level", "info"]
        for setting in self.settings:
            command += ["--set", setting]
        self._began = time.monotonic()
        with self.stderr_path.open("a") as stderr:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                preexec_fn=self._limit if self._limits else None,
            )

    def _limit(self) -> None:
        """In the child: how many descriptors it may have."""
        if self._limits is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)

    def await_ready(self) -> Self:
        """Waits for the ready line of a launched process; its stderr on failure."""
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            line = self.process.stdout.readline() if selector.select(READY_SECONDS_MAX) else ""
        self.ready_seconds = time.monotonic() - self._began
        match = READY.match(line)
        if match is None:
            self.kill()
            raise AssertionError(f"no ready line but {line!r}; stderr:\n{self.log()}")
        self.port = int(match.group(3))
        assert int(match.group(4)) == self.process.pid
        return self

    def stop(self, timeout: float = 60.0) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout)
        self._close()
        return code

    def end(self) -> None:
        """Stops the process if it still runs; its log must hold no traceback."""
        if self.alive:
            try:
                assert self.stop() == 0, self.log()
            finally:
                self.kill()
        assert "Traceback" not in self.log(), self.log()

    def kill(self) -> None:
        """SIGKILL: a crash of the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)
            self._close()

    def pause(self) -> None:
        """SIGSTOP: the process does nothing until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self, *, kill: bool = False) -> Self:
        """Stops or kills the process, and starts it again on the same directory and port."""
        if kill:
            self.kill()
        else:
            assert self.stop() == 0, self.log()
        return self.start()

    def log(self) -> str:
        """The stderr of all its processes. Raises AssertionError if it has a password of a test."""
        text = self.stderr_path.read_text() if self.stderr_path.exists() else ""
        return without_secrets(text, f"the log of node {self.node_id}")

    def rss_bytes(self) -> int:
        """Resident memory of the process."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _close(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
