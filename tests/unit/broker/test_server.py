"""Server: connections before the node is ready, silent ones, and the budget they share."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.errors import ErrorCode
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.metadata import ApiVersionsRequest
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.unit.broker.conftest import Nodes, Peer, Scripted, batch, until

REQUEST = ApiVersionsRequest()


async def test_silent_connections_are_closed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.broker.server.SWEEP_MS", 10)
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
    node = await nodes.start(socket_request_max_bytes=str(8 << 20))
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
            most = max(most, sum(connection.reserved_bytes for connection in node.server.connections))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    codes = await asyncio.gather(*(send(peer) for peer in peers))
    watching.cancel()
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 9
    assert most < (16 << 20) + 9 * (4 << 20), "the budget, and what each had before it was paused"
    assert not node.server._large
    assert sum(connection.reserved_bytes for connection in node.server.connections) < 9 << 20


async def test_answers_that_peers_leave_unread_share_a_budget(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty peers ask for 8 MiB five times over and read nothing: what is kept for them stays in bounds."""
    monkeypatch.setattr("barnabas.broker.server.UNREAD_ANSWER_BYTES_MAX", 32 << 20)
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
    await until(lambda: len(node.server._unread) == 20)
    for _ in range(50):
        await asyncio.sleep(0)
    assert node.server.unread_bytes < (32 << 20) + 20 * (2 << 20), "the budget, and a batch or two for everyone"
    for peer in peers:
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]  # as above
    for peer in peers:
        for correlation in range(1, 6):
            answer = await peer.receive((correlation, 1, 11))
            assert len(answer.responses[0].partitions[0].records) >= 1_000_000
    assert node.server.unread_bytes == 0
