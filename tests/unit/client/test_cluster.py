"""The client's way to brokers that die, keep silent, or do not know yet who took over; over loopback, with scripted brokers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from barnabas.client.errors import BrokerUnreachable
from barnabas.client.net import cluster as cluster_module
from barnabas.client.net import unanswering
from barnabas.client.net.cluster import Cluster
from barnabas.client.net.connection_config import ConnectionConfig
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

METADATA, FIND_COORDINATOR, API_VERSIONS = 3, 10, 18
SILENCE_MS = 500  # longer than this process is ever kept waiting
UNANSWERED_MS = 200
HELD_MS = 60_000
SPOKEN = {METADATA: 7, FIND_COORDINATOR: 2, API_VERSIONS: 4}  # the one version of each


class Broker:
    """Answers what its group says; may keep silent, and may be killed."""

    def __init__(self, group: Brokers, node_id: int) -> None:
        self.group = group
        self.node_id = node_id
        self.silent = False
        self.asked: list[int] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> Broker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    def kill(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                key = int.from_bytes(frame[:2], "big")
                self.asked.append(key)
                if self.silent and key != API_VERSIONS:
                    continue
                body = frame[4:8] + encode(self.group.answer(key), SPOKEN[key])
                writer.write(len(body).to_bytes(4, "big") + body)


class Brokers:
    """Two brokers; who leads and who coordinates is the test's to say."""

    def __init__(self) -> None:
        self.all: dict[int, Broker] = {}
        self.leader = 1
        self.epoch = 0
        self.coordinator = 1

    def answer(self, key: int) -> Any:
        if key == API_VERSIONS:
            spoken = [ApiVersion(api_key=k, min_version=v, max_version=v) for k, v in SPOKEN.items()]
            return ApiVersionsResponse(api_keys=spoken)
        if key == FIND_COORDINATOR:
            port = self.all[self.coordinator].port
            return FindCoordinatorResponse(node_id=self.coordinator, host="127.0.0.1", port=port)
        partition = MetadataResponsePartition(
            partition_index=0, leader_id=self.leader, leader_epoch=self.epoch, error_code=ErrorCode.NONE
        )
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=n, host="127.0.0.1", port=b.port) for n, b in self.all.items()],
            topics=[MetadataResponseTopic(name="t", partitions=[partition])],
        )


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    group = Brokers()
    for node_id in (1, 2):
        group.all[node_id] = await Broker(group, node_id).start()
    yield group
    for broker in group.all.values():
        broker.kill()


@pytest.fixture
async def cluster(brokers: Brokers) -> AsyncIterator[Cluster]:
    cluster = Cluster(ConnectionConfig(bootstrap_servers=f"127.0.0.1:{brokers.all[1].port}"))
    cluster.add_topics(["t"])
    await cluster.start()
    yield cluster
    await cluster.close()


async def within(seconds: float, cluster: Cluster, reached: Any) -> None:
    async with asyncio.timeout(seconds):
        while not reached():
            await cluster.changed(cluster.clock.monotonic_ms() + 20)


async def test_a_dead_leader_is_asked_about_until_another_one_leads(cluster: Cluster, brokers: Brokers) -> None:
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


async def test_a_dead_coordinator_is_looked_up_until_it_has_a_successor(cluster: Cluster, brokers: Brokers) -> None:
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


async def test_a_silent_broker_is_passed_over(
    cluster: Cluster, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_silence_ms", SILENCE_MS)
    monkeypatch.setattr(cluster_module, "_SILENCE_MS", SILENCE_MS)
    await cluster.ready_connection(1)
    brokers.all[1].silent = True
    await cluster.fresh_metadata(timeout_ms=20 * SILENCE_MS)
    assert brokers.all[2].asked.count(METADATA) == 1
    await cluster.fresh_metadata(timeout_ms=20 * SILENCE_MS)
    assert brokers.all[2].asked.count(METADATA) == 2


@pytest.fixture
async def impatient(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """A client that soon asks who has taken over from a broker that does not answer."""
    for module in (cluster_module, unanswering):
        monkeypatch.setattr(module, "UNANSWERED_MS", UNANSWERED_MS)
    cluster = Cluster(ConnectionConfig(bootstrap_servers=f"127.0.0.1:{brokers.all[1].port}"))
    cluster.add_topics(["t"])
    await cluster.start()
    await cluster.ready_connection(1)
    yield cluster
    await cluster.close()


async def owed_by(broker: Broker, cluster: Cluster, timeout_ms: int | None = None) -> asyncio.Task[Any]:
    """A request that the broker has and does not answer."""
    broker.silent = True
    asked = broker.asked.count(FIND_COORDINATOR)
    request = FindCoordinatorRequest(key="owed")
    task = asyncio.create_task(cluster.request(request, node_id=broker.node_id, timeout_ms=timeout_ms))
    await within(2, cluster, lambda: broker.asked.count(FIND_COORDINATOR) > asked)
    return task


async def test_a_silent_broker_is_left_once_it_neither_leads_nor_coordinates(
    impatient: Cluster, brokers: Brokers
) -> None:
    assert await impatient.find_coordinator("group", "g") == 1
    owed = await owed_by(brokers.all[1], impatient)
    await within(5, impatient, lambda: brokers.all[2].asked.count(METADATA) >= 3)
    brokers.leader, brokers.epoch = 2, 1
    await within(2, impatient, lambda: impatient.metadata.leaders[TopicPartition("t", 0)] == 2)
    await asyncio.sleep(2 * UNANSWERED_MS / 1000)
    assert not owed.done(), "it may still be the coordinator"
    brokers.coordinator = 2
    with pytest.raises(BrokerUnreachable, match="other brokers have taken over"):
        async with asyncio.timeout(5):
            await owed
    assert await impatient.find_coordinator("group", "g") == 2


async def test_a_silent_broker_that_nobody_replaces_has_the_whole_time_limit(
    impatient: Cluster, brokers: Brokers
) -> None:
    """A long request of an admin client, to a broker that leads nothing that this client wants."""
    brokers.leader, brokers.epoch = 2, 1
    await impatient.fresh_metadata()
    owed = await owed_by(brokers.all[1], impatient)
    asked = brokers.all[2].asked.count(METADATA)
    await asyncio.sleep(5 * UNANSWERED_MS / 1000)
    await impatient.fresh_metadata()
    assert not owed.done()
    assert brokers.all[2].asked.count(METADATA) == asked + 1
    owed.cancel()


async def test_a_request_that_the_broker_may_hold_is_not_missed(impatient: Cluster, brokers: Brokers) -> None:
    owed = await owed_by(brokers.all[1], impatient, impatient.request_timeout_ms + HELD_MS)
    await asyncio.sleep(5 * UNANSWERED_MS / 1000)
    assert brokers.all[2].asked.count(METADATA) == 0
    owed.cancel()
