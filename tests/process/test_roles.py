"""Nodes of one role: brokers that do not vote, and controllers that serve no client. Each is stopped, killed and started again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.oracle.wire import Wire
from tests.support.processes.cluster import Cluster
from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker  # not the kit: brokers and controllers apart

pytestmark = pytest.mark.process

STOP_SECONDS_MAX = 30.0  # of everything at once: far above the second that the last ones wait in vain


class Separate(Cluster):
    """Brokers 1 and 2, which clients know, and controllers from 101 on, which they do not."""

    def __init__(self, folder: Path, controllers: int) -> None:
        ids = range(101, 101 + controllers)
        ports = dict(zip(ids, free_ports(controllers), strict=True))
        quorum = ",".join(f"{voter}@127.0.0.1:{port}" for voter, port in ports.items())
        self.controllers = {
            voter: ServedBroker(
                folder / f"controller-{voter}",
                "process.roles=controller",
                node_id=voter,
                arguments=("--quorum", quorum),
                listens=False,
            )
            for voter in ids
        }
        super().__init__(
            [
                ServedBroker(
                    folder / f"broker-{n}",
                    "process.roles=broker",
                    "offsets.topic.replication.factor=2",
                    "transaction.state.log.replication.factor=2",
                    "transaction.state.log.min.isr=1",
                    node_id=n,
                    arguments=("--quorum", quorum),
                )
                for n in (1, 2)
            ]
        )

    def start(self) -> Separate:
        for controller in self.controllers.values():
            if not controller.alive:
                controller.launch()
        super().start()
        for controller in self.controllers.values():
            assert controller.alive, controller.log()
        return self

    @property
    def everybody(self) -> list[ServedBroker]:
        return [*self.controllers.values(), *(node for node in self.nodes.values() if isinstance(node, ServedBroker))]

    def end(self) -> None:
        """All at once, and soon."""
        began = time.monotonic()
        for process in self.everybody:
            os.kill(process.pid, signal.SIGTERM)
        for process in self.everybody:
            assert process.process is not None
            assert process.process.wait(60) == 0, process.log()
            assert "Traceback" not in process.log(), process.log()
        for node in self.nodes.values():
            assert (node.data / ".kafka_cleanshutdown").exists()
        assert time.monotonic() - began < STOP_SECONDS_MAX

    def write(self, value: bytes) -> None:
        """Produces with acks=all, from whoever leads, until it is acknowledged."""

        def acknowledged() -> bool:
            leader = self.leader("kept", 0)
            if leader < 0:
                return False
            with Wire(self.nodes[leader].address, timeout_s=30) as wire:
                return bool(wire.produce(9, "kept", 0, [value]).error_code == 0)

        self.wait_until(acknowledged, f"{value!r} is acknowledged", 60)

    def await_records(self, count: int) -> None:
        """At least so many can be read: one that was sent again may be there twice."""

        def there() -> bool:
            with Wire(self.nodes[self.leader("kept", 0)].address, timeout_s=30) as wire:
                return int(wire.fetch("kept", 0, 0).high_watermark) >= count

        self.wait_until(there, f"{count} records can be read", 60)


@pytest.fixture
def separate(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Separate]:
    cluster = Separate(tmp_path, request.param)
    try:
        yield cluster
    finally:
        for process in cluster.everybody:
            process.kill()


@pytest.mark.parametrize("separate", [3], indirect=True, ids=["three controllers"])
def test_brokers_and_controllers_apart(separate: Separate) -> None:
    """Whoever is started again, whichever way it ended, comes back into the cluster, and what was acknowledged is there."""
    separate.start()
    assert separate.brokers() == [1, 2]
    separate.create_topic("kept", 1, replication_factor=2, min__insync__replicas="1")
    separate.write(b"first")
    for kill in (True, False):
        leader = separate.controller()
        assert leader in separate.controllers
        process = separate.controllers[leader]
        if kill:
            process.kill()
        else:
            assert process.stop() == 0, process.log()
        separate.write(b"without the controller")  # brokers go on while nobody decides
        process.launch()
        separate.wait_until(lambda: separate.controller() in separate.controllers, "there is a controller", 60)
        broker = separate.leader("kept", 0)
        if kill:
            separate.kill(broker)
        else:
            separate.stop(broker)
        separate.wait_until(partial(separate.has_new_leader, "kept", 0, broker), "another leads", 60)
        separate.write(b"without a broker")
        separate.start_node(broker)
        separate.wait_in_sync("kept")
    separate.create_topic("later", 2, replication_factor=2)
    separate.await_records(5)
    separate.end()


@pytest.mark.parametrize("separate", [1], indirect=True, ids=["one controller"])
def test_all_of_one_role_are_killed(separate: Separate) -> None:
    separate.start()
    separate.create_topic("kept", 1, replication_factor=2, min__insync__replicas="1")
    separate.write(b"first")
    for process in separate.controllers.values():
        process.kill()
    separate.write(b"without any controller")
    for process in separate.controllers.values():
        process.launch()
    separate.wait_until(lambda: separate.controller() in separate.controllers, "there is a controller", 60)
    separate.kill(*separate.nodes)
    separate.start()
    separate.wait_in_sync("kept")
    separate.await_records(2)
    separate.end()
