"""A cluster with one process a node, of Barnabas or of a real Kafka; nodes are killed, frozen and started again.

One harness for both, so that every workload and every figure is held against the oracle first. Questions (who leads,
who is in sync, who coordinates) go over plain sockets to whichever node answers.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from tests.support.oracle.real_kafka import KAFKA_UP
from tests.support.oracle.wire import Wire
from tests.support.processes.attempts import attempts
from tests.support.processes.ports import free_port_block, free_ports
from tests.support.processes.process_tree import alive
from tests.support.processes.served import ServedBroker
from tests.support.requests import request_of

T = TypeVar("T")

GROUP, TRANSACTION = 0, 1  # what a coordinator is looked for, by FindCoordinator
ASK_SECONDS_MAX = 3.0  # of one node, before another one is asked; beyond what the request itself says that it may take
READY_SECONDS_MAX = 60.0


class Node(Protocol):
    """One broker process and its data."""

    node_id: int

    @property
    def data(self) -> Path: ...
    @property
    def port(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def alive(self) -> bool: ...
    def launch(self) -> None: ...
    def await_ready(self) -> Any: ...
    def stop(self, timeout: float = ...) -> int: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def log(self) -> str: ...


def barnabas_nodes(
    folder: Path,
    *settings: str,
    count: int = 3,
    module: str = "barnabas.cli.main",
    for_node: Mapping[int, Sequence[str]] | None = None,
) -> list[ServedBroker]:
    """Nodes 1 to `count`, each broker and controller, not started yet.

    Args:
        settings: "key=value" for all of them; `for_node` has more, by node id.
    """
    ports = free_ports(2 * count)
    quorum = ",".join(f"{n}@127.0.0.1:{ports[count + n - 1]}" for n in range(1, count + 1))
    return [
        ServedBroker(
            folder / f"node-{n}",
            *settings,
            *(for_node or {}).get(n, ()),
            node_id=n,
            port=ports[n - 1],
            module=module,
            arguments=("--controller-listen", f"127.0.0.1:{ports[count + n - 1]}", "--quorum", quorum),
        )
        for n in range(1, count + 1)
    ]


class KafkaNode:
    """A node that kafka-up has made: the same command again over the same directory."""

    def __init__(self, folder: Path, node_id: int, port: int) -> None:
        self.folder = folder
        self.node_id = node_id
        self.port = port
        self.data = folder / "data"
        self._child: subprocess.Popen[bytes] | None = None
        self._pid = int((folder / "pid").read_text())
        self._command = Path(f"/proc/{self._pid}/cmdline").read_text().rstrip("\0").split("\0")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return alive(self._pid)

    def launch(self) -> None:
        with (self.folder / "server.log").open("a") as output:
            self._child = subprocess.Popen(self._command, stdout=output, stderr=output, start_new_session=True)
        self._pid = self._child.pid
        (self.folder / "pid").write_text(f"{self._pid}\n")  # for `kafka-up stop`

    def await_ready(self) -> None:
        for _ in attempts(f"Kafka listens on {self.address}"):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self.alive, f"Kafka died: {self.log()[-2000:]}"

    def stop(self, timeout: float = 60.0) -> int:
        os.kill(self._pid, signal.SIGTERM)
        self._wait_for_end()
        return 0

    def kill(self) -> None:
        if self.alive:
            os.kill(self._pid, signal.SIGKILL)
            self._wait_for_end()

    def pause(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    def _wait_for_end(self) -> None:
        for _ in attempts(f"Kafka {self.node_id} ends"):
            if not self.alive:
                return


def kafka_nodes(folder: Path, *settings: str, count: int = 3) -> list[KafkaNode]:
    """A real Kafka's nodes, formatted and running."""
    base = free_port_block(10 * (count - 1) + 2)
    command = ["bash", str(KAFKA_UP), "start", "--nodes", str(count), "--port", str(base), "--dir", str(folder)]
    for setting in settings:
        command += ["--set", setting]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "kafka-up.log").open("w") as output:  # not a pipe: the nodes inherit it
        subprocess.run(command, stdout=output, stderr=output, timeout=300, check=True)
    return [KafkaNode(folder / f"node-{n}", n, base + 10 * (n - 1)) for n in range(1, count + 1)]


class Cluster:
    """Nodes under test, by node id."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes: dict[int, Node] = {node.node_id: node for node in nodes}
        self.paused: dict[int, None] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    # -- life

    def __enter__(self) -> Self:
        """Starts the nodes; if this fails, none is left running."""
        try:
            self.start()
        except BaseException:
            self.kill_all()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the nodes (`end`: none may have logged a traceback); kills them if that fails."""
        try:
            self.end()
        finally:
            self.kill_all()

    def kill_all(self) -> None:
        """SIGKILL to whatever still runs."""
        for node in self.nodes.values():
            node.kill()

    def start(self) -> Self:
        """Starts every node that does not run, all at once; returns when each is ready and listed."""
        launched = [node for node in self.nodes.values() if not node.alive]
        for node in launched:
            node.launch()
        for node in launched:
            node.await_ready()
        self.wait_until(lambda: len(self.brokers()) == len(self.nodes), "all brokers are listed")
        return self

    def start_node(self, node_id: int) -> None:
        """Starts one node again; returns when it is ready."""
        self.nodes[node_id].launch()
        self.nodes[node_id].await_ready()

    def kill(self, *node_ids: int) -> None:
        """SIGKILL, all of them before any is waited for."""
        for node_id in node_ids:
            os.kill(self.nodes[node_id].pid, signal.SIGKILL)
        for node_id in node_ids:
            self.nodes[node_id].kill()
            self.paused.pop(node_id, None)

    def stop(self, node_id: int) -> None:
        """SIGTERM: a clean end, with leaders moved away first."""
        node = self.nodes[node_id]
        assert node.stop(60) == 0, node.log()[-3000:]

    def pause(self, node_id: int) -> None:
        """SIGSTOP."""
        self.nodes[node_id].pause()
        self.paused[node_id] = None

    def resume(self, node_id: int) -> None:
        """SIGCONT."""
        self.nodes[node_id].resume()
        self.paused.pop(node_id, None)

    def end(self) -> None:
        """Stops all running nodes; none may have logged a traceback."""
        for node_id in list(self.paused):
            self.resume(node_id)
        living = [node for node in self.nodes.values() if node.alive]
        for node in living:
            os.kill(node.pid, signal.SIGTERM)
        failures = []
        for node in living:
            try:
                code = node.stop(60)
            except (ProcessLookupError, subprocess.TimeoutExpired, AssertionError) as error:
                failures.append(f"node {node.node_id}: {error!r}")
            else:
                if code:
                    failures.append(f"node {node.node_id} ended with {code}")
            node.kill()
        for node in self.nodes.values():
            if isinstance(node, ServedBroker) and "Traceback" in node.log():
                failures.append(f"node {node.node_id} failed inside:\n{traceback_of(node.log())}")
        assert not failures, "\n".join(failures)

    # -- questions

    def serving(self) -> list[int]:
        """Ids of the nodes that run and are not frozen."""
        return [node.node_id for node in self.nodes.values() if node.alive and node.node_id not in self.paused]

    def ask(self, request: Any, version: int, *, of: int | None = None, seconds: float = ASK_SECONDS_MAX) -> Any:
        """The answer of node `of`, or of the first node that answers within the time. Raises OSError, also for −1: no leader is known.

        A change also has its own timeout: a second node that is asked too early would answer that the change exists.
        """
        timeout_s = seconds + getattr(request, "timeout_ms", 0) / 1000
        problem: OSError = ConnectionRefusedError("no node runs")
        for node_id in self.serving() if of is None else {of} & self.nodes.keys():
            try:
                with Wire(self.nodes[node_id].address, timeout_s=timeout_s) as wire:
                    return wire.call(request, version)
            except OSError as error:
                problem = error
        raise problem

    def brokers(self) -> list[int]:
        """Ids of the brokers that serve, as the first node that answers knows them."""
        try:
            return sorted(broker.broker_id for broker in self.ask(request_of("DescribeCluster"), 0).brokers)
        except OSError:
            return []

    def partitions(self, topic: str, *, of: int | None = None) -> list[Any]:
        """Metadata of the topic's partitions, in order; empty while there is no such topic."""
        request = request_of("Metadata", topics=[{"name": topic}], allow_auto_topic_creation=False)
        described = self.ask(request, 9, of=of).topics[0]
        return sorted(described.partitions, key=lambda part: part.partition_index) if not described.error_code else []

    def leader(self, topic: str, partition: int) -> int:
        """Node id of the leader, −1 while there is none. One that serves knows of it itself: it may be written to."""
        deadline = time.monotonic() + ASK_SECONDS_MAX
        while True:
            leader = int(self.partitions(topic)[partition].leader_id)
            if leader not in self.serving() or self._leads(leader, topic, partition):
                return leader
            if time.monotonic() > deadline:
                return -1
            time.sleep(0.01)

    def _leads(self, node_id: int, topic: str, partition: int) -> bool:
        """Whether the broker serves the partition as its leader."""
        try:
            parts = self.partitions(topic, of=node_id)
        except OSError:
            return False
        return partition < len(parts) and parts[partition].leader_id == node_id

    def coordinator(self, key: str, key_type: int = TRANSACTION) -> int:
        """Node id of the coordinator of a transactional id or group, −1 while there is none."""
        answer = self.ask(request_of("FindCoordinator", key=key, key_type=key_type), 3)
        return -1 if answer.error_code else int(answer.node_id)

    def controller(self) -> int:
        """Node id of the active controller: the leader of the metadata quorum; −1 while there is none."""
        topic = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
        try:
            answer = self.ask(request_of("DescribeQuorum", topics=[topic]), 1)
        except OSError:
            return -1
        if answer.error_code or answer.topics[0].partitions[0].error_code:
            return -1
        return int(answer.topics[0].partitions[0].leader_id)

    # -- waiting

    def has_new_leader(self, topic: str, partition: int, old: int) -> bool:
        """Whether a node other than `old` leads the partition."""
        return self.leader(topic, partition) not in (-1, old)

    def wait_until(self, reached: Callable[[], bool], what: str, seconds: float = READY_SECONDS_MAX) -> float:
        """Asks until the condition holds; returns the seconds."""
        began = time.monotonic()
        while True:
            try:
                if reached():
                    return time.monotonic() - began
            except OSError:
                pass  # it is asked again
            assert time.monotonic() < began + seconds, f"not within {seconds} s: {what}"
            time.sleep(0.05)

    def wait_for(
        self, value: Callable[[], T], good: Callable[[T], bool], what: str, seconds: float = READY_SECONDS_MAX
    ) -> T:
        """Asks until the value is good; returns it."""
        found: list[T] = []

        def reached() -> bool:
            found[:] = [value()]
            return good(found[0])

        self.wait_until(reached, what, seconds)
        return found[0]

    def wait_in_sync(self, *topics: str, seconds: float = READY_SECONDS_MAX) -> float:
        """Waits until every serving node reports a leader and all replicas in sync for each partition of the topics."""

        def in_sync() -> bool:
            for node_id, topic in itertools.product(self.serving(), topics):
                parts = self.partitions(topic, of=node_id)
                if not parts or any(part.leader_id < 0 for part in parts):
                    return False
                if any(sorted(part.isr_nodes) != sorted(part.replica_nodes) for part in parts):
                    return False
            return True

        return self.wait_until(in_sync, f"all replicas of {topics} are in sync", seconds)

    def create_topic(self, name: str, partitions: int, *, replication_factor: int = 3, **configs: str) -> None:
        """Creates a topic and waits until all its replicas are in sync. Names of configs have "__" for dots."""
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "configs": [{"name": k.replace("__", "."), "value": v} for k, v in configs.items()],
        }
        answer = self.ask(request_of("CreateTopics", topics=[topic], timeout_ms=30_000), 5)
        assert answer.topics[0].error_code == 0, answer
        self.wait_in_sync(name)


def traceback_of(log: str) -> str:
    """The first traceback of a log, with the lines before it."""
    at = log.find("Traceback")
    return log[max(0, at - 500) : at + 3000]
