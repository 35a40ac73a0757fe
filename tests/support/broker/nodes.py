"""Nodes in the test's process on the real loop, loopback and a memory disk, and peers that send raw requests."""

from __future__ import annotations

import asyncio
import itertools
import time
from struct import unpack
from typing import Any

from barnabas.broker.api.call import Call, Pending
from barnabas.broker.api.router import Route
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.node.node import Node
from barnabas.errors import BrokerError
from barnabas.ports import Disk
from barnabas.protocol import registry
from barnabas.protocol.messages.metadata import ApiVersionsResponse
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.runtime.clock import SystemClock
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.offload import WorkerThread
from barnabas.runtime.randomness import SystemRng
from barnabas.storage.disk import MemoryDisk
from tests.support.requests import answer_in, frame_of, request_of


class Peer:
    """One connection to a node."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.client_id = "peer"
        self._correlations = itertools.count(1)

    def send(self, request: Any, version: int) -> tuple[int, int, int]:
        """Sends one request; `receive` takes the result."""
        correlation, key = next(self._correlations), type(request).API_KEY
        self.writer.write(frame_of(request, version, correlation, self.client_id))
        return correlation, key, version

    async def receive(self, sent: tuple[int, int, int]) -> Any:
        """Returns the next answer, which must be the answer to `sent`."""
        correlation, key, version = sent
        async with asyncio.timeout(60):
            (size,) = unpack(">i", await self.reader.readexactly(4))
            frame = await self.reader.readexactly(size)
        assert unpack(">i", frame[:4])[0] == correlation
        return answer_in(frame, key, version)

    async def call(self, request: Any, version: int) -> Any:
        """One request and its answer."""
        return await self.receive(self.send(request, version))

    async def is_closed(self) -> bool:
        """Whether the node closes the connection; ignores the answers before."""
        try:
            async with asyncio.timeout(60):
                while await self.reader.read(65536):
                    pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
        return True

    async def create(self, name: str, partitions: int = 1, /, **config: str) -> None:
        """Creates a topic; settings with underscores for dots."""
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": [{"name": key.replace("_", "."), "value": value} for key, value in config.items()],
        }
        answer = await self.call(request_of("CreateTopics", topics=[topic], timeout_ms=5_000), 5)
        assert answer.topics[0].error_code == 0, answer


class Nodes:
    """Starts nodes and peers, ends them all with the test."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.peers: list[Peer] = []
        self.failures: list[BaseException] = []

    async def start(self, disk: Disk | None = None, /, *other_disks: Disk, **settings: str) -> Node:
        """A served node; settings with underscores for dots. `node.address` is where it listens."""
        config = BrokerConfig(
            {"node.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": "memory"}
            | {key.replace("_", "."): value for key, value in settings.items()}
        )
        node = Node(
            config,
            clock=SystemClock(),
            rng=SystemRng(),
            disk=disk or MemoryDisk(),
            other_disks=other_disks,
            network=AsyncioNetwork(),
            offload=WorkerThread().run,
            on_fatal=self.failures.append,
        )
        self.nodes.append(node)
        await node.start()
        return node

    async def peer(self, node: Node, listener: str = "") -> Peer:
        """Connects to the node; by default to the listener between brokers."""
        ((_, endpoint),) = node.listing.live(listener or node.config.inter_broker_listener)
        peer = Peer(*await asyncio.open_connection(endpoint.host, endpoint.port))
        self.peers.append(peer)
        return peer

    async def end(self) -> None:
        for peer in self.peers:
            peer.writer.close()
        for node in self.nodes:
            await node.stop()
        assert not self.failures


class Scripted:
    """A handler of ApiVersions v0 that the test answers by hand, in place of the node's own."""

    def __init__(self, node: Node) -> None:
        self.calls: list[tuple[Call[Any], Pending[ApiVersionsResponse]]] = []
        self.closed: list[int] = []
        self.blocks: list[bool] = []
        node.router.routes[18 << 16] = Route(registry.API[18], 0, self.handle, self.refuse)

    def handle(self, node: Node, call: Call[Any]) -> Pending[ApiVersionsResponse]:
        number = len(self.calls)
        blocks = self.blocks[number] if number < len(self.blocks) else False
        pending: Pending[ApiVersionsResponse] = Pending(blocks=blocks, on_closed=lambda: self.closed.append(number))
        self.calls.append((call, pending))
        return pending

    def refuse(self, call: Call[Any], error: BrokerError) -> ApiVersionsResponse:
        return ApiVersionsResponse(error_code=error.code)

    def answer(self, number: int) -> None:
        self.calls[number][1].resolve(ApiVersionsResponse(error_code=number))


def batch(*values: bytes, **fields: Any) -> bytes:
    """One batch of records with the current time."""
    now_ms = int(time.time() * 1000)
    return bytes(build_batch([NewRecord(None, value, now_ms) for value in values], **fields))
