"""Connections to other nodes: one outcome for every request, whatever the other side does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from barnabas.broker.node.node import Node
from barnabas.broker.peers import peer as peer_module
from barnabas.broker.peers import peers as peers_module
from barnabas.broker.peers.peer import Peer, probe
from barnabas.broker.peers.peer_error import PeerError, PeerErrorKind, ProbeResult
from barnabas.errors import InvariantViolated
from barnabas.protocol.messages.groups import HeartbeatRequest
from barnabas.protocol.messages.metadata import (
    ApiVersionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from barnabas.protocol.messages.quorum import VoteRequest
from barnabas.runtime.network import AsyncioNetwork
from tests.support.broker.nodes import Nodes, Scripted
from tests.support.broker.stub_broker import answer_metadata, negotiate, read_frame
from tests.support.clock import StoppedClock
from tests.support.waiting import until

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Stub = Callable[[Serve], Awaitable[int]]


@pytest.fixture
async def other(nodes: Nodes) -> Node:
    """The node that is asked."""
    return await nodes.start(node_id="2")


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    """Servers that do as the test wants."""
    servers: list[asyncio.Server] = []

    async def start(serve: Serve) -> int:
        servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        return int(servers[-1].sockets[0].getsockname()[1])

    yield start
    for server in servers:
        server.close()


def peer_to(node: Node, other: Node, purpose: str = "test") -> Peer:
    ((_, endpoint),) = other.listing.live(other.config.inter_broker_listener)
    return node.peers.to(endpoint.host, endpoint.port, purpose)


async def failure(peer: Peer, request: Any = None, **how: Any) -> PeerError:
    with pytest.raises(PeerError) as caught:
        await peer.request(request or MetadataRequest(topics=[]), **{"timeout_ms": 5_000, **how})
    return caught.value


async def test_requests_are_answered_in_order_and_never_from_within_send(node: Node, other: Node) -> None:
    peer = peer_to(node, other)
    got: list[Any] = []
    for _ in range(2):
        peer.send(MetadataRequest(topics=[]), got.append, timeout_ms=5_000)
    assert not got
    assert peer.in_flight == 2
    assert not peer.connected
    peer.send(ApiVersionsRequest(client_software_name="a", client_software_version="1"), got.append, timeout_ms=5_000)
    await until(lambda: len(got) == 3)
    assert [type(answer).__name__ for answer in got] == ["MetadataResponse"] * 2 + ["ApiVersionsResponse"]
    assert peer.connected
    assert peer.in_flight == 0
    peer.send(MetadataRequest(topics=[]), got.append, timeout_ms=5_000)
    assert len(got) == 3


async def test_a_long_request_and_its_long_answer(node: Node, other: Node) -> None:
    """A broker forwards large requests to the controller, and gets large answers."""
    peer = peer_to(node, other)
    names = [f"unknown-{number}" for number in range(20_000)]
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )
    got: list[Any] = []
    peer.send(request, got.append, timeout_ms=30_000, long=True)
    await until(lambda: got)
    assert [topic.name for topic in got[0].topics] == names
    assert peer.in_flight == 0


async def test_a_long_request_over_a_connection_that_is_lost_meanwhile_fails(node: Node, other: Node) -> None:
    peer = peer_to(node, other)
    await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=f"n{number}") for number in range(5_000)])
    got: list[Any] = []
    peer.send(request, got.append, timeout_ms=5_000, long=True)
    other.kill()
    await until(lambda: got)
    assert isinstance(got[0], PeerError)
    assert got[0].kind in (PeerErrorKind.UNREACHABLE, PeerErrorKind.LOST)


async def test_a_long_answer_that_cannot_be_decoded_ends_the_connection(node: Node, stub: Stub) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer)
        asked = await read_frame(reader)
        body = asked[4:8] + b"\xff" * 100_000
        writer.write(len(body).to_bytes(4, "big") + body)

    peer = node.peers.to("127.0.0.1", await stub(serve), "test")
    error = await failure(peer, long=True)
    assert error.kind is PeerErrorKind.LOST
    assert "does not answer as a Kafka broker" in str(error)
    assert not peer.connected


async def test_there_is_one_peer_for_an_address_and_a_purpose(node: Node, other: Node) -> None:
    peer = peer_to(node, other)
    assert peer_to(node, other) is peer
    assert peer_to(node, other, "elsewhere") is not peer
    await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000)
    assert len(other.server.connections) == 1


async def test_the_client_id_names_purpose_and_node(node: Node, other: Node) -> None:
    scripted = Scripted(other)
    peer = peer_to(node, other, "quorum")
    await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000)
    request = ApiVersionsRequest()
    peer.send(request, lambda answer: None, timeout_ms=5_000, version_max=0)
    await until(lambda: scripted.calls)
    assert scripted.calls[0][0].client_id == "quorum-1"


async def test_a_refused_connection_fails_at_once_and_until_the_pause_is_over(node: Node, stub: Stub) -> None:
    node.reactor.clock = clock = StoppedClock()
    peer = node.peers.to("127.0.0.1", 1, "test")
    first = await failure(peer)
    assert (first.kind, first.sent) == (PeerErrorKind.REFUSED, False)
    assert 40 <= first.retry_in_ms <= 60
    got: list[Any] = []
    peer.send(MetadataRequest(), got.append, timeout_ms=5_000)
    assert not got, "never from within send"
    await until(lambda: got)
    assert got[0].kind is PeerErrorKind.REFUSED
    assert 0 < got[0].retry_in_ms <= first.retry_in_ms
    clock.time_ms += first.retry_in_ms
    assert 80 <= (await failure(peer)).retry_in_ms <= 120


async def test_a_name_that_several_addresses_have_is_refused_only_by_all(node: Node) -> None:
    assert (await failure(node.peers.to("localhost", 1, "test"))).kind is PeerErrorKind.REFUSED


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 70, "a..b", "\0"])
async def test_what_is_no_host_is_unreachable(node: Node, host: str) -> None:
    assert (await failure(node.peers.to(host, 1, "test"))).kind is PeerErrorKind.UNREACHABLE
    assert await probe(AsyncioNetwork(), host, 1, 30_000) is ProbeResult.UNREACHABLE


async def test_a_server_that_is_no_broker(node: Node, stub: Stub) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    error = await failure(node.peers.to("127.0.0.1", await stub(serve), "test"))
    assert error.kind is PeerErrorKind.UNREACHABLE
    assert "does not answer as a Kafka broker" in str(error)
    assert error.retry_in_ms > 0


async def test_a_server_that_closes_at_once(node: Node, stub: Stub) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    error = await failure(node.peers.to("127.0.0.1", await stub(serve), "test"))
    assert error.kind is PeerErrorKind.UNREACHABLE


async def test_a_connection_closed_with_requests_unanswered(node: Node, stub: Stub) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await negotiate(reader, writer)
        await read_frame(reader)
        writer.close()

    peer = node.peers.to("127.0.0.1", await stub(serve), "test")
    events: list[Any] = []
    peer.add_lost_listener(lambda error: events.append(("lost", error.kind)))
    for number in range(2):
        peer.send(MetadataRequest(), lambda error, n=number: events.append((n, error.kind)), timeout_ms=5_000)  # type: ignore[misc]
    await until(lambda: len(events) == 3)
    lost = PeerErrorKind.LOST
    assert events == [(0, lost), (1, lost), ("lost", lost)]
    assert (await failure(peer)).kind is PeerErrorKind.LOST, "it connects again at once"
    assert connections == 2


async def test_an_overdue_answer_costs_the_connection(node: Node, stub: Stub) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer)
        await answer_metadata(reader, writer)
        await reader.read()

    peer = node.peers.to("127.0.0.1", await stub(serve), "test")
    await peer.request(MetadataRequest(topics=[]), timeout_ms=30_000)  # the connection is there
    lost: list[PeerError] = []
    peer.add_lost_listener(lost.append)
    error = await failure(peer, timeout_ms=50)
    assert (error.kind, error.sent) == (PeerErrorKind.TIMED_OUT, True)
    assert "Metadata" in str(error)
    assert [error.kind for error in lost] == [PeerErrorKind.TIMED_OUT]
    assert not peer.connected


async def test_a_connection_that_is_not_made_in_time(node: Node, stub: Stub) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    peer = node.peers.to("127.0.0.1", await stub(serve), "test")
    failed: list[tuple[int, PeerErrorKind]] = []
    for each in (300, 40):
        peer.send(MetadataRequest(), lambda error, ms=each: failed.append((ms, error.kind)), timeout_ms=each)  # type: ignore[misc]  # mypy infers no type for a default of a lambda
    await until(lambda: len(failed) == 2)
    unreachable = PeerErrorKind.UNREACHABLE
    assert failed == [(40, unreachable), (300, unreachable)], "each request has its own deadline"


async def test_a_server_that_never_says_what_it_speaks_is_given_up(
    node: Node, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    monkeypatch.setattr(peer_module, "NEGOTIATE_TIMEOUT_MS", 40)
    error = await failure(node.peers.to("127.0.0.1", await stub(serve), "test"))
    assert error.kind is PeerErrorKind.UNREACHABLE
    assert "ApiVersions" in str(error)


async def test_no_common_version(node: Node, other: Node, stub: Stub) -> None:
    peer = peer_to(node, other)
    error = await failure(peer, VoteRequest())
    assert error.kind is PeerErrorKind.UNSUPPORTED
    assert "VoteRequest" in str(error)
    assert peer.connected, "the connection goes on"
    answer = await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000)
    assert isinstance(answer, MetadataResponse)


@pytest.mark.parametrize("long", [False, True])
async def test_a_request_that_cannot_be_encoded(node: Node, other: Node, *, long: bool) -> None:
    """It fails alone, also where it waits for the connection with others."""
    peer = peer_to(node, other)
    outcomes: list[object] = []
    topics = [MetadataRequestTopic(name="x" * 40_000 + str(number)) for number in range(3_000 if long else 1)]
    peer.send(MetadataRequest(topics=topics), outcomes.append, timeout_ms=5_000, version_max=4, long=long)
    peer.send(MetadataRequest(topics=[]), outcomes.append, timeout_ms=5_000)
    await until(lambda: len(outcomes) == 2)
    failed = next(each for each in outcomes if isinstance(each, PeerError))
    assert failed.kind is PeerErrorKind.UNSUPPORTED
    assert any(isinstance(each, MetadataResponse) for each in outcomes)


async def test_versions_are_agreed_on(node: Node, stub: Stub) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer)
        while True:
            asked.append(await answer_metadata(reader, writer))

    peer = node.peers.to("127.0.0.1", await stub(serve), "test")
    assert isinstance(await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000), MetadataResponse)
    assert asked[0][2:4] == b"\0\0"
    assert (await failure(peer, HeartbeatRequest())).kind is PeerErrorKind.UNSUPPORTED


async def test_an_answer_that_nobody_asked_for(node: Node, stub: Stub) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer)
        await read_frame(reader)
        writer.write(b"\0\0\0\x08" + bytes(8))

    peer = node.peers.to("127.0.0.1", await stub(serve), "test")
    error = await failure(peer)
    assert error.kind is PeerErrorKind.LOST, "it was sent"
    assert (await failure(peer)).kind is PeerErrorKind.UNREACHABLE, "and the next attempt waits"


async def test_an_answer_of_any_length_is_not_believed(node: Node, stub: Stub) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer)
        await read_frame(reader)
        writer.write((node.peers.frame_bytes_max + 1).to_bytes(4, "big"))
        await reader.read()

    error = await failure(node.peers.to("127.0.0.1", await stub(serve), "test"))
    assert error.kind is PeerErrorKind.LOST
    assert "frame of" in str(error)


async def test_what_waits_for_a_connection_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "QUEUED_MAX", 2)
    peer = node.peers.to("127.0.0.1", 1, "test")
    got: list[PeerError] = []
    for _ in range(3):
        peer.send(MetadataRequest(), got.append, timeout_ms=5_000)
    await until(lambda: len(got) == 3)
    assert [error.kind.name for error in got] == ["UNREACHABLE", "REFUSED", "REFUSED"]


async def test_a_closed_peer(node: Node, other: Node) -> None:
    scripted = Scripted(other)
    peer = peer_to(node, other)
    await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000)
    waiting = asyncio.ensure_future(failure(peer, ApiVersionsRequest(), version_max=0))
    await until(lambda: scripted.calls)
    peer.close()
    assert (await waiting).kind is PeerErrorKind.LOST
    assert (await failure(peer)).kind is PeerErrorKind.LOST
    await until(lambda: not other.server.connections)
    assert peer_to(node, other) is not peer
    peer.close()


async def test_a_connection_that_is_given_up_before_it_is_made(node: Node, other: Node) -> None:
    """In the wake-up that asked for it: only an attempt that is still wanted may reach the core."""
    peer = peer_to(node, other)
    got: list[Any] = []
    peer.send(MetadataRequest(topics=[]), got.append, timeout_ms=5_000)
    peer.disconnect("no reason")
    peer.send(MetadataRequest(topics=[]), got.append, timeout_ms=5_000)
    await until(lambda: len(got) == 2)
    assert [type(each) for each in got] == [PeerError, MetadataResponse]
    late = peer_to(node, other, "late")
    late.send(MetadataRequest(topics=[]), got.append, timeout_ms=5_000)
    late.close()
    await until(lambda: len(got) == 3)
    for _ in range(20):
        await asyncio.sleep(0)
    assert node.failure is None
    assert len(other.server.connections) == 1


async def test_a_node_that_stops_answers_what_waits(node: Node, other: Node) -> None:
    scripted = Scripted(other)
    peer = peer_to(node, other)
    await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000)
    got: list[PeerError] = []
    peer.send(ApiVersionsRequest(), got.append, timeout_ms=5_000, version_max=0)
    await until(lambda: scripted.calls)
    await node.stop()
    assert [error.kind for error in got] == [PeerErrorKind.LOST]
    peer_to(node, other, "late").send(MetadataRequest(), got.append, timeout_ms=5_000)
    await until(lambda: len(got) == 2)


async def test_a_killed_node_tells_nobody(node: Node, other: Node) -> None:
    scripted = Scripted(other)
    peer = peer_to(node, other)
    await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000)
    got: list[PeerError] = []
    peer.send(ApiVersionsRequest(), got.append, timeout_ms=5_000, version_max=0)
    await until(lambda: scripted.calls)
    node.kill()
    await until(lambda: not other.server.connections)
    assert not got


async def test_what_a_callback_raises_is_not_the_connection_s_fault(
    node: Node, other: Node, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(answer: Any) -> None:
        raise ValueError("of the callback")

    peer = peer_to(node, other)
    peer.send(MetadataRequest(topics=[]), broken, timeout_ms=5_000)
    assert isinstance(await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000), MetadataResponse)
    assert "of the callback" in caplog.text

    def violated(answer: Any) -> None:
        raise InvariantViolated("seen in an answer")

    peer.send(MetadataRequest(topics=[]), violated, timeout_ms=5_000)
    await until(lambda: node.failure)
    assert isinstance(nodes.failures.pop(), InvariantViolated)


async def test_a_callback_may_end_the_connection_and_send_again(node: Node, other: Node) -> None:
    peer = peer_to(node, other)
    got: list[Any] = []

    def leave(answer: Any) -> None:
        got.append(answer)
        peer.disconnect("seen enough")
        peer.send(MetadataRequest(topics=[]), got.append, timeout_ms=5_000)

    peer.send(MetadataRequest(topics=[]), leave, timeout_ms=5_000)
    peer.send(MetadataRequest(topics=[]), got.append, timeout_ms=5_000)
    await until(lambda: len(got) == 3)
    assert isinstance(got[0], MetadataResponse)
    assert got[1].kind is PeerErrorKind.LOST
    assert isinstance(got[2], MetadataResponse)


async def test_a_connection_tells_who_asked_that_it_ended(node: Node, other: Node) -> None:
    peer = peer_to(node, other)
    await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000)
    (connection,) = other.server.connections
    ended: list[str] = []
    connection.on_close(lambda: ended.append("first"))
    connection.on_close(lambda: ended.append("second"))
    peer.disconnect("over")
    await until(lambda: ended)
    assert ended == ["first", "second"]
    connection.on_close(lambda: ended.append("late"))
    await until(lambda: len(ended) == 3)


async def test_a_node_that_ended_its_connections_is_missing_until_it_is_back(node: Node, stub: Stub) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await negotiate(reader, writer)
        with contextlib.suppress(asyncio.IncompleteReadError):
            await read_frame(reader)

    port = await stub(serve)
    peer = node.peers.to("127.0.0.1", port, "test")

    def send() -> None:
        peer.send(MetadataRequest(topics=[]), lambda _: None, timeout_ms=5_000)

    assert not node.peers.missing("127.0.0.1", port), "never met"
    send()
    await until(lambda: peer.connected)
    peer.disconnect("our own doing")
    assert not node.peers.missing("127.0.0.1", port)
    send()
    await until(lambda: peer.connected)
    writers[-1].close()
    await until(lambda: node.peers.missing("127.0.0.1", port))
    send()
    await until(lambda: peer.connected)
    assert not node.peers.missing("127.0.0.1", port)


async def test_nobody_is_missing_for_long(node: Node, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer)
        writer.close()

    monkeypatch.setattr(peers_module, "MISSING_MS", 100)
    port = await stub(serve)
    node.peers.to("127.0.0.1", port, "test").send(MetadataRequest(topics=[]), lambda _: None, timeout_ms=5_000)
    await until(lambda: node.peers.missing("127.0.0.1", port))
    await until(lambda: not node.peers.missing("127.0.0.1", port))


async def test_probes(node: Node) -> None:
    network = AsyncioNetwork()
    ((_, endpoint),) = node.listing.live(node.config.inter_broker_listener)
    assert await probe(network, endpoint.host, endpoint.port, 30_000) is ProbeResult.ACCEPTED
    assert await probe(network, "127.0.0.1", 1, 30_000) is ProbeResult.REFUSED
    await node.stop()
    assert await probe(network, endpoint.host, endpoint.port, 30_000) is ProbeResult.REFUSED
