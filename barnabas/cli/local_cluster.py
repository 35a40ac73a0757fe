"""A cluster on this machine: starts, watches, kills and stops one `barnabas serve` process per node.

Driven by: `barnabas up` and `barnabas demo`. Emits: the bootstrap address once every broker serves, and `on_death` for
a process that ends unexpectedly.

Each node keeps its data in DATA/node-N and its stderr in DATA/node-N.log. Client ports are PORT, PORT+1, …; the
quorum's ports are 10,000 above, or 10,000 below if that exceeds 65535. With port 0 all ports are free ones.

Invariants: every started process has ended when `stop` returns; `on_death` is called once per unexpected end.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from barnabas.broker.config import BrokerConfig
from barnabas.cli.serve import node_config
from barnabas.errors import BarnabasError

__all__ = ["ClusterFailed", "LocalCluster", "LocalNode", "line_of"]

HOST: Final = "127.0.0.1"
QUORUM_PORTS_ABOVE: Final = 10_000
READY_S: Final = 60.0  # far above the time of a start, including the recovery of large logs
STOP_S: Final = 30.0  # seconds for a clean stop; then the process is killed
REPLICAS_MAX: Final = 3
QUOTED_LINES: Final = 5  # lines of a node's log that an error quotes


class ClusterFailed(BarnabasError):
    """The cluster could not start; the text names the node and quotes its log."""


class LocalNode:
    """One node: its ports, its data directory, and its process while it runs."""

    def __init__(self, node_id: int, data: Path, port: int, quorum_port: int) -> None:
        self.node_id = node_id
        self.data = data
        self.port = port
        self.quorum_port = quorum_port
        self.process: asyncio.subprocess.Process | None = None
        self.metrics = ""  # HOST:PORT of its metrics while it serves, if it has any
        self.expected_to_end = False

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        """The file with the node's stderr, of all its starts."""
        return self.data.with_name(self.data.name + ".log")


class LocalCluster:
    """Runs a cluster of local processes; see the module.

    Args:
        directory: holds the data of all nodes; created if missing. The data of an earlier run are used again.
        brokers: number of nodes; each is a broker and a voter.
        port: client port of the first node; 0 takes free ports.
        settings: "key=value" for every node; overrides the settings made here.
        metrics: host and port of the first node's metrics; the others follow, or take free ones with port 0. None: none.
        on_death: called with a node whose process ended unexpectedly.
    """

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 3,
        port: int = 0,
        settings: Sequence[str] = (),
        metrics: tuple[str, int] | None = None,
        on_death: Callable[[LocalNode], None] = lambda node: None,
    ) -> None:
        """Raises ClusterFailed if a port is out of range."""
        ports = _ports(brokers, port)
        self.directory = directory
        self.nodes = [
            LocalNode(number, directory / f"node-{number}", *pair) for number, pair in enumerate(ports, start=1)
        ]
        replicas = min(REPLICAS_MAX, brokers)
        self._metrics = metrics
        self._settings = (
            f"default.replication.factor={replicas}",
            f"min.insync.replicas={max(1, replicas - 1)}",
            *settings,
        )
        self._on_death = on_death
        self._watchers: list[asyncio.Task[None]] = []

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of every node, separated by commas."""
        return ",".join(node.address for node in self.nodes)

    def node(self, node_id: int) -> LocalNode:
        """Returns the node with this id, 1 to the number of brokers."""
        return self.nodes[node_id - 1]

    def config(self, node: LocalNode) -> BrokerConfig:
        """Returns a node's configuration. Raises BrokerError or ValueError for a wrong setting, as `serve` does."""
        alone = len(self.nodes) == 1
        controller_listen = None if alone else f"{HOST}:{node.quorum_port}"
        quorum = None if alone else self._quorum()
        return node_config(
            str(node.data),
            node.node_id,
            node.address,
            controller_listen,
            quorum,
            None,
            tuple(self._settings),
            metrics_listen=self._metrics_listen(node),
        )

    def _metrics_listen(self, node: LocalNode) -> str | None:
        if self._metrics is None:
            return None
        host, port = self._metrics
        return f"{host}:{port + node.node_id - 1 if port else 0}"

    def _quorum(self) -> str:
        return ",".join(f"{each.node_id}@{HOST}:{each.quorum_port}" for each in self.nodes)

    def command(self, node: LocalNode) -> list[str]:
        """Returns the command that starts a node, as a user could type it."""
        command = ["serve", "--node-id", str(node.node_id), "--listen", node.address, "--data", str(node.data)]
        if len(self.nodes) > 1:
            command += ["--controller-listen", f"{HOST}:{node.quorum_port}", "--quorum", self._quorum()]
        metrics = self._metrics_listen(node)
        if metrics is not None:
            command += ["--metrics-listen", metrics]
        for setting in self._settings:
            command += ["--set", setting]
        return command

    async def start(self) -> None:
        """Starts every node and waits until all serve.

        Raises:
            ClusterFailed: the directory cannot be created; a node ended or was not ready in time, and the others were
            stopped.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ClusterFailed(
                f"{self.directory} cannot be created ({error.strerror}): name another directory"
            ) from error
        started = [asyncio.create_task(self.start_node(node)) for node in self.nodes]
        try:
            for each in started:
                await each
        except BaseException:
            for each in started:
                each.cancel()
            await asyncio.gather(*started, return_exceptions=True)
            await self.stop()
            raise

    async def start_node(self, node: LocalNode) -> None:
        """Starts or restarts one node and waits until it serves. Raises ClusterFailed."""
        log_size = node.log.stat().st_size if node.log.exists() else 0
        with node.log.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "barnabas.cli.main", *self.command(node)),
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C reaches only this process, which stops the nodes in order
            )
        node.process = process
        node.expected_to_end = False
        try:
            line = await asyncio.wait_for(line_of(process), READY_S)
        except TimeoutError:
            raise ClusterFailed(f"node {node.node_id} was not ready after {READY_S:.0f} s; see {node.log}") from None
        if not line.startswith(b"ready "):
            await process.wait()
            lines = node.log.read_bytes()[log_size:].decode(errors="replace").strip().splitlines()[-QUOTED_LINES:]
            raise ClusterFailed(f"node {node.node_id} did not start: {' / '.join(lines) or 'its log is empty'}")
        node.metrics = line.decode().rstrip().partition(" metrics=")[2]
        self._watchers.append(asyncio.create_task(self._watch(node, process)))

    async def _watch(self, node: LocalNode, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        if not node.expected_to_end:
            self._on_death(node)

    async def kill(self, node: LocalNode) -> None:
        """Sends SIGKILL to a node and waits for its end, without a call of `on_death`."""
        node.expected_to_end = True
        if node.process is not None and node.process.returncode is None:
            node.process.kill()
            await node.process.wait()

    async def stop(self) -> None:
        """Stops the nodes cleanly, one after the other, so that each transfers its leaderships.

        A node that does not end within STOP_S is killed.
        """
        for node in self.nodes:
            node.expected_to_end = True
        for node in reversed(self.nodes):
            process = node.process
            if process is None or process.returncode is not None:
                continue
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        for watcher in self._watchers:
            await watcher
        self._watchers.clear()


async def line_of(process: asyncio.subprocess.Process) -> bytes:
    """Reads the next line of a child's output; empty at the end, or if the output is not piped."""
    return await process.stdout.readline() if process.stdout is not None else b""


def _ports(count: int, first: int) -> list[tuple[int, int]]:
    """(client port, quorum port) of each node."""
    if first == 0:
        free = _free_ports(2 * count)
        return list(zip(free[:count], free[count:], strict=True))
    away = QUORUM_PORTS_ABOVE if first + count + QUORUM_PORTS_ABOVE <= 65_536 else -QUORUM_PORTS_ABOVE
    if not 0 < first <= 65_536 - count:
        raise ClusterFailed(f"ports {first} to {first + count - 1} are not within 1 to 65535")
    return [(port, port + away) for port in range(first, first + count)]


def _free_ports(count: int) -> list[int]:
    """Finds free ports; they are released before they are returned."""
    taken = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = []
    for each in taken:
        with closing(each):
            ports.append(each.getsockname()[1])
    return ports
