"""Clients that leave while their requests are held: a producer with acks=0 sends its last records and closes."""

from __future__ import annotations

import asyncio
import copy
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from struct import pack
from typing import Any

import pytest

from barnabas.broker.api.call import Answer, Call, Pending
from barnabas.broker.node.node import Node
from barnabas.broker.scheduling.slices import LARGE_REQUESTS_AT_ONCE
from barnabas.protocol.connection import REQUESTS_PER_TURN
from barnabas.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.quotas import AlterClientQuotasRequest
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.protocol.schema import encode
from barnabas.runtime.network import peer_has_left
from barnabas.work import in_worker
from tests.support.broker.in_memory import InMemory
from tests.support.broker.nodes import Nodes, Peer, Scripted
from tests.support.oracle.quota_requests import entry
from tests.support.security.certificates import CertificateAuthority
from tests.support.waiting import turns, until

REQUEST = ApiVersionsRequest()
MANY = 20 * REQUESTS_PER_TURN
Connect = Callable[[], Awaitable[Peer]]


@pytest.fixture(params=["PLAINTEXT", "SSL"])
async def node(request: pytest.FixtureRequest, nodes: Nodes) -> Node:
    """A node with this protocol, whose quotas measure one whole second and the present one."""
    settings = {"quota.window.num": "2"}
    if request.param == "SSL":
        ca: CertificateAuthority = request.getfixturevalue("ca")
        settings |= {"listeners": "SSL://127.0.0.1:0", "security.inter.broker.protocol": "SSL"}
        settings |= ca.issue("left").by_file() | ca.truststore()
    return await nodes.start(**settings)


@pytest.fixture
def connect(nodes: Nodes, node: Node, request: pytest.FixtureRequest) -> Connect:
    """Connects a client by the protocol of the node."""
    tls: ssl.SSLContext | None = None
    if node.config.listeners[0].security_protocol == "SSL":
        ca: CertificateAuthority = request.getfixturevalue("ca")
        tls = ssl.create_default_context(cafile=str(ca.certificate))

    async def connected() -> Peer:
        ((_, endpoint),) = node.listing.live(node.config.inter_broker_listener)
        peer = Peer(*await asyncio.open_connection(endpoint.host, endpoint.port, ssl=tls))
        nodes.peers.append(peer)
        return peer

    return connected


@pytest.fixture
async def peer(connect: Connect) -> Peer:
    return await connect()


def produce(size_bytes: int = 1) -> ProduceRequest:
    batch = build_batch([NewRecord(None, b"x" * size_bytes, int(time.time() * 1000))])
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
    return ProduceRequest(acks=0, timeout_ms=1_000, topic_data=[data])


def log_end(node: Node) -> int:
    return node.replicas.leader("t", 0).log.log_end_offset


async def limit(peer: Peer, rate: float) -> None:
    """Sets a quota for the client id "limited", and takes it."""
    changes = [entry([("client-id", "limited")], ("producer_byte_rate", rate))]
    answer = await peer.call(AlterClientQuotasRequest(entries=changes), 1)
    assert answer.entries[0].error_code == 0
    peer.client_id = "limited"


async def test_requests_that_wait_for_a_turn_are_served(node: Node, peer: Peer) -> None:
    await peer.create("t")
    for _ in range(MANY):
        peer.send(produce(), 9)
    peer.writer.close()
    await until(lambda: not node.server.connections)
    assert log_end(node) == MANY


async def test_requests_of_a_throttled_client_are_served_in_time(node: Node, peer: Peer) -> None:
    """Most requests are held, or in the socket's buffer, when the client leaves."""
    await peer.create("t")
    await limit(peer, 100_000.0)
    for _ in range(150):
        peer.send(produce(1_000), 9)
    peer.writer.close()
    await until(lambda: not node.server.connections)
    assert log_end(node) == 150


async def test_a_request_before_its_effect_and_those_behind_it_are_served(node: Node, peer: Peer) -> None:
    script = Scripted(node)
    script.blocks = [False, True]
    for _ in range(4):
        peer.send(REQUEST, 0)
    await until(lambda: len(script.calls) == 2)
    (connection,) = node.server.connections
    ended: list[str] = []
    connection.on_close(lambda: ended.append("told"))
    peer.writer.close()
    await until(lambda: ended)
    assert not connection.closed, "who watches the client is told at once"
    assert script.closed == []
    script.answer(1)
    await until(lambda: not node.server.connections)
    assert len(script.calls) == 4
    assert script.closed == [0, 2, 3], "requests that wait after their effect are dropped"


async def test_a_long_batch_without_an_answer_is_written(node: Node, peer: Peer) -> None:
    """It is inspected in slices, and nothing is held behind it."""
    await peer.create("t")
    connection = InMemory(node, "left")
    await turns()
    now_ms = int(time.time() * 1000)
    batch = build_batch([NewRecord(None, bytes(number % 7), now_ms) for number in range(20_000)])
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
    connection.sends(0, 8, encode(ProduceRequest(acks=0, timeout_ms=1_000, topic_data=[data]), 8))
    assert log_end(node) == 0
    connection.end()
    await until(lambda: len(node.server.connections) == 1)
    assert log_end(node) == 20_000


async def test_a_client_that_closes_its_own_side_is_answered(nodes: Nodes) -> None:
    """Without TLS: Python's TLS streams close both sides."""
    peer = await nodes.peer(await nodes.start())
    sent = [peer.send(REQUEST, 0) for _ in range(MANY)]
    peer.writer.write_eof()
    for one in sent:
        assert (await peer.receive(one)).error_code == 0
    assert await peer.is_closed()


async def test_a_connection_that_breaks_is_served_without_answers(node: Node, peer: Peer) -> None:
    await peer.create("t")
    connection = InMemory(node, "left")
    await turns()
    request = encode(produce(), 8)
    for _ in range(MANY):
        connection.sends(0, 8, request)
    connection.sends(18, 0)
    assert log_end(node) < MANY
    connection.end()
    await until(lambda: len(node.server.connections) == 1)
    assert log_end(node) == MANY
    assert connection.written == []


async def test_an_incomplete_request_is_dropped_with_its_buffer(node: Node) -> None:
    script = Scripted(node)
    script.blocks = [True]
    connection = InMemory(node, "left")
    await turns()
    for _ in range(2):
        connection.sends(18, 0)
    connection.receive(pack(">ihhih", 1_000_000, 0, 3, 1, -1) + bytes(300_000))
    (served,) = node.server.connections
    assert served.core.reader.allocated_bytes > 300_000
    connection.end()
    assert served.core.reader.allocated_bytes == 0
    script.answer(0)
    await until(lambda: not node.server.connections)


@pytest.mark.parametrize("state", ["not serving", "logging in"])
async def test_requests_before_the_node_serves_or_the_client_has_logged_in_are_dropped(node: Node, state: str) -> None:
    connection = InMemory(node, "left")
    await turns()
    (served,) = node.server.connections
    if state == "not serving":
        node.server.serving = False
        served.core.block()
    else:
        served.router = copy.copy(node.router)
    for _ in range(MANY):
        connection.sends(18, 0)
    assert served.core.held_requests
    connection.end()
    assert not node.server.connections
    node.server.serving = True


async def test_a_stop_does_not_wait_for_a_throttled_client_that_has_left(node: Node, peer: Peer) -> None:
    await peer.create("t")
    await limit(peer, 10.0)
    connection = InMemory(node, "limited")
    await turns()
    served = next(each for each in node.server.connections if each.client_port == 0)
    request = encode(produce(10_000), 8)
    for _ in range(3):
        connection.sends(0, 8, request)
    connection.end()
    assert served.core.held_requests == 2
    assert not served.closed
    log = node.replicas.leader("t", 0).log
    async with asyncio.timeout(30):
        await node.stop()
    assert served.closed
    assert log.log_end_offset == 1


@pytest.fixture
def metadata_calls(node: Node) -> list[MetadataRequest]:
    """The Metadata requests of version 12 that reach their handler."""
    found: list[MetadataRequest] = []
    route = node.router.route(MetadataRequest.API_KEY, 12)
    handler = route.handler

    def counted(needs: Any, call: Call[Any]) -> Answer:
        found.append(call.request)
        return handler(needs, call)

    route.handler = counted
    return found


def large_read(count: int = 60_000, digits: int = 32) -> MetadataRequest:
    """A Metadata request, of 3 MB by default: a connection with it reads nothing."""
    topics = [MetadataRequestTopic(name=f"{number:0{digits}d}") for number in range(count)]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def end_stream(peer: Peer) -> None:
    """Closes the client's side. A node sees a client that has left; the system may reset a closed connection, and drop unread data."""
    with socket.socket(fileno=os.dup(peer.writer.get_extra_info("socket").fileno())) as connected:
        connected.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(
    "behind", [None, large_read(2_050, digits=1), ApiVersionsRequest()], ids=["nothing", "large", "small"]
)
async def test_large_reads_of_clients_that_have_left_are_dropped_and_writes_behind_them_are_served(
    node: Node, connect: Connect, metadata_calls: list[MetadataRequest], behind: Any
) -> None:
    """The node reads nothing from these connections while their large requests wait."""
    client = await connect()
    await client.create("t")
    node.slices.requests.running = LARGE_REQUESTS_AT_ONCE
    leaving = [await connect() for _ in range(3)]
    for peer in leaving:
        peer.send(large_read(), 12)
        if behind is not None:
            peer.send(behind, 12 if isinstance(behind, MetadataRequest) else 0)
        peer.send(produce(), 9)
    await until(lambda: len(node.slices.requests.waiting) == 3)
    await until(lambda: not any(peer.writer.transport.get_write_buffer_size() for peer in leaving))
    for peer in leaving:
        end_stream(peer)
    await until(lambda: sum(peer_has_left(each._transport) for each in node.server.connections) == 3)
    staying = asyncio.create_task(client.call(large_read(2_500), 12))
    await until(lambda: len(node.slices.requests.waiting) == 4)
    node.slices.requests.running = 0
    node.slices.start(in_worker(lambda: None), lambda _: None, lambda _: None, line=node.slices.requests)
    assert len((await staying).topics) == 2_500
    await until(lambda: len(node.server.connections) == 1)
    assert log_end(node) == 3
    assert [len(each.topics or ()) for each in metadata_calls] == [2_500]


async def test_reads_that_are_held_when_a_client_leaves_are_dropped(
    node: Node, peer: Peer, metadata_calls: list[MetadataRequest]
) -> None:
    script = Scripted(node)
    script.blocks = [True]
    await peer.create("t")
    peer.send(REQUEST, 0)
    await until(lambda: script.calls)
    for _ in range(3):
        peer.send(large_read(1), 12)
        peer.send(produce(), 9)
    (connection,) = node.server.connections
    await until(lambda: connection.core.held_requests == 6)
    peer.writer.close()
    await until(lambda: connection.core.ended)
    script.answer(0)
    await until(lambda: not node.server.connections)
    assert log_end(node) == 3
    assert metadata_calls == []


async def test_a_read_that_waits_is_dropped_and_a_write_behind_it_is_served(node: Node, peer: Peer) -> None:
    await peer.create("t")
    dropped: list[bool] = []
    node.router.route(MetadataRequest.API_KEY, 12).handler = lambda _needs, _call: Pending(
        blocks=True, on_closed=lambda: dropped.append(True)
    )
    peer.send(large_read(1), 12)
    peer.send(produce(), 9)
    (connection,) = node.server.connections
    await until(lambda: connection.core.held_requests == 1)
    peer.writer.close()
    await until(lambda: not node.server.connections)
    assert log_end(node) == 1
    assert dropped == [True]
