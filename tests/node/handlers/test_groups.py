"""Groups over the wire: every version, parked answers, what a coordinator that loads, resigns or waits for its disk says."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.limits import MEMBER_METADATA_BYTES_MAX, MEMBER_PROTOCOLS_MAX
from barnabas.protocol.compression import Compression
from barnabas.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    SyncGroupRequest,
)
from barnabas.protocol.messages.shared import PartitionIndex
from barnabas.protocol.records import iter_batches
from tests.support.broker.group_requests import (
    NONE,
    PATIENT,
    commit,
    commit_request,
    committed,
    heartbeat,
    join_request,
    member,
    prepare,
)
from tests.support.broker.nodes import Nodes, Peer
from tests.support.waiting import eventually


@pytest.fixture
async def node(nodes: Nodes) -> Node:
    return await nodes.start(None, **PATIENT)


@pytest.mark.parametrize(("key_type", "topic"), [(0, "__consumer_offsets"), (1, "__transaction_state")])
async def test_find_makes_the_state_topic_and_answers_at_once(
    peer: Peer, node: Node, key_type: int, topic: str
) -> None:
    answer = await peer.call(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["a", "b"]), 6)
    found = [(c.key, c.error_code, c.node_id, c.port > 0) for c in answer.coordinators]
    assert found == [("a", NONE, 1, True), ("b", NONE, 1, True)]
    expected = 1 if key_type == 0 else node.config.get_int("transaction.state.log.num.partitions")
    assert node.image.partition_count(topic) == expected


@pytest.mark.parametrize("key_type", [0, 1])
async def test_find_while_fewer_brokers_are_registered_than_replicas_are_needed(nodes: Nodes, key_type: int) -> None:
    node = await nodes.start(offsets_topic_replication_factor="2", transaction_state_log_replication_factor="2")
    peer = await nodes.peer(node)
    answer = await peer.call(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["a"]), 6)
    assert [found.error_code for found in answer.coordinators] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert not node.image.topics_by_name


async def test_find_refuses_what_has_no_coordinator_here(peer: Peer) -> None:
    answer = await peer.call(FindCoordinatorRequest(key_type=2, coordinator_keys=["k"]), 6)
    assert answer.coordinators[0].error_code == ErrorCode.INVALID_REQUEST
    answer = await peer.call(FindCoordinatorRequest(key_type=3, key="k"), 2)
    assert (answer.error_code, answer.node_id) == (ErrorCode.INVALID_REQUEST, -1)


@pytest.mark.parametrize("version", range(10))
async def test_a_life_in_every_version(peer: Peer, version: int) -> None:
    await prepare(peer)
    joined = await peer.call(join_request(), version)
    if version >= 4:
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
        joined = await peer.call(join_request(member_id=joined.member_id), version)
    member_id = joined.member_id
    assert (joined.error_code, joined.generation_id, joined.leader) == (NONE, 1, member_id)
    sync = SyncGroupRequest(
        group_id="g", generation_id=1, member_id=member_id, protocol_type="consumer", protocol_name="range"
    )
    assert (await peer.call(sync, min(version, 5))).error_code == NONE
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
    assert (await peer.call(beat, min(version, 4))).error_code == NONE
    described = await peer.call(DescribeGroupsRequest(groups=["g"]), min(version, 6))
    assert described.groups[0].group_state == "Stable"
    assert [m.member_id for m in described.groups[0].members] == [member_id]
    listed = await peer.call(ListGroupsRequest(), min(version, 5))
    assert [g.group_id for g in listed.groups] == ["g"]
    leave = LeaveGroupRequest(group_id="g", member_id=member_id, members=[MemberIdentity(member_id=member_id)])
    left = await peer.call(leave, min(version, 5))
    assert left.error_code == NONE
    deleted = await peer.call(DeleteGroupsRequest(groups_names=["g", "other"]), min(version, 2))
    assert [(r.group_id, r.error_code) for r in deleted.results] == [
        ("g", NONE),
        ("other", ErrorCode.GROUP_ID_NOT_FOUND),
    ]


@pytest.mark.parametrize("version", range(2, 11))
async def test_offsets_in_every_version(peer: Peer, node: Node, version: int) -> None:
    await prepare(peer)
    topic = node.image.topic("t")
    assert topic is not None
    topic_id = topic.topic_id
    assert await commit(peer, 7, version, topic_id=topic_id) is NONE
    for read in range(1, 11):
        assert await committed(peer, read, topic_id=topic_id) == 7
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await commit(peer, 7, version, topic="x", topic_id=b"?" * 16) is unknown


async def test_parked_join_holds_up_only_answers(peer: Peer, another: Any, node: Node) -> None:
    await prepare(peer)
    leader = await member(peer)
    newcomer: Peer = await another()
    member_id = (await newcomer.call(join_request(), 9)).member_id
    parked = newcomer.send(join_request(member_id=member_id), 9)
    behind = newcomer.send(commit_request(5, group="other"), 9)
    # It takes effect, though its answer waits.
    await eventually(lambda: committed(peer, group="other"), 5)
    assert await heartbeat(peer, leader) is ErrorCode.REBALANCE_IN_PROGRESS
    again = await peer.call(join_request(member_id=leader), 9)
    assert again.generation_id == 2
    assert (await newcomer.receive(parked)).generation_id == 2
    assert (await newcomer.receive(behind)).topics[0].partitions[0].error_code == NONE


async def test_join_of_a_connection_that_closed_does_not_break_the_group(peer: Peer, another: Any, node: Node) -> None:
    await prepare(peer)
    leader = await member(peer)
    newcomer: Peer = await another()
    member_id = (await newcomer.call(join_request(), 9)).member_id
    newcomer.send(join_request(member_id=member_id), 9)
    await eventually(lambda: heartbeat(peer, leader), ErrorCode.REBALANCE_IN_PROGRESS)
    newcomer.writer.close()
    again = await peer.call(join_request(member_id=leader), 9)
    assert again.generation_id == 2
    assert {m.member_id for m in again.members} == {leader, member_id}


async def test_before_the_offsets_topic_exists_every_request_is_answered(peer: Peer) -> None:
    await peer.create("t", 1)
    leave = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")])
    codes = [
        (await peer.call(join_request(), 9)).error_code,
        (
            await peer.call(SyncGroupRequest(group_id="g", member_id="m", protocol_type="p", protocol_name="n"), 5)
        ).error_code,
        (await peer.call(HeartbeatRequest(group_id="g", member_id="m"), 4)).error_code,
        (await peer.call(leave, 5)).error_code,
        (await peer.call(DeleteGroupsRequest(groups_names=["g"]), 2)).results[0].error_code,
        await commit(peer, 1),
    ]
    assert codes == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(codes)


async def test_delete_offsets(peer: Peer) -> None:
    await prepare(peer)
    await commit(peer, 1)
    topics = [OffsetDeleteRequestTopic(name="t", partitions=[PartitionIndex(partition_index=0)])]
    answer = await peer.call(OffsetDeleteRequest(group_id="g", topics=topics), 0)
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (NONE, NONE)
    assert await committed(peer) == -1
    answer = await peer.call(OffsetDeleteRequest(group_id="nobody", topics=topics), 0)
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


async def test_assignment_too_large_to_store(peer: Peer) -> None:
    await prepare(peer)
    request = join_request()
    request.protocols[0].metadata = b"x" * MEMBER_METADATA_BYTES_MAX
    joined = await peer.call(request, 3)
    sync = SyncGroupRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    assert (await peer.call(sync, 3)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert await heartbeat(peer, joined.member_id) is ErrorCode.REBALANCE_IN_PROGRESS


async def test_door(peer: Peer) -> None:
    """What is refused without a look at the group."""
    await prepare(peer)
    request = join_request("")
    assert (await peer.call(request, 9)).error_code == ErrorCode.INVALID_GROUP_ID
    request = join_request()
    request.session_timeout_ms = 5_999
    assert (await peer.call(request, 9)).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert (await peer.call(SyncGroupRequest(group_id="g"), 5)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert (await peer.call(HeartbeatRequest(), 4)).error_code == ErrorCode.INVALID_GROUP_ID
    assert (await peer.call(LeaveGroupRequest(), 5)).error_code == ErrorCode.INVALID_GROUP_ID


async def test_offsets_are_compressed_where_the_broker_is_told_so(nodes: Nodes) -> None:
    node = await nodes.start(None, **PATIENT, offsets_topic_compression_codec="2")
    peer = await nodes.peer(node)
    await prepare(peer)
    assert await commit(peer, 7) is NONE
    log = node.replicas.leader("__consumer_offsets", 0).log
    (_, header), *_ = iter_batches(log.read(0, 1_000_000, end_offset=log.log_end_offset).records)
    assert header.compression == Compression.SNAPPY
    node.groups.on_resigned(0)
    node.groups.on_elected(0, node.replicas.leader("__consumer_offsets", 0).leader_epoch)
    assert await committed(peer) == 7


async def test_a_member_with_the_longest_name_gets_an_id_that_fits(peer: Peer) -> None:
    await prepare(peer)
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type="c", protocols=protocols
    )
    peer.client_id = "x" * 32_767
    joined = await peer.call(request, 4)
    assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert joined.member_id.startswith("x" * 1_000 + "-")
    request.member_id = joined.member_id
    assert (await peer.call(request, 4)).error_code == NONE


async def test_an_offset_may_be_kept_for_the_longest_time_there_is(peer: Peer) -> None:
    await prepare(peer)
    assert await commit(peer, 5, version=4, retention_time_ms=2**63 - 1) == NONE
    assert await committed(peer) == 5


async def test_very_many_members_leave_in_parts(node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    leave = node.groups.leave

    def leaving(request: LeaveGroupRequest, done: Any) -> None:
        asked.append(len(request.members))
        leave(request, done)

    monkeypatch.setattr(node.groups, "leave", leaving)
    await prepare(peer)
    member_id = await member(peer)
    names = [f"m{number}" for number in range(2_500)]
    names[2_400] = member_id
    members = [MemberIdentity(member_id=name) for name in names]
    answer = await peer.call(LeaveGroupRequest(group_id="g", members=members), 5)
    assert [each.member_id for each in answer.members] == names
    codes = [each.error_code for each in answer.members]
    assert codes.pop(2_400) == ErrorCode.NONE
    assert set(codes) == {ErrorCode.UNKNOWN_MEMBER_ID}
    assert asked == [1_000, 1_000, 500]


async def test_a_member_names_a_bounded_number_of_protocols(peer: Peer) -> None:
    await prepare(peer)
    request = join_request()
    request.protocols = [JoinGroupRequestProtocol(name=f"p{number}") for number in range(MEMBER_PROTOCOLS_MAX + 1)]
    assert (await peer.call(request, 9)).error_code == ErrorCode.INVALID_REQUEST
    request.protocols.pop()
    assert (await peer.call(request, 9)).error_code == ErrorCode.MEMBER_ID_REQUIRED


async def test_the_metadata_of_a_member_is_bounded(peer: Peer) -> None:
    """A member that could not be stored would only take memory."""
    await prepare(peer)
    request = join_request()
    request.protocols = [JoinGroupRequestProtocol(name="range", metadata=bytes(MEMBER_METADATA_BYTES_MAX))]
    assert (await peer.call(request, 9)).error_code == ErrorCode.MEMBER_ID_REQUIRED
    request.protocols.append(JoinGroupRequestProtocol(name="other", metadata=b"x"))
    assert (await peer.call(request, 9)).error_code == ErrorCode.INVALID_REQUEST
