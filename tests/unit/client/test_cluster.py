"""The client's way to brokers that die, keep silent, or do not know yet who took over; with scripted brokers, on virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from barnabas.client.errors import BrokerUnreachable
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.core.connection_config import ConnectionConfig
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from barnabas.protocol.schema import encode
from barnabas.testing.simulation.world import Ports, World

METADATA, FIND_COORDINATOR, API_VERSIONS = 3, 10, 18
PORT = 9092
UNANSWERED_S = 10  # longer than a client waits before it asks who has taken over
HELD_MS = 60_000
SPOKEN = {METADATA: 7, FIND_COORDINATOR: 2, API_VERSIONS: 4}  # the one version of each


class Connection(asyncio.Protocol):
    """One connection to a broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data
        while len(self.received) >= 4 and len(self.received) >= (end := 4 + int.from_bytes(self.received[:4], "big")):
            frame = bytes(self.received[4:end])
            del self.received[:end]
            answer = self.broker.answer(frame)
            if answer is not None:
                self.transport.write(len(answer).to_bytes(4, "big") + answer)


class Broker:
    """Answers what its group says; may keep silent, and may be killed."""

    def __init__(self, group: Brokers, node_id: int) -> None:
        self.group = group
        self.node_id = node_id
        self.name = f"broker-{node_id}"
        self.silent = False
        self.asked: list[int] = []

    async def serve(self, ports: Ports) -> None:
        await ports.network.listen(lambda: Connection(self), "0.0.0.0", PORT)
        await asyncio.Event().wait()

    def kill(self) -> None:
        self.group.world.machine(self.name).kill()

    def answer(self, frame: bytes) -> bytes | None:
        key = int.from_bytes(frame[:2], "big")
        self.asked.append(key)
        if self.silent and key != API_VERSIONS:
            return None
        return frame[4:8] + encode(self.group.answer(key, self.node_id), SPOKEN[key])


class Brokers:
    """Two brokers; who leads and who coordinates is the test's to say."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.all = {node_id: Broker(self, node_id) for node_id in (1, 2)}
        self.leader = 1
        self.epoch = 0
        self.coordinator = 1
        self.cut_off: dict[int, None] = {}  # brokers that know of no election

    def answer(self, key: int, node_id: int) -> Any:
        if key == API_VERSIONS:
            spoken = [ApiVersion(api_key=k, min_version=v, max_version=v) for k, v in SPOKEN.items()]
            return ApiVersionsResponse(api_keys=spoken)
        if key == FIND_COORDINATOR:
            host = self.all[self.coordinator].name
            return FindCoordinatorResponse(node_id=self.coordinator, host=host, port=PORT)
        leader, epoch = (1, 0) if node_id in self.cut_off else (self.leader, self.epoch)
        partition = MetadataResponsePartition(
            partition_index=0, leader_id=leader, leader_epoch=epoch, error_code=ErrorCode.NONE
        )
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=n, host=b.name, port=PORT) for n, b in self.all.items()],
            topics=[MetadataResponseTopic(name="t", partitions=[partition])],
        )


def play(story: Callable[[NetworkClient, Brokers], Awaitable[None]]) -> None:
    """Runs a story with a started client and two brokers, on virtual time."""

    async def main(world: World) -> None:
        brokers = Brokers(world)
        for broker in brokers.all.values():
            world.machine(broker.name).start(broker.serve)

        async def program(ports: Ports) -> None:
            config = ConnectionConfig(bootstrap_servers=f"broker-1:{PORT}")
            cluster = NetworkClient(config, ports.clock, ports.rng, ports.network)
            cluster.add_topics(["t"])
            await cluster.start()
            try:
                await story(cluster, brokers)
            finally:
                await cluster.close()

        await world.machine("client").start(program)

    with World(1) as world:
        world.run(main(world))


async def within(seconds: float, cluster: NetworkClient, reached: Any) -> None:
    async with asyncio.timeout(seconds):
        while not reached():
            await cluster.changed(cluster.clock.monotonic_ms() + 20)


def test_a_dead_leader_is_asked_about_until_another_one_leads() -> None:
    async def story(cluster: NetworkClient, brokers: Brokers) -> None:
        tp = ("t", 0)
        assert (await cluster.ready_connection(1)).ready
        brokers.all[1].kill()
        await asyncio.sleep(0.4)  # the others do not know yet
        await within(5, cluster, lambda: brokers.all[2].asked.count(METADATA) >= 2)
        assert brokers.all[2].asked.count(METADATA) <= 20
        brokers.leader, brokers.epoch = 2, 1
        await within(2, cluster, lambda: cluster.metadata.leaders[tp] == 2)  # type: ignore[index]  # a TopicPartition is a tuple
        await asyncio.sleep(0.3)
        asked = brokers.all[2].asked.count(METADATA)
        await asyncio.sleep(0.3)
        assert brokers.all[2].asked.count(METADATA) == asked, "all is well again"

    play(story)


def test_a_dead_coordinator_is_looked_up_until_it_has_a_successor() -> None:
    async def story(cluster: NetworkClient, brokers: Brokers) -> None:
        assert await cluster.find_coordinator("group", "g") == 1
        assert (await cluster.ready_connection(1)).ready
        brokers.all[1].kill()
        await within(5, cluster, lambda: cluster.backoff(1))
        with pytest.raises(BrokerUnreachable):  # nobody waits for it
            await cluster.ready_connection(1, timeout_ms=10_000)
        cluster.forget_coordinator("group", "g")
        looking = asyncio.create_task(cluster.find_coordinator("group", "g"))
        await asyncio.sleep(0.4)
        assert not looking.done(), "who answers still names the dead one"
        brokers.coordinator = 2
        async with asyncio.timeout(2):
            assert await looking == 2

    play(story)


def test_a_leader_that_knows_nothing_of_its_successor_is_not_asked_for_ever() -> None:
    """It is cut off from the controller: it refuses records, and its Metadata still names itself."""

    async def story(cluster: NetworkClient, brokers: Brokers) -> None:
        assert (await cluster.ready_connection(1)).ready  # the only connection
        brokers.cut_off[1] = None
        brokers.leader, brokers.epoch = 2, 1
        async with asyncio.timeout(10):
            while cluster.metadata.leaders[TopicPartition("t", 0)] != 2:
                cluster.want_update()  # as after each refusal
                await asyncio.sleep(0.02)

    play(story)


def test_a_client_with_nothing_to_ask_stays_with_its_broker() -> None:
    async def story(cluster: NetworkClient, brokers: Brokers) -> None:
        assert (await cluster.ready_connection(1)).ready
        await asyncio.sleep(3_600)  # metadata was renewed by its age, and nothing was new
        assert brokers.all[1].asked.count(METADATA) > 5
        assert brokers.all[2].asked == []

    play(story)


def test_a_silent_broker_is_passed_over() -> None:
    async def story(cluster: NetworkClient, brokers: Brokers) -> None:
        await cluster.ready_connection(1)
        brokers.all[1].silent = True
        await cluster.fresh_metadata(timeout_ms=20_000)
        assert brokers.all[2].asked.count(METADATA) == 1
        await cluster.fresh_metadata(timeout_ms=20_000)
        assert brokers.all[2].asked.count(METADATA) == 2

    play(story)


async def owed_by(broker: Broker, cluster: NetworkClient, timeout_ms: int | None = None) -> asyncio.Task[Any]:
    """A request that the broker has and does not answer."""
    await cluster.ready_connection(broker.node_id)
    broker.silent = True
    asked = broker.asked.count(FIND_COORDINATOR)
    request = FindCoordinatorRequest(key="owed")
    task = asyncio.create_task(cluster.request(request, node_id=broker.node_id, timeout_ms=timeout_ms))
    await within(2, cluster, lambda: broker.asked.count(FIND_COORDINATOR) > asked)
    return task


def test_a_silent_broker_is_left_once_it_neither_leads_nor_coordinates() -> None:
    async def story(cluster: NetworkClient, brokers: Brokers) -> None:
        assert await cluster.find_coordinator("group", "g") == 1
        owed = await owed_by(brokers.all[1], cluster)
        await within(UNANSWERED_S, cluster, lambda: brokers.all[2].asked.count(METADATA) >= 3)
        brokers.leader, brokers.epoch = 2, 1
        await within(2, cluster, lambda: cluster.metadata.leaders[TopicPartition("t", 0)] == 2)
        await asyncio.sleep(UNANSWERED_S)
        assert not owed.done(), "it may still be the coordinator"
        brokers.coordinator = 2
        with pytest.raises(BrokerUnreachable, match="other brokers have taken over"):
            async with asyncio.timeout(5):
                await owed
        assert await cluster.find_coordinator("group", "g") == 2

    play(story)


def test_a_silent_broker_that_nobody_replaces_has_the_whole_time_limit() -> None:
    """A long request of an admin client, to a broker that leads nothing that this client wants."""

    async def story(cluster: NetworkClient, brokers: Brokers) -> None:
        await cluster.ready_connection(1)
        brokers.leader, brokers.epoch = 2, 1
        await cluster.fresh_metadata()
        owed = await owed_by(brokers.all[1], cluster)
        asked = brokers.all[2].asked.count(METADATA)
        await asyncio.sleep(UNANSWERED_S)
        await cluster.fresh_metadata()
        assert not owed.done()
        assert brokers.all[2].asked.count(METADATA) == asked + 1
        owed.cancel()

    play(story)


def test_a_request_that_the_broker_may_hold_is_not_missed() -> None:
    async def story(cluster: NetworkClient, brokers: Brokers) -> None:
        owed = await owed_by(brokers.all[1], cluster, cluster.request_timeout_ms + HELD_MS)
        await asyncio.sleep(UNANSWERED_S)
        assert brokers.all[2].asked.count(METADATA) == 0
        owed.cancel()

    play(story)


def test_a_start_that_hears_nothing_for_a_second_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "barnabas.client.net")  # commands that ran in this process silence it

    async def program(ports: Ports) -> None:
        config = ConnectionConfig(bootstrap_servers=f"broker-1:{PORT}")
        cluster = NetworkClient(config, ports.clock, ports.rng, ports.network)
        starting = asyncio.create_task(cluster.start())
        await asyncio.sleep(1.1)
        assert "trying for 30 s; is one running?" in caplog.text
        with pytest.raises(BrokerUnreachable, match="no Kafka broker answers"):
            await starting
        assert len(caplog.records) == 1
        await cluster.close()

    async def main(world: World) -> None:
        world.machine("broker-1").start(Brokers(world).all[1].serve)
        world.network.cut("client", "broker-1")
        await world.machine("client").start(program)

    with World(1) as world:
        world.run(main(world))
