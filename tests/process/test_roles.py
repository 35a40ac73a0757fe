"""Nodes of one role: brokers that do not vote, and controllers that serve no client. Each is stopped, killed and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from barnabas.client import Producer
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from tests.support.oracle.wire import Wire
from tests.support.processes.cluster import GROUP, Cluster
from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker  # not the kit: brokers and controllers apart
from tests.support.requests import request_of

pytestmark = pytest.mark.process

SILENCE_SECONDS = 14.0  # longer than the session of the brokers with the controllers (9 s)
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


@pytest.mark.parametrize("separate", [3], indirect=True, ids=["three controllers"])
def test_without_a_quorum_the_brokers_serve(separate: Separate) -> None:
    separate.start()
    separate.create_topic("alone", 1, replication_factor=1)
    separate.create_topic("kept", 1, replication_factor=2)
    separate.wait_until(lambda: separate.coordinator("g", GROUP) >= 0, "there is a coordinator")
    coordinator = separate.nodes[separate.coordinator("g", GROUP)].address
    leaders = {topic: separate.nodes[separate.leader(topic, 0)].address for topic in ("alone", "kept")}

    def produce(topic: str, acks: int) -> int:
        data = {"index": 0, "records": build_batch([NewRecord(None, b"v", int(time.time() * 1000))])}
        named = [{"name": topic, "partition_data": [data]}]
        with Wire(leaders[topic], timeout_s=30) as wire:
            answer = wire.call(request_of("Produce", acks=acks, timeout_ms=10_000, topic_data=named), 9)
        return int(answer.responses[0].partition_responses[0].error_code)

    def commit() -> tuple[int, int]:
        partition = {"partition_index": 0, "committed_offset": 1}
        request = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
        request["topics"] = [{"name": "alone", "partitions": [partition]}]
        groups = [{"group_id": "g", "topics": [{"name": "alone", "partition_indexes": [0]}]}]
        with Wire(coordinator, timeout_s=30) as wire:
            done = wire.call(request_of("OffsetCommit", **request), 8)
            read = wire.call(request_of("OffsetFetch", groups=groups), 8)
        return done.topics[0].partitions[0].error_code, read.groups[0].error_code

    async def transaction() -> None:
        addresses = ",".join(node.address for node in separate.nodes.values())
        async with Producer(bootstrap_servers=addresses, transactional_id="t") as producer, producer.transaction():
            for topic in leaders:
                await producer.send(topic, b"v")

    separate.wait_until(lambda: commit() == (0, 0), "the coordinator has loaded")
    asyncio.run(transaction())
    for controller in (101, 102):
        separate.controllers[controller].kill()
    began = time.monotonic()
    while time.monotonic() - began < SILENCE_SECONDS:
        time.sleep(1)
        codes = [produce(topic, acks) for topic in leaders for acks in (-1, 1)]
        assert (codes, commit()) == ([0, 0, 0, 0], (0, 0)), f"after {time.monotonic() - began:.0f} s"
        asyncio.run(transaction())
