"""A cluster on this machine: one `barnabas serve` process a node, started, watched, killed and stopped together.

Driven by: `barnabas up` and `barnabas demo`. Emits: the bootstrap address once every broker serves, and `on_death` for a node
that ends without being asked.

Each node has DATA/node-N for its data and DATA/node-N.log for what it says. Client ports are PORT, PORT+1, …; the quorum's stand
10,000 above (below where that is no port). With port 0 all of them are free ones.

Invariants: every process that was started has ended when `stop` returns; `on_death` is called once a death.
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
READY_S: Final = 60.0  # far above what a start takes, recovery of large logs included
STOP_S: Final = 30.0  # for a clean stop; then the process is killed
REPLICAS_MAX: Final = 3
TOLD_LINES: Final = 5  # of a node's log, when it could not start


class ClusterFailed(BarnabasError):
    """The cluster could not be started; the text names the node and repeats what it said."""


class LocalNode:
    """One node: where it listens, where its data is, and its process while it runs."""

    def __init__(self, node_id: int, data: Path, port: int, quorum_port: int) -> None:
        self.node_id = node_id
        self.data = data
        self.port = port
        self.quorum_port = quorum_port
        self.process: asyncio.subprocess.Process | None = None
        self.expected_to_end = False

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        """What it wrote to stderr, over all its starts."""
        return self.data.with_name(self.data.name + ".log")


class LocalCluster:
    """See the module.

    Args:
        directory: holds the data of all nodes; made where it is missing. A directory of an earlier run is taken up again.
        brokers: how many nodes, each a broker and a voter.
        port: of the first node's clients; 0 takes free ones.
        settings: "key=value" for every node, above what is set here.
        on_death: called with a node that ended by itself or was killed by somebody else.
    """

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 3,
        port: int = 0,
        settings: Sequence[str] = (),
        on_death: Callable[[LocalNode], None] = lambda node: None,
    ) -> None:
        """Raises ClusterFailed where the ports are no ports."""
        ports = _ports(brokers, port)
        self.directory = directory
        self.nodes = [
            LocalNode(number, directory / f"node-{number}", *pair) for number, pair in enumerate(ports, start=1)
        ]
        replicas = min(REPLICAS_MAX, brokers)
        self._settings = (
            f"default.replication.factor={replicas}",
            f"min.insync.replicas={max(1, replicas - 1)}",
            *settings,
        )
        self._on_death = on_death
        self._watchers: list[asyncio.Task[None]] = []

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of every node, with commas."""
        return ",".join(node.address for node in self.nodes)

    def node(self, node_id: int) -> LocalNode:
        """The node of an id, 1 to the number of brokers."""
        return self.nodes[node_id - 1]

    def config(self, node: LocalNode) -> BrokerConfig:
        """What a node makes of its command. Raises BrokerError or ValueError for a wrong setting, as `serve` does."""
        alone = len(self.nodes) == 1
        controller_listen = None if alone else f"{HOST}:{node.quorum_port}"
        quorum = None if alone else self._quorum()
        return node_config(
            str(node.data), node.node_id, node.address, controller_listen, quorum, None, tuple(self._settings)
        )

    def _quorum(self) -> str:
        return ",".join(f"{each.node_id}@{HOST}:{each.quorum_port}" for each in self.nodes)

    def command(self, node: LocalNode) -> list[str]:
        """What starts a node, as a user could type it."""
        command = ["serve", "--node-id", str(node.node_id), "--listen", node.address, "--data", str(node.data)]
        if len(self.nodes) > 1:
            command += ["--controller-listen", f"{HOST}:{node.quorum_port}", "--quorum", self._quorum()]
        for setting in self._settings:
            command += ["--set", setting]
        return command

    async def start(self) -> None:
        """Starts every node and waits until all serve.

        Raises:
            ClusterFailed: the directory cannot be made; a node ended, or was not ready in time: the others are stopped then.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ClusterFailed(
                f"{self.directory} cannot be made ({error.strerror}): name another directory"
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
        """Starts one node, for the first time or again, and waits until it serves. Raises ClusterFailed."""
        said = node.log.stat().st_size if node.log.exists() else 0
        with node.log.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "barnabas.cli.main", *self.command(node)),
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C is for us: we stop the nodes in order
            )
        node.process = process
        node.expected_to_end = False
        try:
            line = await asyncio.wait_for(line_of(process), READY_S)
        except TimeoutError:
            raise ClusterFailed(f"node {node.node_id} was not ready after {READY_S:.0f} s; see {node.log}") from None
        if not line.startswith(b"ready "):
            await process.wait()
            words = node.log.read_bytes()[said:].decode(errors="replace").strip().splitlines()[-TOLD_LINES:]
            raise ClusterFailed(f"node {node.node_id} did not start: {' / '.join(words) or 'it said nothing'}")
        self._watchers.append(asyncio.create_task(self._watch(node, process)))

    async def _watch(self, node: LocalNode, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        if not node.expected_to_end:
            self._on_death(node)

    async def kill(self, node: LocalNode) -> None:
        """SIGKILL; `on_death` is not called for it."""
        node.expected_to_end = True
        if node.process is not None and node.process.returncode is None:
            node.process.kill()
            await node.process.wait()

    async def stop(self) -> None:
        """Stops every node cleanly, one after the other so that each can give its leaderships away; kills what does not end."""
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
    """The next line that a child prints; empty at its end, or where its output is not piped."""
    return await process.stdout.readline() if process.stdout is not None else b""


def _ports(count: int, first: int) -> list[tuple[int, int]]:
    """(client port, quorum port) of each node."""
    if first == 0:
        free = _free_ports(2 * count)
        return list(zip(free[:count], free[count:], strict=True))
    away = QUORUM_PORTS_ABOVE if first + count + QUORUM_PORTS_ABOVE <= 65_536 else -QUORUM_PORTS_ABOVE
    if not 0 < first <= 65_536 - count:
        raise ClusterFailed(f"there are no {count} ports from {first} on: the last one is 65535")
    return [(port, port + away) for port in range(first, first + count)]


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    taken = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = []
    for each in taken:
        with closing(each):
            ports.append(each.getsockname()[1])
    return ports
