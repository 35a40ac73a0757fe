"""What clients learn right after a kill, on the simulated network: answers that wait for the next leader, reconnections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from barnabas.broker.handlers.failover_purgatory import HELD_MS_MAX
from barnabas.client import Consumer, Producer
from barnabas.client.net.cluster import NetworkClient, Purpose
from barnabas.client.net.core.connection_config import ConnectionConfig
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.testing.simulation.world import Ports, World
from tests.support.simulation.trio import FAILOVER_S, IDS, Trio, simulate
from tests.support.simulation.workload import BOOTSTRAP, BROKER, Broker

pytestmark = pytest.mark.simulation

ABOUT_T = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
KEYS = [f"group-{number}" for number in range(8)]  # among several coordinators
COORDINATORS = FindCoordinatorRequest(key_type=0, coordinator_keys=KEYS)
HELD_S = HELD_MS_MAX / 1000
RECONNECT_S = 0.1  # between the first and the last connection to one broker


async def with_client(trio: Trio, node_id: int, program: Callable[[NetworkClient], Awaitable[None]]) -> None:
    """Runs a program on another machine, with a client that is connected to one node."""

    async def run(ports: Ports) -> None:
        client = NetworkClient(
            ConnectionConfig(bootstrap_servers=f"n{node_id}:9092"), ports.clock, ports.rng, ports.network
        )
        await client.start()
        await client.ready_connection(node_id)
        await program(client)
        await client.close()

    await trio.world.machine("client").start(run)


@pytest.mark.parametrize("whose", ["a broker", "the controller"])
@pytest.mark.parametrize("seed", range(5))
def test_who_asks_right_after_a_kill_is_told_of_the_next_leaders(seed: int, whose: str) -> None:
    async def story(trio: Trio) -> None:
        loop = asyncio.get_running_loop()
        await trio.create(trio.controller, "t", 6)
        victim = trio.controller if whose == "the controller" else trio.others(trio.controller)[0]
        witness = trio.others(victim)[seed % 2]
        await trio.until(lambda: len(trio.partitions(witness)) == 6, 1)

        async def program(client: NetworkClient) -> None:
            found: FindCoordinatorResponse = await client.request(COORDINATORS, node_id=witness)  # makes the topic
            await asyncio.sleep(1)
            found = await client.request(COORDINATORS, node_id=witness)
            assert victim in {each.node_id for each in found.coordinators}
            trio.processes[victim].kill()
            began = loop.time()
            answer: MetadataResponse = await client.request(ABOUT_T, node_id=witness)
            leaders = {part.leader_id for part in answer.topics[0].partitions}
            assert leaders == set(trio.others(victim))
            found = await client.request(COORDINATORS, node_id=witness)
            assert {each.error_code for each in found.coordinators} == {ErrorCode.NONE}
            assert {each.node_id for each in found.coordinators} == set(trio.others(victim))
            assert loop.time() - began < min(FAILOVER_S, HELD_S)

        await with_client(trio, witness, program)

    simulate(seed, story, **{"offsets.topic.num.partitions": "8"})


def test_answers_about_a_broker_that_keeps_its_session_are_held_for_a_bounded_time() -> None:
    async def story(trio: Trio) -> None:
        loop = asyncio.get_running_loop()
        await trio.create(trio.controller, "t", 6)
        victim, witness = trio.others(trio.controller)

        async def program(client: NetworkClient) -> None:
            await client.request(COORDINATORS, node_id=witness)
            await asyncio.sleep(1)
            trio.processes[victim].machine.pause()
            trio.world.network.reset_links(f"n{victim}", f"n{witness}")
            for request in (ABOUT_T, COORDINATORS):
                began = loop.time()
                answer: Any = await client.request(request, node_id=witness)
                assert HELD_S <= loop.time() - began < HELD_S + 0.1
                if request is ABOUT_T:
                    codes = {part.error_code for part in answer.topics[0].partitions}
                    assert codes == {ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE}
            await asyncio.sleep(1)
            began = loop.time()
            await client.request(ABOUT_T, node_id=witness)
            assert loop.time() - began < 0.1, "a broker that has been away for long holds nothing up"

        await with_client(trio, witness, program)

    simulate(3, story, **{"offsets.topic.num.partitions": "8"})


def test_answers_about_all_topics_and_about_other_leaders_are_not_held() -> None:
    async def story(trio: Trio) -> None:
        loop = asyncio.get_running_loop()
        victim, witness = trio.others(trio.controller)
        await trio.create(trio.controller, "t", 6)
        await asyncio.sleep(1)

        async def program(client: NetworkClient) -> None:
            trio.processes[victim].machine.pause()
            trio.world.network.reset_links(f"n{victim}", f"n{witness}")
            await asyncio.sleep(0.1)
            began = loop.time()
            answer: MetadataResponse = await client.request(MetadataRequest(topics=None), node_id=witness)
            assert -1 in {part.leader_id for topic in answer.topics for part in topic.partitions}
            other = MetadataRequest(topics=[MetadataRequestTopic(name="u")], allow_auto_topic_creation=False)
            await client.request(other, node_id=witness)
            assert loop.time() - began < 0.1

        await with_client(trio, witness, program)

    simulate(4, story)


@pytest.mark.parametrize("seed", range(5))
def test_a_client_reconnects_at_once_to_brokers_that_are_back(seed: int) -> None:
    """After a long outage pauses are long; one connection that is made, and an election, end those to the same broker."""

    async def story(trio: Trio) -> None:
        loop = asyncio.get_running_loop()
        await trio.create(trio.controller, "t", 6)

        async def program(client: NetworkClient) -> None:
            client.add_topics(["t"])
            purposes = (Purpose.GENERAL, Purpose.FETCH, Purpose.COORDINATOR)
            first: dict[int, float] = {}
            last: dict[int, float] = {}

            def connect() -> bool:
                ready = {node_id: [client.connection(node_id, each) for each in purposes] for node_id in IDS}
                for node_id, connections in ready.items():
                    if any(connections):
                        first.setdefault(node_id, loop.time())
                    if all(connections):
                        last.setdefault(node_id, loop.time())
                return all(all(connections) for connections in ready.values())

            await trio.until(connect, 2)
            for process in trio.processes.values():
                process.kill()
            await asyncio.sleep(0.1)
            first.clear()
            last.clear()
            began = loop.time()
            while loop.time() < began + 4:
                assert not connect()
                await asyncio.sleep(0.001)
            for process in trio.processes.values():
                process.start()
            await trio.until(lambda: all(process.serves for process in trio.processes.values()), 20)
            await trio.until(connect, 3)
            assert all(last[node_id] - first[node_id] < RECONNECT_S for node_id in IDS)

        await with_client(trio, 1, program)

    simulate(seed, story)


def test_a_member_returns_with_its_id_after_an_outage_longer_than_its_session() -> None:
    """As a new member it would wait until the coordinator, which has restarted, removes the old one."""

    async def program(ports: Ports) -> None:
        options: dict[str, Any] = {"clock": ports.clock, "rng": ports.rng, "network": ports.network}
        options["bootstrap_servers"] = BOOTSTRAP
        async with (
            Producer(**options) as producer,
            Consumer("t", group_id="g", auto_offset_reset="earliest", session_timeout_ms=6_000, **options) as consumer,
        ):
            for number in range(2):
                await (await producer.send("t", b"%d" % number))
                while (await consumer.getone()).value != b"%d" % number:
                    pass  # delivered again, as it was not committed
                if number == 0:
                    world.machine(BROKER).kill()
                    await asyncio.sleep(9)
                    world.machine(BROKER).start(Broker())
                    began = ports.clock.monotonic_ms()
            assert ports.clock.monotonic_ms() - began < 4_000

    async def main() -> None:
        world.machine(BROKER).start(Broker())
        await world.machine("client").start(program)

    with World(1) as world:
        world.run(main(), time_limit_s=60)
