"""Three brokers whose links to each other can be cut while clients still reach all of them.

Driven by: a test. Emits: a `Cluster` and its links. Two ways, the same interface:

`NamespaceLinks` gives each broker a network namespace of its own, with one cable to the clients and one to a switch
that joins the brokers. A cut pulls the cable from the switch: packets are dropped without an answer, as in a real
network. It needs Linux, root and the commands ip, unshare and nsenter. A namespace lives as long as its holder, a
process that ends by itself after HOLDER_SECONDS_MAX: nothing is left behind, whatever becomes of the test.

`ProxyLinks` stands in for it elsewhere: brokers reach each other through TCP proxies, which forward nothing while a
link is cut. There a broker that is cut off can still fetch from the others; nothing reaches it, and it reaches no
controller.
"""

from __future__ import annotations

import itertools
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from tests.support.processes.cluster import Cluster
from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker

HOLDER_SECONDS_MAX = 900  # far above the longest run
COMMAND_SECONDS_MAX = 20
COUNT = 3
_CLIENTS = 254  # last byte of the address at which the clients live
_networks = itertools.count(os.getpid())


class Links(Protocol):
    """The links between the brokers of a cluster."""

    def cut(self, node_id: int) -> None:
        """Cuts all links between this broker and the others, in both directions."""
        ...

    def heal(self, node_id: int) -> None:
        """Restores all links."""
        ...


def namespaces_missing() -> str:
    """Why network namespaces cannot be used here; empty if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    missing = [command for command in ("ip", "unshare", "nsenter", "sleep") if shutil.which(command) is None]
    if missing:
        return f"network namespaces need the commands {', '.join(missing)}"
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "name", "b0", "type", "bridge"],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )
    return "" if tried.returncode == 0 else f"no bridge in a network namespace: {tried.stderr.strip()}"


class NamespaceLinks:
    """Network namespaces of brokers 1 to `COUNT`, and a switch between them. Use it as a context."""

    def __init__(self) -> None:
        number = next(_networks)
        self.prefix = f"10.{64 + number // 250 % 128}.{number % 250}"
        self._tag = f"{number % 46_656:x}"
        self._holders: dict[int, subprocess.Popen[bytes]] = {}  # by node id; 0 holds the switch

    def __enter__(self) -> NamespaceLinks:
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for holder in self._holders.values():
            holder.kill()
            holder.wait(COMMAND_SECONDS_MAX)
        self._holders.clear()

    def host(self, node_id: int) -> str:
        """The address of a broker, for clients and for brokers."""
        return f"{self.prefix}.{node_id}"

    def inside(self, node_id: int) -> list[str]:
        """The prefix of a command line that runs it in the namespace of a broker, under its process id."""
        return ["nsenter", f"--net=/proc/{self._holders[node_id].pid}/ns/net"]

    def cut(self, node_id: int) -> None:
        self._run(*self.inside(0), "ip", "link", "set", f"p{node_id}", "down")

    def heal(self, node_id: int) -> None:
        self._run(*self.inside(0), "ip", "link", "set", f"p{node_id}", "up")

    def _build(self) -> None:
        for node_id in range(COUNT + 1):
            self._holders[node_id] = self._hold()
        switch = self._holders[0].pid
        self._run(*self.inside(0), "ip", "link", "add", "name", "b0", "type", "bridge")
        self._run(*self.inside(0), "ip", "link", "set", "b0", "up")
        for node_id in range(1, COUNT + 1):
            pid, host, cable = str(self._holders[node_id].pid), self.host(node_id), f"b{self._tag}-{node_id}"
            into = [*self.inside(node_id), "ip"]
            self._run("ip", "link", "add", cable, "type", "veth", "peer", "name", "clients", "netns", pid)
            self._run(
                *into, "link", "add", "brokers", "type", "veth", "peer", "name", f"p{node_id}", "netns", str(switch)
            )
            self._run(*self.inside(0), "ip", "link", "set", f"p{node_id}", "master", "b0", "up")
            self._run(*into, "link", "set", "lo", "up")
            self._run(*into, "address", "add", f"{host}/32", "dev", "lo")
            for name in ("clients", "brokers"):
                self._run(*into, "link", "set", name, "up")
            self._run(*into, "route", "add", f"{self.prefix}.{_CLIENTS}/32", "dev", "clients", "src", host)
            self._run(*into, "route", "add", f"{self.prefix}.0/24", "dev", "brokers", "src", host)
            self._run("ip", "address", "add", f"{self.prefix}.{_CLIENTS}", "peer", host, "dev", cable)
            self._run("ip", "link", "set", cable, "up")

    @staticmethod
    def _hold() -> subprocess.Popen[bytes]:
        """A process in a namespace of its own."""
        holder = subprocess.Popen(["unshare", "--net", "sleep", str(HOLDER_SECONDS_MAX)])
        own = Path("/proc/self/ns/net").readlink()
        deadline = time.monotonic() + COMMAND_SECONDS_MAX
        while Path(f"/proc/{holder.pid}/ns/net").readlink() == own:
            assert holder.poll() is None, "unshare made no network namespace"
            assert time.monotonic() < deadline, "unshare made no network namespace in time"
            time.sleep(0.01)
        return holder

    @staticmethod
    def _run(*command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


class _Cable:
    """A TCP proxy to a port on this machine. While it is cut it forwards nothing and closes nothing."""

    def __init__(self, port: int) -> None:
        self.passes = threading.Event()
        self.passes.set()
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._ended = False
        threading.Thread(target=self._accept, daemon=True, name="cable").start()

    def end(self) -> None:
        self._ended = True
        self.passes.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True, name="cable").start()

    def _carry(self, near: socket.socket) -> None:
        with near:
            self.passes.wait()
            try:
                far = socket.create_connection(("127.0.0.1", self._port), timeout=COMMAND_SECONDS_MAX)
            except OSError:
                return
            with far:
                other = {near: far, far: near}
                while not self._ended:
                    self.passes.wait()
                    for end in select.select(list(other), [], [], 0.05)[0]:
                        if not self.passes.is_set():
                            break
                        try:
                            data = end.recv(65_536)
                            other[end].sendall(data)
                        except OSError:
                            return
                        if not data:
                            return


class ProxyLinks:
    """Proxies before the listeners by which the brokers reach each other. Use it as a context."""

    def __init__(self) -> None:
        self.ports = {n: free_ports(3) for n in range(1, COUNT + 1)}  # for clients, for brokers, for controllers
        self._to: dict[int, _Cable] = {}  # from every other broker to this one
        self._controllers: dict[tuple[int, int], _Cable] = {}  # from one broker to another one's controller

    def __enter__(self) -> ProxyLinks:
        for n, (_, brokers, controllers) in self.ports.items():
            self._to[n] = _Cable(brokers)
            for other in self.ports:
                if other != n:
                    self._controllers[other, n] = _Cable(controllers)
        return self

    def __exit__(self, *_: object) -> None:
        for cable in [*self._to.values(), *self._controllers.values()]:
            cable.end()

    def cut(self, node_id: int) -> None:
        for cable in self._of(node_id):
            cable.passes.clear()

    def heal(self, node_id: int) -> None:
        for cable in self._of(node_id):
            cable.passes.set()

    def settings(self, node_id: int) -> list[str]:
        """What a broker listens on, and where it finds the others."""
        clients, brokers, controllers = self.ports[node_id]
        voters = {n: controllers if n == node_id else self._controllers[node_id, n].port for n in self.ports}
        listeners = f"PLAINTEXT://127.0.0.1:{clients},BROKERS://127.0.0.1:{brokers}"
        return [
            "cluster.id=behindproxiesbehindpro",  # else each node draws one from its own list of voters
            f"listeners={listeners},CONTROLLER://127.0.0.1:{controllers}",
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{clients},BROKERS://127.0.0.1:{self._to[node_id].port}",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,BROKERS:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name=BROKERS",
            "controller.quorum.voters=" + ",".join(f"{n}@127.0.0.1:{port}" for n, port in voters.items()),
        ]

    def _of(self, node_id: int) -> Iterator[_Cable]:
        yield self._to[node_id]
        yield from (cable for pair, cable in self._controllers.items() if node_id in pair)


@contextmanager
def cluster_with_links(folder: Path, *settings: str, namespaces: bool) -> Iterator[tuple[Cluster, Links]]:
    """A running cluster of brokers 1 to `COUNT`, and the links between them."""
    with ExitStack() as stack:
        links: NamespaceLinks | ProxyLinks
        if namespaces:
            links = stack.enter_context(NamespaceLinks())
            nodes = _in_namespaces(links, folder, settings)
        else:
            links = stack.enter_context(ProxyLinks())
            nodes = [
                ServedBroker(folder / f"node-{n}", *settings, *links.settings(n), node_id=n, listens=False)
                for n in range(1, COUNT + 1)
            ]
            for node in nodes:
                node.port = links.ports[node.node_id][0]
        yield stack.enter_context(Cluster(nodes)), links


def _in_namespaces(links: NamespaceLinks, folder: Path, settings: Sequence[str]) -> list[ServedBroker]:
    quorum = ",".join(f"{n}@{links.host(n)}:9093" for n in range(1, COUNT + 1))
    return [
        ServedBroker(
            folder / f"node-{n}",
            *settings,
            node_id=n,
            host=links.host(n),
            port=9092,
            arguments=("--controller-listen", f"{links.host(n)}:9093", "--quorum", quorum),
            inside=links.inside(n),
        )
        for n in range(1, COUNT + 1)
    ]
