"""Large requests of a node are served in slices: between two slices other connections are answered."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

from barnabas.broker.node.node import Node
from barnabas.broker.scheduling.slices import TURN_UNITS_MAX
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest, MetadataRequestTopic
from tests.support.broker.in_memory import InMemory
from tests.support.broker.nodes import Peer
from tests.support.requests import frame_of
from tests.support.waiting import until


async def test_others_are_served_while_a_large_request_is(peer: Peer, node: Node, another: Callable[..., Any]) -> None:
    other = await another()
    names = [f"unknown-{number}" for number in range(30_000)]
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )
    sent = peer.send(request, 12)
    behind = peer.send(ApiVersionsRequest(), 0)
    await until(lambda: node.slices.busy)
    assert not gc.isenabled()
    served = 0
    while node.slices.busy:
        await other.call(ApiVersionsRequest(), 0)
        served += 1
    assert served > 10
    answer = await peer.receive(sent)
    assert [topic.name for topic in answer.topics] == names
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert (await peer.receive(behind)).error_code == 0


async def test_a_connection_that_closes_ends_its_large_request(peer: Peer, node: Node) -> None:
    topics = [MetadataRequestTopic(name=f"unknown-{number}") for number in range(50_000)]
    peer.send(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)
    await until(lambda: node.slices.busy)
    peer.writer.close()
    await until(lambda: not node.slices.busy)
    assert gc.isenabled()


async def test_many_connections_share_a_turn(node: Node, another: Callable[..., Any]) -> None:
    """Each asks for less than a slice; together they would take a long turn."""
    peers = [await another() for _ in range(40)]
    names = [f"unknown-{number}" for number in range(1_900)]
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )
    sent = [peer.send(request, 12) for peer in peers]
    turns_over = 0

    def answered() -> bool:
        nonlocal turns_over
        turns_over += node.slices.turn_is_over
        return not any(connection.core.waits for connection in node.server.connections)

    await until(lambda: node.slices.turn_is_over)
    await until(answered)
    assert turns_over > len(peers) // 3, "they wait for their turn"
    for peer, number in zip(peers, sent, strict=True):
        assert len((await peer.receive(number)).topics) == len(names)


async def test_requests_of_one_read_are_served_in_later_turns_once_the_turn_is_over(node: Node) -> None:
    """Each of four requests takes a whole turn."""

    def costly(serve: Any, route: Any, call: Any) -> Any:
        node.slices.count(TURN_UNITS_MAX)
        return serve(route, call)

    node.server.router.set_interceptors([costly])
    client = InMemory(node, "c")
    client.receive(4 * frame_of(ApiVersionsRequest(), 0, 1, "c"))
    answered = []
    for _ in range(10):
        answered.append(len(client.written))
        await asyncio.sleep(0)
    assert set(answered) == {1, 2, 3, 4}, "one write in each turn"
    client.end()
