"""Mode "process": each node is a process with files in a temporary directory. A child ends with its socket; a stopped one is in its own process group,
which the kernel ends when it is orphaned (SIGHUP, SIGCONT).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from barnabas.runtime.cluster_directory import ClusterDirectory, remove_ownerless
from barnabas.runtime.json_lines import JsonLines
from barnabas.testing.backend import BrokerFiles, LocalBackend, Lose, Mode, RunState, Shape, killed_text
from barnabas.testing.errors import BrokerKilledError, KitError, NotPossible

ROOT: Final = str(Path(__file__).parents[2])  # where the package is imported from
PROGRAM: Final = (
    f"import sys; sys.path.append({ROOT!r}); from barnabas.testing.node_process import main; main(int(sys.argv[1]))"
)
PREFIX: Final = "barnabas-kit-"  # of directories
POLL_S: Final = 0.001  # until a process has stopped
END_S: Final = 10.0  # a killed process is gone within this time
QUOTED_LINES: Final = 5  # lines of a node's log that an error quotes


class _Broker:
    """One node: its settings, and its process while it runs."""

    def __init__(self, node_id: int, settings: dict[str, str], log: Path) -> None:
        self.node_id = node_id
        self.settings = settings
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.link: JsonLines | None = None
        self.launching = False  # its start has begun, its process has not
        self.paused = False
        self.ended = False  # its link has ended, so its process ends now
        self.expected_to_end = True
        self.may_end = False
        self.killed = False  # by a fault of its disk
        self.ready: asyncio.Future[None] | None = None
        self.answers: dict[int, asyncio.Future[Any]] = {}
        self.sent = 0  # number of commands so far

    @property
    def state(self) -> RunState:
        if self.launching:
            return "starting"
        if self.process is None or self.ended or self.process.poll() is not None:
            return "down"
        if self.paused:
            return "paused"
        return "running" if self.ready is not None and self.ready.done() else "starting"

    def last_lines(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return "it has no log"
        return " / ".join(lines[-QUOTED_LINES:]) or "its log is empty"


class ProcessBackend(LocalBackend):
    """See the module, and `Backend`."""

    mode: Mode = "process"

    def __init__(self, shape: Shape) -> None:
        if not hasattr(os, "fork"):
            raise NotPossible("mode 'process' needs a POSIX system; use mode 'thread' here")
        self._directory: ClusterDirectory | None = None
        super().__init__(shape)

    def _make_brokers(self, settings: dict[int, dict[str, str]]) -> None:
        remove_ownerless(PREFIX)
        self._directory = ClusterDirectory(PREFIX)
        for node_id, own in settings.items():
            first = self._directory.path / f"node-{node_id}"
            folders = [first, *(first.with_name(f"{first.name}-{n}") for n in range(2, self.log_dirs + 1))]
            for each in folders:
                each.mkdir()
            settings_of_one = {**own, "log.dirs": ",".join(map(str, folders))}
            self._brokers[node_id] = _Broker(node_id, settings_of_one, first.with_name(f"{first.name}.log"))

    def pid(self, broker_id: int) -> int | None:
        broker = self._brokers[broker_id]
        return None if broker.process is None or broker.state == "down" else broker.process.pid

    def files(self, broker_id: int) -> BrokerFiles:
        broker = self._brokers[broker_id]
        return BrokerFiles(tuple(map(Path, broker.settings["log.dirs"].split(","))), broker.log)

    def abandon(self) -> None:
        for broker in self._brokers.values():
            broker.expected_to_end = True
            if broker.process is not None and broker.process.poll() is None:
                broker.process.kill()
        for broker in self._brokers.values():
            _reap(broker)
        if self._directory is not None:
            self._directory.remove()
        self._release()

    # -- one broker

    async def start_broker(self, broker_id: int) -> None:
        broker = self._brokers[broker_id]
        if self._directory is None:
            raise KitError("the cluster has ended")
        loop = asyncio.get_running_loop()
        broker.launching, broker.link = True, None
        try:
            await loop.run_in_executor(None, _reap, broker)
            broker.ready = loop.create_future()
            ours = _launch(broker)
        finally:
            broker.launching = False
        broker.ended = broker.paused = broker.expected_to_end = broker.may_end = broker.killed = False
        try:
            broker.link = await JsonLines.open(
                ours, lambda value: self._on_value(broker, value), lambda: self._on_end(broker)
            )
            broker.link.send(
                {
                    "settings": broker.settings,
                    "cluster_directory": str(self._directory.path),
                    "commands": self.before_start(broker_id),
                }
            )
            await broker.ready
        except BaseException:
            broker.ready.cancel()
            broker.expected_to_end = True
            if broker.process is not None and broker.process.poll() is None:
                broker.process.kill()
            _reap(broker)  # here: at the end of this process no executor takes work
            raise

    async def stop_broker(self, broker_id: int) -> None:
        broker = self._brokers[broker_id]
        broker.expected_to_end = True
        with contextlib.suppress(BrokerKilledError):
            await self.command(broker_id, "stop", {})
        await asyncio.get_running_loop().run_in_executor(None, _reap, broker)

    async def kill_broker(self, broker_id: int, lose: Lose = "nothing") -> None:
        broker = self._brokers[broker_id]
        broker.expected_to_end = True
        if lose == "page_cache":
            await self.command(broker_id, "lose_page_cache", {})
        if broker.process is not None and broker.process.poll() is None:
            broker.process.kill()
        await asyncio.get_running_loop().run_in_executor(None, _reap, broker)

    async def settle(self, broker_id: int) -> None:
        broker = self._brokers[broker_id]
        while broker.link is not None and broker.state == "down" and not broker.ended:  # noqa: ASYNC110  # for a turn of the loop: its last lines are to be read
            await asyncio.sleep(POLL_S)
        await super().settle(broker_id)

    async def pause_broker(self, broker_id: int) -> None:
        while self._brokers[broker_id].launching:  # noqa: ASYNC110  # for milliseconds; there is no process yet
            await asyncio.sleep(POLL_S)
        self._signal(broker_id, signal.SIGSTOP)
        self._brokers[broker_id].paused = True
        process = self._brokers[broker_id].process
        # The kernel ends orphaned processes only if they have stopped. If this process died before that, the broker would never end.
        while process is not None and process.poll() is None and not _is_stopped(process.pid):  # noqa: ASYNC110  # the kernel has no event for it
            await asyncio.sleep(POLL_S)

    async def resume_broker(self, broker_id: int) -> None:
        self._signal(broker_id, signal.SIGCONT)
        self._brokers[broker_id].paused = False

    def _signal(self, broker_id: int, number: int) -> None:
        process = self._brokers[broker_id].process
        if process is not None and process.poll() is None:
            process.send_signal(number)

    async def command(self, broker_id: int, name: str, arguments: Mapping[str, Any]) -> Any:
        broker = self._brokers[broker_id]
        if broker.link is None or broker.state == "down":
            raise RuntimeError(f"broker {broker_id} is down")
        broker.sent += 1
        number = broker.sent
        answer = broker.answers[number] = asyncio.get_running_loop().create_future()
        broker.link.send({"id": number, "name": name, "arguments": dict(arguments)})
        try:
            return await answer
        finally:
            del broker.answers[number]

    # -- what a process sends

    def _on_value(self, broker: _Broker, value: dict[str, Any]) -> None:
        if "ready" in value:
            _settle(broker.ready, None)
        elif "id" in value:
            problem = KitError(f"broker {broker.node_id}: {value['error']}") if "error" in value else None
            _settle(broker.answers.get(value["id"]), value.get("value"), problem)
        elif "error" in value:
            _settle(broker.ready, None, KitError(f"broker {broker.node_id} did not start: {value['error']}"))
        elif "failed" in value:
            if not broker.may_end:
                self._failures.append(f"broker {broker.node_id} stopped by itself: {value['failed']}")
            broker.expected_to_end = True
            if broker.process is not None and broker.ready is not None and broker.ready.done():
                broker.process.kill()  # its node has ended
        elif "killed" in value:
            broker.killed = broker.expected_to_end = True
        elif "event" in value:
            self.on_event(broker.node_id, value["event"], value["value"])

    def _on_end(self, broker: _Broker) -> None:
        """The process has ended, or ends now."""
        broker.ended = True
        problem: KitError = BrokerKilledError(killed_text(broker.node_id))
        if not broker.killed:
            problem = KitError(f"broker {broker.node_id} ended; the end of its log: {broker.last_lines()}")
        for waiting in (broker.ready, *broker.answers.values()):
            _settle(waiting, None, problem)
        if not (broker.expected_to_end or broker.may_end):
            self._failures.append(str(problem))


def _launch(broker: _Broker) -> socket.socket:
    """Starts the process of a broker; returns our end of its link."""
    ours, theirs = socket.socketpair()
    with theirs, broker.log.open("ab") as log:
        broker.process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[theirs.fileno()],
            process_group=0,
        )
    return ours


def _settle(waiting: asyncio.Future[Any] | None, value: Any, problem: Exception | None = None) -> None:
    if waiting is None or waiting.done():
        return
    if problem is None:
        waiting.set_result(value)
    else:
        waiting.set_exception(problem)


def _is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has taken effect on a child; the event stays for other callers."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return True
    return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG) is not None


def _reap(broker: _Broker) -> None:
    """Waits for the end of a process that was stopped or killed."""
    if broker.process is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            broker.process.wait(END_S)
        if broker.process.poll() is None:
            broker.process.kill()
            broker.process.wait(END_S)
