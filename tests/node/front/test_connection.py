"""Connections: headers on a real socket, order, holding, fairness, and how they end."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from struct import pack, unpack

import pytest

from barnabas.broker.api.call import Answer, Call, Pending
from barnabas.broker.front.connection import RECEIVED_BYTES_PER_UNIT
from barnabas.broker.node.node import Node
from barnabas.broker.scheduling.slices import ARRIVALS_COUNTED, TURN_UNITS_MAX, UNITS_PER_ARRIVAL
from barnabas.errors import ErrorCode
from barnabas.protocol.connection import REQUESTS_PER_TURN
from barnabas.protocol.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
)
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.schema import encode
from tests.support.broker.in_memory import InMemory
from tests.support.broker.nodes import Nodes, Peer, Scripted, batch
from tests.support.waiting import turns, until

REQUEST = ApiVersionsRequest()
CONNECTIONS = 1_000


async def test_answers_leave_in_the_order_of_requests(peer: Peer, node: Node) -> None:
    script = Scripted(node)
    sent = [peer.send(REQUEST, 0) for _ in range(4)]
    await until(lambda: len(script.calls) == 4)
    for number in (3, 1, 0, 2):
        script.answer(number)
    assert [(await peer.receive(one)).error_code for one in sent] == [0, 1, 2, 3]


async def test_a_request_before_its_effect_holds_the_later_ones(peer: Peer, node: Node) -> None:
    script = Scripted(node)
    script.blocks = [False, True, False]
    sent = [peer.send(REQUEST, 0) for _ in range(4)]
    await until(lambda: len(script.calls) == 2)
    await turns()
    assert len(script.calls) == 2
    script.calls[1][1].effected()
    await until(lambda: len(script.calls) == 4)
    for number in range(4):
        script.answer(number)
    assert [(await peer.receive(one)).error_code for one in sent] == [0, 1, 2, 3]


async def test_an_answer_within_the_call_blocks_nothing(peer: Peer, node: Node) -> None:
    script = Scripted(node)
    handle = script.handle

    def at_once(node: Node, call: Call[ApiVersionsRequest]) -> Pending[ApiVersionsResponse]:
        pending = handle(node, call)
        script.answer(len(script.calls) - 1)
        return pending

    script.blocks = [True] * 3
    node.router.routes[18 << 16].handler = at_once
    sent = [peer.send(REQUEST, 0) for _ in range(3)]
    assert [(await peer.receive(one)).error_code for one in sent] == [0, 1, 2]


async def test_a_connection_that_the_node_closes_drops_what_waits_and_what_is_held(peer: Peer, node: Node) -> None:
    script = Scripted(node)
    script.blocks = [False, True]
    for _ in range(4):
        peer.send(REQUEST, 0)
    await until(lambda: len(script.calls) == 2)
    (connection,) = node.server.connections
    connection.close("test")
    assert script.closed == [0, 1]
    script.answer(0)
    script.answer(1)
    await turns()
    assert len(script.calls) == 2, "a held request must have no effect after its connection is gone"


async def test_a_busy_connection_leaves_turns_to_others(nodes: Nodes, node: Node) -> None:
    """Thousands of requests in one piece: another connection is answered in between."""
    served: list[str] = []
    greedy, modest = await nodes.peer(node), await nodes.peer(node)
    original = node.router.route(18, 0).handler

    def note(node: Node, call: Call[ApiVersionsRequest]) -> Answer:
        served.append(call.client_id or "")
        return original(node, call)

    node.router.routes[18 << 16].handler = note

    def frame(client: bytes) -> bytes:
        return pack(">ihhih", 10 + len(client), 18, 0, 1, len(client)) + client

    greedy.writer.write(frame(b"greedy") * 2_000)
    await until(lambda: served)
    modest.writer.write(frame(b"modest"))
    await until(lambda: len(served) == 2_001)
    assert served.index("modest") < 2_000 - REQUESTS_PER_TURN


async def test_requests_of_many_connections_that_arrive_at_once_take_several_turns(node: Node) -> None:
    """Each turn serves a part of them, in the order in which they arrived; each is answered once."""
    turn, served = [0], list[tuple[int, str]]()
    original = node.router.route(18, 0).handler

    def note(node: Node, call: Call[ApiVersionsRequest]) -> Answer:
        served.append((turn[0], call.client_id or ""))
        return original(node, call)

    node.router.routes[18 << 16].handler = note
    connections = [InMemory(node, f"{number:04}") for number in range(CONNECTIONS)]
    for connection in connections:
        connection.sends(18, 0)
    assert {name for _, name in served} == {f"{number:04}" for number in range(len(served))}
    assert len(served) < CONNECTIONS // 2
    while len(served) < CONNECTIONS:
        turn[0] += 1
        await asyncio.sleep(0)
        assert turn[0] < CONNECTIONS
    assert [name for _, name in served] == [f"{number:04}" for number in range(CONNECTIONS)]
    longest = max(Counter(number for number, _ in served).values())
    assert longest * UNITS_PER_ARRIVAL <= TURN_UNITS_MAX + 2 * ARRIVALS_COUNTED * UNITS_PER_ARRIVAL
    await turns()
    assert [len(connection.written) for connection in connections] == [1] * CONNECTIONS


async def test_a_large_frame_is_read_in_several_turns(node: Node) -> None:
    """Memory and the copy of 8 MiB at once would take longer than a turn may."""
    connection = InMemory(node, "large")
    await turns()
    piece, whole = 1024 * 1024, 8 * 1024 * 1024
    connection.receive(pack(">ihhih", whole, 0, 3, 1, -1))
    found = [0]
    for _ in range(whole // piece - 1):
        if not connection.reading:
            await until(lambda: connection.reading)
            found.append(0)
        connection.receive(bytes(piece))
        found[-1] += piece
    assert max(found) <= TURN_UNITS_MAX * RECEIVED_BYTES_PER_UNIT + 2 * piece  # the first is not counted
    assert len(found) > 1


async def test_a_large_request_of_few_elements_is_decoded_in_a_later_turn_than_it_is_read(node: Node) -> None:
    connection = InMemory(node, "long")
    await turns()
    body = encode(MetadataRequest(topics=[MetadataRequestTopic(name="t" * 30_000) for _ in range(50)]), 8)
    connection.sends(3, 8, body)
    assert node.slices.busy
    assert connection.written == []
    await until(lambda: connection.written)
    assert not node.slices.requests.running


async def test_client_ids(peer: Peer, node: Node) -> None:
    script = Scripted(node)
    for length, client in ((-1, b""), (0, b""), (3, b"abc"), (2, "ü".encode())):
        peer.writer.write(pack(">ihhih", 10 + len(client), 18, 0, 1, length) + client)
    await until(lambda: len(script.calls) == 4)
    assert [call.client_id for call, _ in script.calls] == [None, "", "abc", "ü"]


@pytest.mark.parametrize(
    "frame",
    [
        pack(">hh", 18, 0),
        pack(">hhih", 18, 0, 1, 50) + b"short",
        pack(">hhih", 18, 0, 1, -2),
        pack(">hhih", 18, 0, 1, 2) + b"\xff\xfe",
        pack(">hhih", 18, 3, 1, 0),
        pack(">hhih", 18, 3, 1, 0) + b"\x01\x00",
        pack(">hhih", 18, 3, 1, 0) + b"\xff\xff\xff\xff\x0f",
        pack(">hhih", 18, 3, 1, 0) + b"\x01\x00\xff\xff\xff\xff\x0f",
        pack(">hhih", 999, 0, 1, 0),
        pack(">hhih", 3, 77, 1, 0),
    ],
)
async def test_malformed_headers_close_with_one_line(
    peer: Peer, frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "barnabas.kafka.network.SocketServer")
    peer.writer.write(pack(">i", len(frame)) + frame)
    assert await peer.is_closed()
    lines = [record for record in caplog.records if record.name == "barnabas.kafka.network.SocketServer"]
    assert len(lines) == 1
    assert lines[0].exc_info is None


async def test_header_tags_are_passed_over(peer: Peer) -> None:
    body = pack(">hhih", 18, 3, 9, -1) + b"\x02\x00\x03abc\x05\x00" + b"\x02x\x021\x00"
    peer.writer.write(pack(">i", len(body)) + body)
    (size,) = unpack(">i", await peer.reader.readexactly(4))
    answer = await peer.reader.readexactly(size)
    assert unpack(">ih", answer[:6]) == (9, 0)


async def test_a_bug_in_a_handler_is_told_by_code_and_logged_with_its_trace(
    peer: Peer, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(node: Node, call: Call[ApiVersionsRequest]) -> None:
        raise ZeroDivisionError("secret")

    node.router.route(18, 0)
    node.router.routes[18 << 16].handler = broken
    assert (await peer.call(REQUEST, 0)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert any(record.exc_info for record in caplog.records)
    assert (await peer.call(ApiVersionsRequest(), 1)).error_code == 0, "the connection goes on"


@pytest.mark.parametrize("seed", range(4))
async def test_however_the_bytes_are_cut_the_answers_are_the_same(nodes: Nodes, node: Node, seed: int) -> None:
    """Small and large requests of several APIs, whole, byte by byte, and in random pieces."""
    writer = await nodes.peer(node)
    await writer.create("t")
    rng = random.Random(seed)
    stream = bytearray()
    sizes = []
    for correlation in range(60):
        kind = rng.randrange(3)
        if kind == 0:
            frame = pack(">hhih", 18, 0, correlation, -1)
        elif kind == 1:
            topics = [MetadataRequestTopic(name="t")]
            frame = pack(">hhih", 3, 8, correlation, 4) + b"test" + encode(MetadataRequest(topics=topics), 8)
        else:
            records = batch(bytes(rng.choice([1, 500, 90_000])))
            data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])
            request = ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[data])
            frame = pack(">hhih", 0, 7, correlation, -1) + encode(request, 7)
        stream += pack(">i", len(frame)) + frame
        sizes.append(len(frame) + 4)

    async def answers(pieces: list[bytes]) -> list[bytes]:
        peer = await nodes.peer(node)
        found = []
        for piece in pieces:
            peer.writer.write(piece)
            if rng.random() < 0.05:
                await asyncio.sleep(0)
        for _ in sizes:
            (size,) = unpack(">i", await peer.reader.readexactly(4))
            found.append(await peer.reader.readexactly(size))
        return [
            one for one in found if len(one) != 4 + 4 + 2 + 1 + 4 + 4 + 2 + 8 + 8 + 8 + 4
        ]  # but for Produce: offsets move on

    cuts = sorted(rng.randrange(len(stream)) for _ in range(200))
    random_pieces = [bytes(stream[a:b]) for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole = await answers([bytes(stream)])
    assert await answers(random_pieces) == whole
    head = sum(sizes[:3])
    by_byte = [bytes(stream[at : at + 1]) for at in range(min(head, 3_000))]
    assert await answers([*by_byte, bytes(stream[len(by_byte) :])]) == whole
    assert node.replicas.leader("t", 0).log.log_end_offset % 3 == 0
