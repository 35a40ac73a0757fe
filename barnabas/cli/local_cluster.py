"""A cluster on this machine: starts, watches, kills and stops one `barnabas serve` process per node.

Each node keeps its data in DATA/node-N and its stderr in DATA/node-N.log. Client ports are PORT, PORT+1, …; quorum ports are
10,000 above, if free and outside the ephemeral range, whose ports a restarted node may find taken. A lock in DATA keeps other
clusters away.

Invariants: every started process has ended when `stop` returns; `on_death` is called once per unexpected end. The standard input of each
process is a pipe whose other end only this process has, so the nodes stop when it is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.cli.cluster_security import ClusterSecurity
from barnabas.cli.serve import node_config
from barnabas.errors import BarnabasError, DirectoryInUse
from barnabas.ports import DiskLock
from barnabas.runtime.files import FileDisk
from barnabas.runtime.port_owner import described, port_holder
from barnabas.runtime.randomness import SystemRng

HOST: Final = "127.0.0.1"
PORT_MAX: Final = 65_535
PORT_MIN: Final = 1_024  # below, ports need more rights
QUORUM_PORTS_ABOVE: Final = 10_000
_RANGE_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_RANGE_ELSEWHERE: Final = range(49_152, 65_536)  # of IANA, as macOS and Windows have it
_TRIES: Final = 200


def ephemeral_ports() -> range:
    """Returns the ports that this machine gives to outgoing connections."""
    try:
        first, last = map(int, _RANGE_FILE.read_text().split())
    except (OSError, ValueError):
        return _RANGE_ELSEWHERE
    return range(first, last + 1)


def is_free(port: int) -> bool:
    """Returns whether a server could bind the port on HOST now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def chosen_ports(count: int) -> list[int]:
    """Returns free ports outside the ephemeral range, at random: clusters that start at the same time take different ones."""
    ephemeral, rng = ephemeral_ports(), SystemRng()
    found: dict[int, None] = {}
    for _ in range(_TRIES):
        port = 10_000 + rng.randrange(PORT_MAX - 10_000)
        if port not in ephemeral and is_free(port):
            found[port] = None
        if len(found) == count:
            return list(found)
    return _any_ports(count)


def quorum_ports(clients: list[int], saved: list[int] | None) -> list[int]:
    """Returns a port for each node, none of them in `clients`: the saved ones if all are free, else as the module says."""
    count, ephemeral = len(clients), ephemeral_ports()

    def usable(ports: list[int]) -> bool:
        return all(PORT_MIN <= each <= PORT_MAX and each not in clients and is_free(each) for each in ports)

    if saved is not None and len(saved) == count and len(set(saved)) == count and usable(saved):
        return saved
    first = clients[0]
    for start in (first + QUORUM_PORTS_ABOVE, first - QUORUM_PORTS_ABOVE, *range(10_000, PORT_MAX, count)):
        ports = list(range(start, start + count))
        if not any(each in ephemeral for each in ports) and usable(ports):
            return ports
    return _any_ports(count)  # the whole range is ephemeral


def saved_ports(file: Path) -> list[int] | None:
    """Returns the ports that an earlier start wrote to the file; None if there are none, or the file has another content."""
    try:
        return [int(each) for each in file.read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return None


def _any_ports(count: int) -> list[int]:
    """Ports that the system chooses; they are released before they are returned."""
    taken = [socket.create_server((HOST, 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in taken]
    finally:
        for each in taken:
            each.close()


LOCK_FILE: Final = ".lock"
PORTS_FILE: Final = "quorum-ports"
READY_S: Final = 60.0  # far above the time of a start, including the recovery of large logs
STOP_S: Final = 30.0  # seconds for a clean stop; then the process is killed
REPLICAS_MAX: Final = 3
QUOTED_LINES: Final = 5  # lines of a node's log that an error quotes
CERTIFIED_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
FULL_BYTES: Final = 1 << 20  # less is free on a volume that counts as full


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
        logging: options of `serve` about its log.
        security: TLS, users and access control; None: plaintext listeners for everyone on this machine.
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
        logging: Sequence[str] = (),
        security: ClusterSecurity | None = None,
        on_death: Callable[[LocalNode], None] = lambda node: None,
    ) -> None:
        """Raises ClusterFailed if a port is out of range."""
        self.directory = directory = directory.resolve()
        ports = _ports(brokers, port, saved_ports(directory / PORTS_FILE))
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
        self._logging = tuple(logging)
        self.security = security
        self._node_files: dict[int, Path] = {}  # settings of each node, if the cluster is secured
        self._on_death = on_death
        self._lock: DiskLock | None = None
        self._lifeline: tuple[int, int] | None = None  # the read end, standard input of the nodes, and the write end
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
        file = self._node_files.get(node.node_id)
        controller_listen = None if alone or file is not None else f"{HOST}:{node.quorum_port}"
        quorum = None if alone else self._quorum()
        return node_config(
            str(node.data),
            node.node_id,
            node.address if file is None else None,
            controller_listen,
            quorum,
            file,
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
        command = ["serve", "--node-id", str(node.node_id), "--data", str(node.data)]
        file = self._node_files.get(node.node_id)
        if file is not None:
            command += ["--config", str(file)]
        else:
            command += ["--listen", node.address]
        if len(self.nodes) > 1:
            if file is None:
                command += ["--controller-listen", f"{HOST}:{node.quorum_port}"]
            command += ["--quorum", self._quorum()]
        metrics = self._metrics_listen(node)
        if metrics is not None:
            command += ["--metrics-listen", metrics]
        for setting in self._settings:
            command += ["--set", setting]
        return [*command, *self._logging]

    def secure(self) -> None:
        """Makes certificates, passwords and settings of the nodes, if the cluster is to be secured. Call it before `config` and `start`.

        Raises:
            ClusterFailed: the directory cannot be created or is in use.
            BarnabasError, OSError: the cluster cannot be secured; with a remedy.
        """
        if self.security is None:
            return
        self._take_directory()
        alone = len(self.nodes) == 1
        self._node_files = self.security.prepare(
            {
                node.node_id: (CERTIFIED_HOSTS, node.address, None if alone else f"{HOST}:{node.quorum_port}")
                for node in self.nodes
            },
            self.bootstrap,
        )
        self.security.format({node.node_id: node.data for node in self.nodes})

    async def start(self) -> None:
        """Starts every node and waits until all serve.

        Raises:
            ClusterFailed: the directory cannot be created or is in use, or a port is in use; a node ended or was not
            ready in time, and the others were stopped.
        """
        self._take_directory()
        self._check_ports()
        self._lifeline = os.pipe()
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

    def _take_directory(self) -> None:
        """Creates and locks the directory, and notes the ports of the quorum in it."""
        if self._lock is not None:
            return
        if self.directory.is_file():
            raise ClusterFailed(f"{self.directory} is a file: name a directory")
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ClusterFailed(
                f"{self.directory} cannot be created ({error.strerror}): name another directory"
            ) from error
        try:
            self._lock = FileDisk(str(self.directory)).lock(LOCK_FILE)
            if len(self.nodes) > 1:
                ports = " ".join(str(node.quorum_port) for node in self.nodes)
                (self.directory / PORTS_FILE).write_text(f"{ports}\n")
        except DirectoryInUse as error:
            raise ClusterFailed(str(error)) from error
        except OSError as error:
            raise ClusterFailed(
                f"{self.directory} cannot be written ({error.strerror}): name a directory where this user may write and "
                "whose volume has space"
            ) from error

    def _check_ports(self) -> None:
        for node in self.nodes:
            for port in (node.port, node.quorum_port):
                if not is_free(port):
                    pid = port_holder(port)
                    who = "another process" if pid is None else described(pid)
                    raise ClusterFailed(
                        f"port {port} of node {node.node_id} is in use by {who}: stop it, or choose other ports with "
                        "--port; --port 0 takes free ones"
                    )

    async def start_node(self, node: LocalNode) -> None:
        """Starts or restarts one node and waits until it serves. Raises ClusterFailed."""
        if self._lifeline is None:
            self._lifeline = os.pipe()
        log_size = node.log.stat().st_size if node.log.exists() else 0
        with node.log.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "barnabas.cli.main", *self.command(node), "--until-stdin-ends"),
                stdin=self._lifeline[0],
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
            raise ClusterFailed(f"node {node.node_id} did not start: {self._last_lines(node, log_size)}")
        node.metrics = line.decode().rstrip().partition(" metrics=")[2]
        self._watchers.append(asyncio.create_task(self._watch(node, process)))

    def _last_lines(self, node: LocalNode, begin: int) -> str:
        """The end of a node's log from byte `begin`: its complaint if it has one, else the last lines."""
        lines = node.log.read_bytes()[begin:].decode(errors="replace").strip().splitlines()
        complaints = [line for line in lines if line.startswith("barnabas ")]
        if lines:
            return " / ".join(complaints or lines[-QUOTED_LINES:])
        volume = os.statvfs(self.directory)
        if volume.f_bavail * volume.f_frsize < FULL_BYTES:
            return f"the volume of {self.directory} is full; free space on it, or name a directory on another volume"
        return f"its log {node.log} is empty"

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

    def kill_all(self) -> None:
        """Sends SIGKILL to every node; `stop`, which waits for them, returns soon."""
        for node in self.nodes:
            node.expected_to_end = True
            if node.process is not None and node.process.returncode is None:
                node.process.kill()

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
            with suppress(ProcessLookupError):  # it ends at this moment
                process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        for watcher in self._watchers:
            await watcher
        self._watchers.clear()
        if self._lifeline is not None:
            for end in self._lifeline:
                os.close(end)
            self._lifeline = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None


async def line_of(process: asyncio.subprocess.Process) -> bytes:
    """Reads the next line of a child's output; empty at the end, or if the output is not piped."""
    return await process.stdout.readline() if process.stdout is not None else b""


def _ports(count: int, first: int, saved: list[int] | None) -> list[tuple[int, int]]:
    """(client port, quorum port) of each node."""
    if first and not 0 < first <= PORT_MAX + 1 - count:
        raise ClusterFailed(f"ports {first} to {first + count - 1} are not within 1 to {PORT_MAX}")
    clients = list(range(first, first + count)) if first else chosen_ports(count)
    return list(zip(clients, quorum_ports(clients, saved), strict=True))
