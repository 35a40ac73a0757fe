"""Groups while their coordinator loads, resigns, stalls or waits for its disk, and offsets that expire."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import DeleteTopicsRequest
from barnabas.protocol.messages.groups import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
)
from barnabas.runtime.clock import SystemClock
from tests.support.broker.group_requests import (
    NONE,
    PATIENT,
    commit,
    commit_request,
    committed,
    fetch_request,
    heartbeat,
    join_request,
    member,
    prepare,
)
from tests.support.broker.nodes import Nodes, Peer
from tests.support.storage.gated_disk import GatedDisk
from tests.support.waiting import eventually, until


@pytest.fixture
async def node(nodes: Nodes) -> Node:
    return await nodes.start(None, **PATIENT)


async def test_resignation_refuses_what_is_parked(peer: Peer, another: Any, node: Node) -> None:
    await prepare(peer)
    leader = await member(peer)
    newcomer: Peer = await another()
    member_id = (await newcomer.call(join_request(), 9)).member_id
    parked = newcomer.send(join_request(member_id=member_id), 9)
    await eventually(lambda: heartbeat(peer, leader), ErrorCode.REBALANCE_IN_PROGRESS)
    node.groups.on_resigned(0)
    assert (await newcomer.receive(parked)).error_code == ErrorCode.NOT_COORDINATOR
    assert await heartbeat(peer, leader) is ErrorCode.NOT_COORDINATOR
    assert await commit(peer, 1) is ErrorCode.NOT_COORDINATOR
    listed = await peer.call(ListGroupsRequest(), 5)
    assert (listed.error_code, listed.groups) == (NONE, [])
    node.groups.on_elected(0, node.replicas.leader("__consumer_offsets", 0).leader_epoch)
    assert await heartbeat(peer, leader) is NONE
    assert not node.groups._timers or node.groups._timers.keys() == {0}


async def test_while_loading_clients_are_told_and_sessions_rest(peer: Peer, node: Node) -> None:
    await prepare(peer)
    leader = await member(peer)
    for offset in range(60):  # more than is loaded in one slice
        topics = commit_request(offset, group="large").topics * 80
        topics[0].partitions[0].committed_metadata = "x" * 100
        await peer.call(OffsetCommitRequest(group_id="large", topics=topics), 9)
    node.groups.on_resigned(0)
    node.groups.on_elected(0, node.replicas.leader("__consumer_offsets", 0).leader_epoch)
    assert node.groups.host.is_loading
    sent = [
        peer.send(HeartbeatRequest(group_id="g", member_id=leader, generation_id=1), 4),
        peer.send(join_request(), 9),
        peer.send(commit_request(1), 9),
        peer.send(ListGroupsRequest(), 5),
        peer.send(fetch_request(), 8),
    ]
    answers = [await peer.receive(one) for one in sent]
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert [answer.error_code for answer in (answers[0], answers[1], answers[3])] == [NONE, loading, loading]
    assert answers[2].topics[0].partitions[0].error_code == loading
    assert answers[4].groups[0].error_code == loading
    node.groups.on_marker(0, 9, True)  # one that comes meanwhile is kept
    await until(lambda: not node.groups.host.is_loading)
    assert await committed(peer, group="large") == 59
    assert await heartbeat(peer, leader) is NONE


class Stalled(SystemClock):
    """A monotonic clock that is a minute ahead, as after a process stood still."""

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + 60_000


async def test_after_a_stall_heartbeats_are_read_before_sessions_end(peer: Peer, another: Any, node: Node) -> None:
    await prepare(peer)
    silent, alive = await member(peer, "h"), await member(peer)
    node.reactor.client_time.clock = Stalled()
    node.groups._on_timer(0)  # every session is long over
    assert await heartbeat(peer, alive) is NONE
    await eventually(lambda: state_of(peer, "h"), "Empty")
    assert await heartbeat(peer, alive) is NONE
    assert silent != alive


async def state_of(peer: Peer, group: str) -> str:
    described = await peer.call(DescribeGroupsRequest(groups=[group]), 6)
    state = described.groups[0].group_state
    assert isinstance(state, str)
    return state


async def test_nothing_is_told_before_it_is_durable(nodes: Nodes) -> None:
    disk = GatedDisk()
    node = await nodes.start(disk, **PATIENT, log_flush_interval_messages="1")
    peer, other = await nodes.peer(node), await nodes.peer(node)
    await prepare(peer)
    assert await commit(peer, 1) is NONE
    disk.gate.clear()
    answered = asyncio.create_task(peer.receive(peer.send(commit_request(2), 9)))
    await until(lambda: node.replicas.leader("__consumer_offsets", 0).high_watermark < end_of(node))
    read = asyncio.create_task(other.receive(other.send(fetch_request(), 8)))
    third = await nodes.peer(node)
    for _ in range(5):
        await third.call(DescribeGroupsRequest(groups=["g"]), 6)  # the node has had time to answer
    assert not answered.done()
    assert not read.done()
    disk.gate.set()
    assert (await answered).topics[0].partitions[0].error_code == NONE
    assert (await read).groups[0].topics[0].partitions[0].committed_offset == 2


def end_of(node: Node) -> int:
    return node.replicas.leader("__consumer_offsets", 0).log.log_end_offset


class Later(SystemClock):
    """A wall clock that is a minute ahead."""

    def now_ms(self) -> int:
        return super().now_ms() + 60_000


async def test_expired_offsets_go_by_themselves(nodes: Nodes) -> None:
    node = await nodes.start(None, **PATIENT, offsets_retention_minutes="1", offsets_retention_check_interval_ms="10")
    peer = await nodes.peer(node)
    await prepare(peer)
    assert await commit(peer, 1) is NONE
    assert await committed(peer) == 1
    node.reactor.client_time.clock = Later()
    await eventually(lambda: committed(peer), -1)
    assert (await peer.call(ListGroupsRequest(), 5)).groups == []


async def test_a_shard_that_was_replaced_during_the_expiry_expires_nothing(nodes: Nodes) -> None:
    """Another broker has coordinated the group since: the old shard does not know what was committed there."""
    node = await nodes.start(None, **PATIENT, offsets_retention_minutes="1")
    peer = await nodes.peer(node)
    await prepare(peer)
    assert await commit(peer, 1) is NONE
    node.reactor.client_time.clock = Later()
    expiry = node.groups._expire()
    shards = node.groups.host.active_shards

    def with_replaced_one() -> list[tuple[int, Any]]:
        found = shards()
        epoch = node.groups.host.coordinator_epoch(0)
        node.groups.on_resigned(0)
        node.groups.on_elected(0, epoch)
        return found

    node.groups.host.active_shards = with_replaced_one  # type: ignore[method-assign]  # between two slices
    assert next(expiry, "nothing was written") == "nothing was written"
    assert await committed(peer) == 1


async def test_offsets_of_a_deleted_topic_go_with_it(peer: Peer) -> None:
    await prepare(peer)
    await commit(peer, 1)
    await peer.call(DeleteTopicsRequest(topic_names=["t"], timeout_ms=5_000), 5)
    assert await committed(peer) == -1
