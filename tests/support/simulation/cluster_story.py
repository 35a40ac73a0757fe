"""Tests on three started brokers in a simulated world, and what they use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from barnabas.broker.node.node import Node
from barnabas.client import Admin, Consumer, NewTopic, TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.testing.simulation.invariants import check_stable
from barnabas.testing.simulation.network import LATENCY
from barnabas.testing.simulation.world import Ports, World
from barnabas.testing.world.pipe import Flow
from tests.support.broker.nodes import Peer
from tests.support.simulation.brokers import make_brokers
from tests.support.simulation.cluster import ClusterBroker, Watch, bootstrap
from tests.support.simulation.workload import Broker, read_all


class Story:
    """A cluster in a world, with helpers for its test.

    Attributes:
        controllers: three machines of controllers, if the brokers have `process.roles=broker`.
    """

    def __init__(self, world: World, **settings: str) -> None:
        self.world = world
        self.brokers: dict[str, Broker] = make_brokers(**settings)
        self.controllers: dict[str, Broker] = {}
        if settings.get("process.roles") == "broker":
            voters = {number: f"controller-{number}" for number in (11, 12, 13)}
            quorum = ",".join(f"{number}@{name}:9093" for number, name in voters.items())
            for number, name in voters.items():
                controller = {"process.roles": "controller", "listeners": f"CONTROLLER://{name}:9093"}
                self.controllers[name] = ClusterBroker(number, **controller, **{"controller.quorum.voters": quorum})
            for name, broker in self.brokers.items():
                broker.settings |= {"listeners": f"PLAINTEXT://{name}:9092", "controller.quorum.voters": quorum}
        self.watch = Watch(world, self.brokers)

    def node(self, name: str) -> Node:
        node = self.brokers[name].node
        assert node is not None
        return node

    async def start(self) -> None:
        for name, node in {**self.controllers, **self.brokers}.items():
            self.world.machine(name).start(node)
        await self.until(lambda: all(broker.node is not None for broker in self.brokers.values()), 1)
        await self.until(lambda: len(self.node("broker-1").image.alive_brokers()) == 3, 10)

    async def until(self, condition: Callable[[], object], limit_s: float) -> float:
        """Waits until the condition holds; returns the seconds."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not condition():
            assert loop.time() - began < limit_s, f"not within {limit_s} s"
            await asyncio.sleep(0.01)
        return loop.time() - began

    def leader(self, topic: str, partition: int, seen_by: str = "broker-1") -> str:
        """The machine that leads a partition."""
        image = self.node(seen_by).image.partition(topic, partition)
        assert image is not None
        return f"broker-{image.leader}"


class UnwatchedStory(Story):
    """A story in which committed records may be lost: nothing compares logs with what was committed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.brokers = make_brokers()
        self.controllers = {}


def clients(ports: Ports) -> dict[str, Any]:
    return {"bootstrap_servers": bootstrap(), "clock": ports.clock, "rng": ports.rng, "network": ports.network}


def tell(
    seed: int, story: Callable[[Story], Coroutine[Any, Any, None]], flow: Flow = LATENCY, /, **settings: str
) -> None:
    with World(seed, flow=flow) as world:

        async def main() -> None:
            there = Story(world, **settings)
            await there.start()
            await story(there)

        world.run(main(), time_limit_s=3600)


async def connect(ports: Ports, name: str) -> Peer:
    """A connection to a broker."""
    reader = asyncio.StreamReader()
    transport, protocol = await ports.network.connect(lambda: asyncio.StreamReaderProtocol(reader), name, 9092)
    assert isinstance(protocol, asyncio.StreamReaderProtocol)
    return Peer(reader, asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop()))


async def create(ports: Ports, topic: str, partitions: int, replicas: int) -> None:
    async with Admin(**clients(ports)) as admin:
        await admin.create_topics([NewTopic(topic, partitions, replicas)])


async def committed(ports: Ports, topic: str, partitions: int) -> dict[int, list[bytes]]:
    return await read_all(ports, [TopicPartition(topic, p) for p in range(partitions)], "read_committed", bootstrap())


async def open_transactions(ports: Ports, topic: str, partitions: int) -> None:
    """Raises Violation if an open transaction holds back readers."""
    each = [TopicPartition(topic, p) for p in range(partitions)]
    async with (
        Consumer(isolation_level="read_committed", **clients(ports)) as stable,
        Consumer(**clients(ports)) as high,
    ):
        ends = await high.end_offsets(each)
        for tp, end in (await stable.end_offsets(each)).items():
            check_stable(end, ends[tp])


def batch(ports: Ports, producer_id: int, sequence: int, partition: int = 0, value: bytes = b"") -> ProduceRequest:
    records = [NewRecord(None, value or b"%d" % sequence, ports.clock.now_ms())]
    data = build_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=partition, records=bytes(data))])
    return ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[topic])


def code_of(answer: Any) -> ErrorCode:
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)
