"""A cluster of the test kit, in mode "process" unless an option says otherwise, with the questions that tests ask of every cluster.

Tests use it where the kit can start what they need. `barnabas_nodes` (cluster.py) stays for other main programs, network namespaces,
roles of their own, and the benchmarks that also start Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

import barnabas.testing
from tests.support.processes.cluster import Cluster, traceback_of

# Defaults of a broker in place of those of the kit: tests choose replicas themselves.
BROKERS_OWN = {"default.replication.factor": "1", "min.insync.replicas": "1"}
START_SECONDS_MAX = 120.0  # far above what it takes: two cores may be busy with much else


class KitNode:
    """One broker of the kit as a `Node`."""

    def __init__(self, kafka: barnabas.testing.Cluster, node_id: int) -> None:
        self.kafka = kafka
        self.node_id = node_id

    @property
    def address(self) -> str:
        return self.kafka.broker(self.node_id).address

    @property
    def port(self) -> int:
        return self.kafka.broker(self.node_id).port

    @property
    def data(self) -> Path:
        return self.kafka.broker(self.node_id).directory

    @property
    def pid(self) -> int:
        pid = self.kafka.broker(self.node_id).pid
        assert pid is not None, f"broker {self.node_id} does not run"
        return pid

    @property
    def alive(self) -> bool:
        return self.kafka.broker(self.node_id).state != "down"

    def launch(self) -> None:
        self.kafka.restart(self.node_id, wait=False)

    def await_ready(self) -> None:
        self.kafka.wait_until_ready(self.node_id)

    def stop(self, timeout: float = START_SECONDS_MAX) -> int:
        self.kafka.stop_broker(self.node_id)
        return 0

    def kill(self) -> None:
        if self.alive:
            self.kafka.kill(self.node_id)

    def pause(self) -> None:
        self.kafka.pause(self.node_id)

    def resume(self) -> None:
        self.kafka.resume(self.node_id)

    def log(self) -> str:
        return "" if self.kafka.mode == "thread" else self.kafka.broker(self.node_id).log


class KitCluster(Cluster):
    """Brokers 1 to 3, started by `with`; settings as "key=value".

    Args:
        options: further ones of the kit's `Cluster`.
    """

    def __init__(self, *settings: str, **options: Any) -> None:
        config = {**BROKERS_OWN, **dict(setting.split("=", 1) for setting in settings)}
        self.kafka = barnabas.testing.Cluster(
            config=config, timeout=START_SECONDS_MAX, **{"mode": "process", **options}
        )
        self._started = False
        super().__init__([KitNode(self.kafka, node_id) for node_id in (1, 2, 3)])

    def start(self) -> Self:
        """Starts every node that does not run, all at once; returns when each is ready and listed."""
        if not self._started:
            self.kafka.start()
            self._started = True
        else:
            self.kafka.restart(*(each.id for each in self.kafka.brokers if each.state == "down"))
        return self

    def kill(self, *node_ids: int) -> None:
        """SIGKILL, one right after the other."""
        for node_id in node_ids:
            self.kafka.kill(node_id)
            self.paused.pop(node_id, None)

    def stop(self, node_id: int) -> None:
        """A clean end, with leaders moved away first."""
        self.kafka.stop_broker(node_id)

    def end(self) -> None:
        """Ends all nodes; none may have logged a traceback or stopped by itself."""
        logs = {node_id: node.log() for node_id, node in self.nodes.items()}
        self.kafka.stop()
        failures = [
            f"node {node_id} failed inside:\n{traceback_of(log)}" for node_id, log in logs.items() if "Traceback" in log
        ]
        assert not failures, "\n".join(failures)

    def kill_all(self) -> None:
        """Ends whatever still runs."""
        self.kafka.stop()


StartCluster = Callable[..., Cluster]


@pytest.fixture
def start_cluster() -> Iterator[StartCluster]:
    """Starts three nodes: `start_cluster("key=value", …)`."""
    with ExitStack() as started:
        yield lambda *settings: started.enter_context(KitCluster(*settings))


@pytest.fixture
def cluster(start_cluster: StartCluster) -> Cluster:
    """Three nodes that serve."""
    return start_cluster()
