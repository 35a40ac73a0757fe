"""Connections between nodes on the simulated network: what a killed, a silent and a cut-off node look like, and how soon."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node.node import Node
from barnabas.broker.peers.peer import Peer, probe
from barnabas.broker.peers.peer_error import PeerError, PeerErrorKind, ProbeResult
from barnabas.protocol.messages.metadata import MetadataRequest
from barnabas.testing.simulation.world import Ports, World
from tests.support.simulation.workload import Broker

pytestmark = pytest.mark.simulation

PORT = 9092


class Asker(Broker):
    """A node on machine "near" that asks another on machine "far"; the test reaches in."""

    def __init__(self, name: str, node_id: int) -> None:
        super().__init__(**{"node.id": str(node_id), "listeners": f"PLAINTEXT://{name}:{PORT}"})
        self.node: Node | None = None

    async def _serve(self, ports: Ports) -> None:
        self._ended = asyncio.get_running_loop().create_future()
        self.node = Node(
            BrokerConfig(self.settings),
            clock=ports.clock,
            rng=ports.rng,
            disk=ports.disk,
            network=ports.network,
            on_fatal=self._ended.set_exception,
        )
        await self.node.start()
        await self._ended


class Pair:
    """Both nodes, the connection between them, and what became of each request with the time it took."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.far = world.machine("far")
        self.log: list[str] = []
        self.asker = Asker("near", 1)

    async def start(self) -> None:
        self.far.start(Asker("far", 2))
        self.world.machine("near").start(self.asker)
        await asyncio.sleep(5)

    @property
    def peer(self) -> Peer:
        assert self.asker.node is not None
        return self.asker.node.peers.to("far", PORT, "test")

    async def ask(self, *, timeout_ms: int = 3_000) -> str:
        """What became of one request: its type or the kind of error, with the tenths of a second it took."""
        started = self.world.loop.time()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        node = self.asker.node
        assert node is not None
        node.reactor.soon(lambda: self.peer.send(MetadataRequest(topics=[]), answer.set_result, timeout_ms=timeout_ms))
        outcome = await answer
        kind = outcome.kind.name if isinstance(outcome, PeerError) else type(outcome).__name__
        return f"{kind} {self.world.loop.time() - started:.1f}"


async def lives_and_deaths(world: World) -> None:
    pair = Pair(world)
    await pair.start()
    lost: list[PeerErrorKind] = []
    pair.peer.add_lost_listener(lambda error: lost.append(error.kind))
    assert await pair.ask() == "MetadataResponse 0.0"

    pair.far.kill()
    await asyncio.sleep(0.1)
    assert lost == [PeerErrorKind.LOST], "a killed process closes its connections"
    assert await pair.ask() == "REFUSED 0.0"
    pair.far.start(Asker("far", 2))
    await asyncio.sleep(3)
    assert await pair.ask() == "MetadataResponse 0.0"

    pair.far.lose_power()
    assert await pair.ask() == "TIMED_OUT 3.0", "a machine without power says nothing"
    assert lost == [PeerErrorKind.LOST, PeerErrorKind.TIMED_OUT]
    assert await pair.ask() == "UNREACHABLE 2.0", "an attempt to connect is given up"
    pair.far.start(Asker("far", 2))
    await asyncio.sleep(3)
    assert await pair.ask() == "MetadataResponse 0.0"

    for source, target in (("near", "far"), ("far", "near")):
        world.network.cut(source, target, both_ways=False)
        assert await pair.ask(timeout_ms=1_000) == "TIMED_OUT 1.0", f"{source} cannot reach {target}"
        world.network.heal()
        await asyncio.sleep(3)
        assert await pair.ask() == "MetadataResponse 0.0"


async def probes(world: World) -> None:
    pair = Pair(world)
    await pair.start()
    near = world.machine("near").host
    assert await probe(near, "far", PORT, 200) is ProbeResult.ACCEPTED
    pair.far.kill()
    assert await probe(near, "far", PORT, 200) is ProbeResult.REFUSED
    pair.far.lose_power()
    assert await probe(near, "far", PORT, 200) is ProbeResult.UNREACHABLE
    pair.far.start(Asker("far", 2))
    await asyncio.sleep(3)
    world.network.cut("far", "near", both_ways=False)
    assert await probe(near, "far", PORT, 200) is ProbeResult.UNREACHABLE
    world.network.heal()


async def refusals(world: World) -> None:
    """A killed node refuses for a moment, then its address vanishes: that it refused is known."""
    pair = Pair(world)
    await pair.start()
    node = pair.asker.node
    assert node is not None
    peers = node.peers
    answers: list[Any] = []
    node.reactor.soon(
        lambda: peers.to("far", PORT, "named", node_id=2).send(
            MetadataRequest(topics=[]), answers.append, timeout_ms=3_000
        )
    )
    await asyncio.sleep(1)
    assert len(answers) == 1
    assert (peers.refused(2), peers.ended_ms(2)) == (False, None)
    killed_ms = node.reactor.clock.monotonic_ms()
    pair.far.kill()
    await asyncio.sleep(0.005)
    pair.far.lose_power()
    await asyncio.sleep(0.1)
    ended_ms = peers.ended_ms(2)
    assert peers.refused(2)
    assert ended_ms is not None
    assert killed_ms <= ended_ms <= killed_ms + 5
    await asyncio.sleep(2)
    assert (peers.refused(2), peers.ended_ms(2)) == (False, None)  # too long ago


async def faults(world: World) -> None:
    """Whatever happens meanwhile, every request has one outcome, within its time; responses keep the order of requests."""
    pair = Pair(world)
    await pair.start()
    node = pair.asker.node
    assert node is not None
    outcomes: list[list[Any]] = []
    deadlines: list[float] = []
    late: list[int] = []
    answered: list[int] = []

    def send() -> None:
        number = len(outcomes)
        timeout_ms = 50 + world.rng.randrange(1_500)
        deadlines.append(world.loop.time() + timeout_ms / 1000)
        outcomes.append([])

        def done(outcome: Any) -> None:
            outcomes[number].append(outcome)
            if world.loop.time() > deadlines[number] + 0.01:
                late.append(number)
            if not isinstance(outcome, PeerError):
                answered.append(number)

        pair.peer.send(MetadataRequest(topics=[]), done, timeout_ms=timeout_ms)
        assert not outcomes[number], "never from within send"

    async def sending() -> None:
        for _ in range(600):
            node.reactor.soon(send)
            await asyncio.sleep(world.rng.random() * 0.1)

    requests = asyncio.ensure_future(sending())
    while not requests.done():
        await asyncio.sleep(world.rng.random())
        match world.rng.randrange(6):
            case 0:
                world.network.cut("near", "far", both_ways=world.rng.random() < 0.5)
            case 1 | 2:
                world.network.heal()
            case 3:
                world.network.reset_links("near", "far")
            case 4:
                pair.far.kill()
            case _:
                pair.far.lose_power()
        if pair.far.process is None and world.rng.random() < 0.6:
            pair.far.start(Asker("far", 2))
    await asyncio.sleep(3)
    assert [len(each) for each in outcomes] == [1] * 600
    assert not late
    assert answered == sorted(answered)
    kinds = {outcome.kind.name for (outcome,) in outcomes if isinstance(outcome, PeerError)}
    assert len(kinds) >= 2, "the faults are worth the name"
    assert len(answered) > 50


@pytest.mark.parametrize("story", [lives_and_deaths, probes, refusals, faults])
@pytest.mark.parametrize("seed", range(3))
def test_what_nodes_see_of_each_other(story: Any, seed: int) -> None:
    digests = []
    for _ in range(2):
        with World(seed) as world:
            world.run(story(world), time_limit_s=300)
            digests.append(world.trace.digest)
    assert digests[0] == digests[1], "one seed, one history"
