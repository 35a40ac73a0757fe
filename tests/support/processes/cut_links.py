"""Three brokers whose links to each other can be cut while clients still reach all of them.

Driven by: a test. Emits: a `Cluster` and its links. Two ways, the same interface:

`NamespaceLinks` gives each broker a network namespace of its own, with one cable to the clients and one to a switch
that joins the brokers. A cut pulls the cable from the switch: packets are dropped without an answer, as in a real
network. It needs Linux, root and the commands ip, unshare and nsenter. A namespace lives as long as its holder, a
process that ends by itself after HOLDER_SECONDS_MAX: nothing is left behind, whatever becomes of the test.

`KitLinks` stands in for it elsewhere: the links of a cluster of the test kit, which the brokers themselves cut.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.support.processes.cluster import Cluster
from tests.support.processes.kit_cluster import KitCluster
from tests.support.processes.served import ServedBroker

HOLDER_SECONDS_MAX = 900  # far above the longest run
COMMAND_SECONDS_MAX = 60
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


class KitLinks:
    """The links of a cluster of the kit."""

    def __init__(self, cluster: KitCluster) -> None:
        self._kafka = cluster.kafka

    def cut(self, node_id: int) -> None:
        self._kafka.isolate(node_id)

    def heal(self, node_id: int) -> None:
        self._kafka.heal()


@contextmanager
def cluster_with_links(folder: Path, *settings: str, namespaces: bool) -> Iterator[tuple[Cluster, Links]]:
    """A running cluster of brokers 1 to `COUNT`, and the links between them."""
    if not namespaces:
        with KitCluster(*settings) as of_kit:
            yield of_kit, KitLinks(of_kit)
        return
    with NamespaceLinks() as links, Cluster(_in_namespaces(links, folder, settings)) as cluster:
        yield cluster, links


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
