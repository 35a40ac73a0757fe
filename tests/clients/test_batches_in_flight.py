"""Batches of a real client that are in flight when the leader dies, and reach the next leader partly before it knows that it leads.

Three nodes in this process, each behind a proxy. The leader writes and replicates a batch, its answer is lost, and it dies. The client
sends this batch and two more to the next leader, which has not applied the election yet and refuses the first two; the third one comes
after the election and leaves a gap. For OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka would send all three under a new producer epoch: the
first one would be in the log twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from struct import pack, unpack

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.image.image import MetadataDelta, MetadataImage
from barnabas.broker.node.node import Node
from barnabas.broker.replica.core.machine import Replica
from barnabas.client import Admin, NewTopic
from barnabas.protocol.records import decode_records, iter_batches
from barnabas.runtime.clock import SystemClock
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.randomness import SystemRng
from barnabas.storage.disk import MemoryDisk
from barnabas.work import UNITS_PER_SLICE, Work
from tests.support.processes.ports import free_ports
from tests.support.waiting import until

confluent_kafka = pytest.importorskip("confluent_kafka")

pytestmark = pytest.mark.clients

PRODUCE = 0
METADATA = 3
COUNT = 3
SECONDS_MAX = 60.0


class Proxy:
    """Stands before the client listener of one node.

    Attributes:
        admits: while it is cleared, connections are closed at once.
        answers_pass: while it is cleared, no answer reaches a client.
        passed: Produce requests that the node got since `stops_after` was set.
        stops_after: the next Produce request after so many waits for `goes_on`.
        answered: answers of the node since then.
        metadata_answers: answers to Metadata requests.
    """

    def __init__(self, port: int) -> None:
        self.admits = asyncio.Event()
        self.admits.set()
        self.answers_pass = asyncio.Event()
        self.answers_pass.set()
        self.goes_on = asyncio.Event()
        self.stops_after: int | None = None
        self.passed = 0
        self.answered = 0
        self.metadata_answers = 0
        self._port = port
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def listen(self) -> int:
        """Returns the port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Ends every connection; nothing listens any more."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.admits.is_set():
            writer.transport.abort()
            return
        try:
            answers, node = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        asked: dict[int, int] = {}  # API by correlation id
        self._writers += [writer, node]
        self._tasks += [
            asyncio.ensure_future(self._there(reader, node, asked)),
            asyncio.ensure_future(self._back(answers, writer, asked)),
        ]

    async def _there(self, reader: asyncio.StreamReader, node: asyncio.StreamWriter, asked: dict[int, int]) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                frame = await _frame(reader)
                api_key, _, correlation_id = unpack(">hhi", frame[:8])
                asked[correlation_id] = api_key
                if api_key == PRODUCE and self.stops_after is not None:
                    if self.passed == self.stops_after:
                        await self.goes_on.wait()
                    self.passed += 1
                node.write(pack(">i", len(frame)) + frame)
        node.close()

    async def _back(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, int]) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                frame = await _frame(answers)
                if self.passed:
                    self.answered += 1
                self.metadata_answers += asked.pop(unpack(">i", frame[:4])[0], None) == METADATA
                await self.answers_pass.wait()
                writer.write(pack(">i", len(frame)) + frame)
        writer.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(unpack(">i", await reader.readexactly(4))[0])


class Trio:
    """Three nodes, each a broker and a voter. Attributes: `nodes` and `proxies` by node id; `failures` of the nodes."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.proxies: dict[int, Proxy] = {}
        self.failures: list[BaseException] = []

    async def start(self) -> None:
        ports = free_ports(3 * COUNT)
        voters = ",".join(f"{n}@127.0.0.1:{ports[3 * n - 1]}" for n in range(1, COUNT + 1))
        for n in range(1, COUNT + 1):
            clients, brokers, controllers = ports[3 * n - 3 : 3 * n]
            proxy = self.proxies[n] = Proxy(clients)
            settings = {
                "node.id": str(n),
                "log.dirs": "memory",
                "listeners": f"CLIENTS://127.0.0.1:{clients},BROKERS://127.0.0.1:{brokers},"
                f"CONTROLLER://127.0.0.1:{controllers}",
                "advertised.listeners": f"CLIENTS://127.0.0.1:{await proxy.listen()},BROKERS://127.0.0.1:{brokers}",
                "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "inter.broker.listener.name": "BROKERS",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": voters,
                "process.roles": "broker,controller",
            }
            self.nodes[n] = Node(
                BrokerConfig(settings),
                clock=SystemClock(),
                rng=SystemRng(),
                disk=MemoryDisk(),
                network=AsyncioNetwork(),
                on_fatal=self.failures.append,
            )
        await asyncio.gather(*(node.start() for node in self.nodes.values()))

    def address(self, node_id: int) -> str:
        """Where clients reach a node."""
        ((host, port),) = [
            (endpoint.host, endpoint.port)
            for endpoint in self.nodes[node_id].config.advertised_listeners
            if endpoint.name == "CLIENTS"
        ]
        return f"{host}:{port}"

    def replica(self, node_id: int) -> Replica:
        replica = self.nodes[node_id].replicas.get("t", 0)
        assert replica is not None
        return replica

    def leader_at(self, node_id: int) -> int:
        """The leader of the partition as a node knows it."""
        topic = self.nodes[node_id].current_image.image.topic("t")
        assert topic is not None
        return topic.partitions[0].leader

    def kill(self, node_id: int) -> None:
        """Ends a node and its proxy at once."""
        self.proxies[node_id].close()
        self.nodes[node_id].kill()

    async def end(self) -> None:
        for node in self.nodes.values():
            node.kill()
        for proxy in self.proxies.values():
            proxy.close()
        assert self.failures == []


@pytest.fixture
async def trio() -> AsyncIterator[Trio]:
    nodes = Trio()
    await nodes.start()
    yield nodes
    await nodes.end()


def hold_images(node: Node) -> asyncio.Event:
    """From now on the node applies no metadata until the returned event is set."""
    goes_on = asyncio.Event()

    def wait(_image: MetadataImage, _delta: MetadataDelta) -> Work:
        while not goes_on.is_set():
            yield UNITS_PER_SLICE

    node.current_image._followers.insert(0, wait)
    return goes_on


def values_of(replica: Replica) -> list[bytes | None]:
    found = replica.read(0, 1_000_000).records
    return [record.value for at, header in iter_batches(found) for record in decode_records(found, at, header)]


async def test_batches_that_the_next_leader_refuses_before_it_leads_are_written_once(trio: Trio) -> None:
    controller = next(iter(trio.nodes.values())).quorum.leader_id
    leader, successor = (node_id for node_id in trio.nodes if node_id != controller)
    proxy = trio.proxies[successor]
    proxy.admits.clear()  # the client learns of the election from the controller
    async with Admin(bootstrap_servers=trio.address(controller)) as admin:
        await admin.create_topics([NewTopic("t", replica_assignments={0: [leader, successor, controller]})])
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": trio.address(controller),
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 1,
            "log_level": 0,
            "reconnect.backoff.max.ms": 500,  # the next leader's proxy closes its first connections
        }
    )
    errors: list[str] = []

    def produce(value: bytes) -> None:
        producer.produce(
            "t", value, partition=0, on_delivery=lambda error, _: errors.append(str(error)) if error else None
        )

    produce(b"0")
    assert await asyncio.to_thread(producer.flush, SECONDS_MAX) == 0

    trio.proxies[leader].answers_pass.clear()
    produce(b"1")
    survivors = [trio.replica(successor), trio.replica(controller)]
    await until(lambda: all(one.log.log_end_offset == 2 for one in survivors))
    applies = hold_images(trio.nodes[successor])
    proxy.stops_after = 2
    trio.kill(leader)
    produce(b"2")
    produce(b"3")
    # The client must ask the controller, not the next leader, who leads: that one does not know it yet.
    await until(lambda: trio.leader_at(controller) == successor)
    asked = trio.proxies[controller].metadata_answers
    await until(lambda: trio.proxies[controller].metadata_answers > asked + 1)
    proxy.admits.set()
    await until(lambda: proxy.answered >= 2)
    assert not trio.replica(successor).is_leader
    applies.set()
    await until(lambda: trio.replica(successor).is_leader)
    proxy.goes_on.set()
    assert await asyncio.to_thread(producer.flush, SECONDS_MAX) == 0
    assert errors == []
    replica = trio.replica(successor)
    await until(lambda: replica.high_watermark == replica.log.log_end_offset)
    assert values_of(replica) == [b"0", b"1", b"2", b"3"]
