"""Three controllers and brokers in a simulated world, asked by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.image.image import BrokerImage, PartitionImage
from barnabas.broker.node.node import Node
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC
from barnabas.testing.simulation.world import Ports, World
from tests.support.requests import request_of

P = ParamSpec("P")
R = TypeVar("R")

IDS = (1, 2, 3)
QUORUM = ",".join(f"{each}@n{each}:9093" for each in IDS)
SESSION_S = 9.0  # broker.session.timeout.ms: a silent broker is fenced after it
FAILOVER_S = 1.0  # from a kill to a new leader in the metadata log


class Process:
    """One node as a process of a machine: it may be killed and started again."""

    def __init__(self, world: World, node_id: int, **settings: str) -> None:
        self.world = world
        self.machine = world.machine(f"n{node_id}")
        self.settings = {
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://n{node_id}:9092,CONTROLLER://n{node_id}:9093",
            "controller.quorum.voters": QUORUM,
            "log.dirs": "data",
            **settings,
        }
        self.node: Node
        self.serves = False

    def start(self) -> None:
        self.serves = False
        self.machine.start(self.run)

    def kill(self) -> None:
        self.machine.kill()

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls a function of the node in its process: timers that it sets are the node's, and stop while it is paused."""
        process = self.machine.process
        assert process is not None, f"{self.machine.name} does not run"
        return process.context.run(function, *args, **kwargs)

    async def run(self, ports: Ports) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.node = Node(
            BrokerConfig(self.settings),
            clock=ports.clock,
            rng=ports.rng,
            disk=ports.disk,
            network=ports.network,
            on_fatal=lambda error: None if ended.done() else ended.set_exception(error),
        )
        await self.node.start()
        self.serves = True
        await ended

    @property
    def active(self) -> bool:
        controller = self.node.quorum_controller
        return self.machine.process is not None and controller is not None and controller.active


class Trio:
    """The cluster."""

    def __init__(self, world: World, **settings: str) -> None:
        self.world = world
        self.processes = {each: Process(world, each, **settings) for each in IDS}

    async def start(self) -> None:
        for process in self.processes.values():
            process.start()
        await self.until(lambda: all(process.serves for process in self.processes.values()), 5)
        everywhere = [process.node for process in self.processes.values()]
        await self.until(lambda: all(len(node.image.alive_brokers()) == 3 for node in everywhere), 1)

    async def until(self, condition: Callable[[], object], limit_s: float) -> float:
        """Waits in steps of a millisecond; returns how long it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not condition():
            if loop.time() - began > limit_s:
                raise AssertionError(f"not within {limit_s} s")
            await asyncio.sleep(0.001)
        return loop.time() - began

    @property
    def controller(self) -> int:
        (found,) = [each for each, process in self.processes.items() if process.active]
        return found

    def others(self, node_id: int) -> list[int]:
        return [each for each in IDS if each != node_id]

    def node(self, node_id: int) -> Node:
        return self.processes[node_id].node

    async def ask(self, node_id: int, request: Any, timeout_ms: int = 5_000) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        controller = self.node(node_id).controller
        self.processes[node_id].call(controller.request, request, answer.set_result, timeout_ms=timeout_ms)
        return await answer

    async def create(self, node_id: int, name: str, partitions: int = 3, replicas: int = 3) -> Any:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": replicas}
        return await self.ask(node_id, request_of("CreateTopics", topics=[topic]))

    def broker(self, seen_by: int, broker_id: int) -> BrokerImage:
        return self.node(seen_by).image.brokers[broker_id]

    def partitions(self, seen_by: int) -> list[PartitionImage]:
        return [partition for _, _, partition in self.node(seen_by).image.partitions()]


def simulate(seed: int, story: Callable[[Trio], Coroutine[Any, Any, None]], **settings: str) -> None:
    with World(seed) as world:
        trio = Trio(world, **settings)

        async def main() -> None:
            await trio.start()
            await story(trio)

        world.run(main(), time_limit_s=120)


STATE_TOPICS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}


async def coordinator(trio: Trio, topic: str) -> Node:
    """The node that leads the topic's one partition, once it may serve it."""
    made: list[Any] = []
    trio.processes[1].call(trio.node(1).controller.ensure_topic, topic, made.append)
    await trio.until(lambda: made, 5)
    assert made == [None]
    leader = trio.partitions(1)[-1].leader
    await trio.until(lambda: trio.node(leader).replicas.get(topic, 0) is not None, 5)
    node = trio.node(leader)
    host = node.groups.host if topic == GROUP_METADATA_TOPIC else node.transactions.host
    await trio.until(host.active_shards, 5)
    return node
