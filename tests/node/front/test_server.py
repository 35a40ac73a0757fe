"""Server: connections before the node is ready, silent ones, and the budget they share."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from struct import pack

import pytest

from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.connection import WRITE_BUFFER_HIGH
from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
)
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.metadata import ApiVersionsRequest
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.broker.nodes import Nodes, Peer, Scripted, batch
from tests.support.clock import StoppedClock
from tests.support.waiting import until

REQUEST = ApiVersionsRequest()


async def test_silent_connections_are_closed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.front.server.SWEEP_MS", 10)
    node = await nodes.start(connections_max_idle_ms="50")
    silent, waiting = await nodes.peer(node), await nodes.peer(node)
    script = Scripted(node)
    sent = waiting.send(REQUEST, 0)
    assert await silent.is_closed()
    script.answer(0)
    assert (await waiting.receive(sent)).error_code == 0, "one with a request in the air is not idle"


async def test_connections_are_taken_but_not_served_before_the_node_is_ready(nodes: Nodes) -> None:
    node = await nodes.start()
    node.server.serving = False
    early = await nodes.peer(node)
    sent = early.send(REQUEST, 0)
    await until(lambda: len(node.server.connections) == 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(early.reader.read(1), 0.05)
    node.server.serve()
    assert (await early.receive(sent)).error_code == 0


async def test_large_frames_share_a_budget_and_all_come_through(nodes: Nodes) -> None:
    """Nine frames of 7.5 MiB where 16 MiB are allowed: some wait, none for ever."""
    node = await nodes.start(socket_request_max_bytes=str(8 << 20), queued_max_request_bytes=str(16 << 20))
    peers = [await nodes.peer(node) for _ in range(9)]
    most = 0
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=bytes(15 << 19))])
    request = ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[data])

    async def send(peer: Peer) -> int:
        answer = await peer.call(request, 9)
        return int(answer.responses[0].partition_responses[0].error_code)

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, sum(each.core.reader.allocated_bytes for each in node.server.connections))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    codes = await asyncio.gather(*(send(peer) for peer in peers))
    watching.cancel()
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 9
    assert most < (16 << 20) + 9 * (64 << 10), "the budget, and an ordinary buffer of each"
    assert not node.server.budget._large
    assert sum(connection.core.reserved_bytes for connection in node.server.connections) <= 9 * (64 << 10)


async def test_answers_that_peers_leave_unread_share_a_budget(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty peers ask for 8 MiB five times over and read nothing: what is kept for them stays in bounds."""
    monkeypatch.setattr("barnabas.broker.front.server.UNREAD_ANSWER_BYTES_MAX", 32 << 20)
    node = await nodes.start()
    writer = await nodes.peer(node)
    await writer.create("t")
    for _ in range(8):
        node.replicas.leader("t", 0).append(bytearray(batch(bytes(1_000_000))))
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=8 << 20)
    request = FetchRequest(max_bytes=8 << 20, topics=[FetchTopic(topic="t", partitions=[wanted])])
    peers = [await nodes.peer(node) for _ in range(20)]
    for peer in peers:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]  # StreamReader has no public way to stop
        for _ in range(5):
            peer.send(request, 11)
    await until(lambda: len(node.server.budget._unread) == 20)
    for _ in range(50):
        await asyncio.sleep(0)
    assert node.server.budget.unread_bytes < (32 << 20) + 20 * (2 << 20), "the budget, and a batch or two for everyone"
    for peer in peers:
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]  # as above
    for peer in peers:
        for correlation in range(1, 6):
            answer = await peer.receive((correlation, 1, 11))
            assert len(answer.responses[0].partitions[0].records) >= 1_000_000
    assert node.server.budget.unread_bytes == 0


LARGE = DescribeConfigsRequest(
    resources=[DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)],
    include_synonyms=True,
    include_documentation=True,
)  # its answer has some 60 KB


async def test_answers_of_every_api_that_wait_for_an_earlier_one_are_bounded(nodes: Nodes) -> None:
    """Behind a request that is not answered yet, 400 large answers may not be made and kept."""
    node = await nodes.start()
    peer = await nodes.peer(node)
    script = Scripted(node)
    first = peer.send(REQUEST, 0)
    sent = [peer.send(LARGE, 4) for _ in range(400)]
    (connection,) = node.server.connections
    await until(lambda: connection.core._held and node.server.budget.unread_bytes > WRITE_BUFFER_HIGH)
    for _ in range(100):
        await asyncio.sleep(0)
    assert node.server.budget.unread_bytes < WRITE_BUFFER_HIGH + 100_000
    assert len(connection.core._slots) < 100
    assert connection._continue_due is False, "what cannot go on is not tried again and again"
    script.answer(0)
    assert (await peer.receive(first)).error_code == 0
    for each in sent:
        assert (await peer.receive(each)).results[0].error_code == 0
    assert node.server.budget.unread_bytes == 0


async def test_who_leaves_answers_unread_waits_where_all_together_leave_too_many(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.broker.front.server.UNREAD_ANSWER_BYTES_MAX", 400_000)
    node = await nodes.start()
    greedy = [await nodes.peer(node) for _ in range(5)]
    other = await nodes.peer(node)
    script = Scripted(node)
    first = [peer.send(REQUEST, 0) for peer in greedy]
    sent = [[peer.send(LARGE, 4) for _ in range(20)] for peer in greedy]
    await until(lambda: len(script.calls) == 5 and node.server.budget.is_crowded)
    for _ in range(100):
        await asyncio.sleep(0)
    assert node.server.budget.unread_bytes < 400_000 + 6 * 100_000, "one answer more for each at the most"
    assert (await other.call(LARGE, 4)).results[0].error_code == 0, "who reads is served"
    for number, peer in enumerate(greedy):
        script.answer(number)
        await peer.receive(first[number])
        for each in sent[number]:
            assert (await peer.receive(each)).results[0].error_code == 0
    assert node.server.budget.unread_bytes == 0


async def test_who_takes_no_answers_is_closed_as_idle(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.front.server.SWEEP_MS", 20)
    node = await nodes.start(connections_max_idle_ms="300", socket_send_buffer_bytes="4096")
    silent, slow = await nodes.peer(node), await nodes.peer(node)
    for peer in (silent, slow):
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]  # StreamReader has no public way to stop
        for _ in range(200):
            peer.send(LARGE, 4)
    await until(lambda: all(each.core.writing_paused for each in node.server.connections))
    connections = list(node.server.connections)
    deadline = time.monotonic() + 60
    while len(node.server.connections) == 2:
        assert time.monotonic() < deadline
        slow.reader._transport.resume_reading()  # type: ignore[attr-defined]  # as above
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await slow.reader.readexactly(200_000)
    assert [each.closed for each in connections] == [True, False]
    assert node.server.budget._unread.keys() <= {connections[1].core}


# -- limits of connections ---------------------------------------------------------------------------------------------


async def is_served(peer: Peer) -> bool:
    """Whether a request of this connection is answered."""
    return bool((await peer.call(REQUEST, 0)).error_code == 0)


async def waits(peer: Peer) -> bool:
    """Whether a request of this connection gets no answer for a while."""
    peer.send(REQUEST, 0)
    try:
        async with asyncio.timeout(0.2):
            return not await peer.reader.read(1)
    except TimeoutError:
        return True


async def test_max_connections_lets_later_ones_wait(nodes: Nodes) -> None:
    node = await nodes.start(max_connections="2")
    first, second, third = [await nodes.peer(node) for _ in range(3)]
    assert [await is_served(first), await is_served(second), await waits(third)] == [True] * 3
    first.writer.close()
    assert (await third.receive((1, 18, 0))).error_code == 0, "its turn came when another ended"


async def test_max_connections_of_a_listener(nodes: Nodes) -> None:
    node = await nodes.start(
        listeners="PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
        inter_broker_listener_name="PLAINTEXT",
        listener_name_other_max_connections="1",
    )
    mine = [await nodes.peer(node) for _ in range(3)]
    others = [await nodes.peer(node, "OTHER") for _ in range(2)]
    assert [await is_served(peer) for peer in mine] == [True] * 3
    assert [await is_served(others[0]), await waits(others[1])] == [True, True]


async def test_brokers_come_in_where_clients_fill_the_broker(nodes: Nodes) -> None:
    node = await nodes.start(
        listeners="PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT",
        inter_broker_listener_name="PLAINTEXT",
        max_connections="2",
    )
    script = Scripted(node)
    busy, idle = [await nodes.peer(node, "CLIENTS") for _ in range(2)]
    sent = busy.send(REQUEST, 0)
    await until(lambda: len(script.calls) == 1)
    broker = await nodes.peer(node)
    answer = broker.send(REQUEST, 0)
    assert await idle.is_closed(), "one that asks for nothing gives way first"
    script.answer(0)
    assert (await busy.receive(sent)).error_code == 0
    await until(lambda: len(script.calls) == 2)
    script.answer(1)
    assert (await broker.receive(answer)).error_code == 1
    late = await nodes.peer(node, "CLIENTS")
    assert await waits(late), "clients wait until there are fewer than max.connections"


async def test_max_connections_per_ip_closes_what_is_too_many(nodes: Nodes) -> None:
    node = await nodes.start(max_connections_per_ip="5", max_connections_per_ip_overrides="127.0.0.1:2")
    first, second, third = [await nodes.peer(node) for _ in range(3)]
    assert await third.is_closed()
    assert [await is_served(first), await is_served(second)] == [True, True]
    first.writer.close()
    await until(lambda: len(node.server.connections) == 1)
    assert await is_served(await nodes.peer(node))


async def test_limits_of_connections_are_dynamic(nodes: Nodes) -> None:
    node = await nodes.start()
    peers = [await nodes.peer(node) for _ in range(4)]
    assert [await is_served(peer) for peer in peers] == [True] * 4
    await alter(peers[3], "max.connections", "2")
    closed = [await peer.is_closed() for peer in peers[:2]]
    assert closed == [True, True], "those silent for longest"
    late = await nodes.peer(node)
    assert await waits(late)
    await alter(peers[3], "max.connections", "9")
    assert (await late.receive((1, 18, 0))).error_code == 0
    await alter(peers[3], "max.connections.per.ip", "3")
    assert await (await nodes.peer(node)).is_closed()
    await alter(peers[3], "listener.name.plaintext.max.connections", "3")
    assert await waits(await nodes.peer(node))
    refused = await alter(
        peers[3], "listener.name.plaintext.max.connections", "many", expected=ErrorCode.INVALID_REQUEST
    )
    assert "max.connections" in refused


async def test_a_rate_of_new_connections(nodes: Nodes) -> None:
    node = await nodes.start(max_connection_creation_rate="5")
    clock = node.reactor.clock
    node.reactor.clock = StoppedClock()
    peers = [await nodes.peer(node) for _ in range(8)]
    assert [await is_served(peer) for peer in peers[:5]] == [True] * 5
    assert len(node.server.connections) < 8, "the others wait in the kernel's queue"
    node.reactor.clock = clock
    assert [await is_served(peer) for peer in peers[5:]] == [True] * 3


async def alter(peer: Peer, name: str, value: str, expected: ErrorCode = ErrorCode.NONE) -> str:
    """Sets a key of all brokers; returns the message of the answer."""
    config = AlterableConfig(name=name, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
    (answer,) = (await peer.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)).responses
    assert answer.error_code == expected, answer
    return str(answer.error_message)


async def test_buffers_and_backlog_of_sockets(nodes: Nodes) -> None:
    """The kernel doubles a buffer's size for its own needs; the backlog is seen by what connects while nothing is accepted."""
    node = await nodes.start(
        socket_send_buffer_bytes="70000", socket_receive_buffer_bytes="50000", socket_listen_backlog_size="3"
    )
    await nodes.peer(node)
    await until(lambda: len(node.server.connections) == 1)
    (connection,) = node.server.connections
    assert connection._transport is not None
    connected = connection._transport.get_extra_info("socket")
    sizes = [connected.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
    factor = 2 if sys.platform == "linux" else 1
    assert sizes == [70_000 * factor, 50_000 * factor]
    for listener in node.server._listeners.values():
        listener.pause()
    with contextlib.ExitStack() as stack:
        connected_at_once = 0
        for _ in range(10):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(node.server.addresses["PLAINTEXT"])
            with contextlib.suppress(OSError):
                client.getpeername()
                connected_at_once += 1
        assert connected_at_once < 10, "more than a backlog of 3 and a little"


EIGHT_MIB = {"socket_request_max_bytes": str(8 << 20), "queued_max_request_bytes": str(8 << 20)}


@pytest.mark.parametrize(("settings", "frames", "bytes_max"), [({}, 5, 32 << 20), (EIGHT_MIB, 2, 8 << 20)])
async def test_requests_under_way_share_queued_max_request_bytes(
    nodes: Nodes, settings: dict[str, str], frames: int, bytes_max: int
) -> None:
    """The last one of the frames of 7 MiB waits."""
    node = await nodes.start(**settings)
    await _begin_frames(nodes, node, frames, 7 << 20)
    assert (frames - 1) * (7 << 20) <= node.server.budget.frame_bytes <= bytes_max


async def test_a_request_of_usual_size_does_not_wait_for_large_ones_that_do_not_arrive(nodes: Nodes) -> None:
    node = await nodes.start()
    await _begin_frames(nodes, node, 2, 104_000_000)
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=bytes(1_000_000))])
    peer = await nodes.peer(node)
    await asyncio.wait_for(peer.call(ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[data]), 9), 10)
    assert len(node.server.connections) == 3, "the others still send"


async def test_frames_that_stall_give_their_room_to_those_that_wait(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after the node was suspended: what has arrived in between is not read yet."""
    monkeypatch.setattr("barnabas.broker.front.server.FRAMES_SWEEP_MS", 3_600_000)
    node = await nodes.start()
    server, waiting = node.server, node.server.budget._shares[0].waiting
    await _begin_frames(nodes, node, 36, 1_000_000, share=0)
    peer = await nodes.peer(node)
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=bytes(900_000))])
    answer = asyncio.create_task(peer.call(ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[data]), 9))
    await until(lambda: len(server.budget._large) + len(waiting) == 37)
    now_ms = server.reactor.clock.monotonic_ms
    for _ in range(3):
        server._sweep_frames(now_ms() - 10_000)
    assert len(server.connections) == 37

    def found_room() -> bool:
        server._sweep_frames(now_ms())
        return not waiting

    await until(found_room)
    await asyncio.wait_for(answer, 30)
    assert server.budget.frame_bytes > 0, "only as many as others need lose their room"


async def test_frames_are_swept_again_and_again(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.front.server.FRAMES_SWEEP_MS", 10)
    node = await nodes.start()
    sweeps: list[int] = []
    monkeypatch.setattr(node.server.budget, "sweep", lambda: sweeps.append(1))
    await until(lambda: len(sweeps) > 2)


async def _begin_frames(nodes: Nodes, node: Node, count: int, size_bytes: int, share: int = 1) -> None:
    """Each on its connection. Returns when the last one waits for room."""
    for _ in range(count):
        peer = await nodes.peer(node)
        peer.writer.write(pack(">ihhih", size_bytes, 0, 9, 1, 0) + bytes(128 << 10))
    await until(lambda: node.server.budget._shares[share].waiting)
