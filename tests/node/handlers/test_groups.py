"""Groups over the wire: every version, parked answers, what a coordinator that loads, resigns or waits for its disk says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from barnabas.broker.call import Call
from barnabas.broker.handlers import groups, transactions
from barnabas.broker.node import Node
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import MEMBER_METADATA_BYTES_MAX, MEMBER_PROTOCOLS_MAX
from barnabas.protocol import registry
from barnabas.protocol.compression import Compression
from barnabas.protocol.messages.admin import DeleteTopicsRequest
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
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    SyncGroupRequest,
)
from barnabas.protocol.messages.transactions import TxnOffsetCommitRequest
from barnabas.protocol.records import iter_batches
from barnabas.protocol.schema import decode, encode
from barnabas.runtime.clock import SystemClock
from tests.support.broker.nodes import Nodes, Peer
from tests.support.storage.gated_disk import GatedDisk
from tests.support.waiting import until

NONE = ErrorCode.NONE
PATIENT = {"group_initial_rebalance_delay_ms": "0", "offsets_topic_num_partitions": "1"}


@pytest.fixture
async def node(nodes: Nodes) -> Node:
    return await nodes.start(None, **PATIENT)


async def prepare(peer: Peer) -> None:
    """A topic, and a coordinator."""
    await peer.create("t", 2)
    await find(peer)


async def find(peer: Peer) -> None:
    answer = await peer.call(FindCoordinatorRequest(key="g"), 3)
    assert answer.error_code == NONE, answer


def join_request(group: str = "g", member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range")],
    )


def commit_request(offset: int, *, group: str = "g", topic: str = "t", **fields: Any) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="note")
    topics = [OffsetCommitRequestTopic(name=topic, topic_id=fields.pop("topic_id", bytes(16)), partitions=[partition])]
    return OffsetCommitRequest(group_id=group, topics=topics, **fields)


async def commit(peer: Peer, offset: int, version: int = 9, **fields: Any) -> ErrorCode:
    answer = await peer.call(commit_request(offset, **fields), version)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def fetch_request(group: str = "g", *, topic_id: bytes = bytes(16)) -> OffsetFetchRequest:
    topic = OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[0])
    return OffsetFetchRequest(
        group_id=group,
        topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])],
        groups=[OffsetFetchRequestGroup(group_id=group, topics=[topic])],
    )


async def committed(peer: Peer, version: int = 8, **fields: Any) -> int:
    answer = await peer.call(fetch_request(**fields), version)
    topics = answer.groups[0].topics if version >= 8 else answer.topics
    (partition,) = topics[0].partitions
    assert partition.error_code == NONE
    assert isinstance(partition.committed_offset, int)
    return partition.committed_offset


async def member(peer: Peer, group: str = "g") -> str:
    """A group of one, Stable."""
    member_id = (await peer.call(join_request(group), 9)).member_id
    joined = await peer.call(join_request(group, member_id), 9)
    assert joined.error_code == NONE
    synced = await peer.call(
        SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
        ),
        5,
    )
    assert synced.error_code == NONE
    assert isinstance(member_id, str)
    return member_id


async def eventually(ask: Callable[[], Awaitable[object]], expected: object) -> None:
    """Asks again until the answer is this one; 5 s at most."""
    async with asyncio.timeout(5):
        while await ask() != expected:
            pass


async def heartbeat(peer: Peer, member_id: str, generation: int = 1) -> ErrorCode:
    answer = await peer.call(HeartbeatRequest(group_id="g", member_id=member_id, generation_id=generation), 4)
    return ErrorCode(answer.error_code)


# -- finding the coordinator


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


# -- versions


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


@pytest.mark.parametrize("api_key", [8, 9, 10, 11, 12, 13, 14, 15, 16, 28, 42, 47])
def test_every_request_can_be_refused_in_every_version(api_key: int) -> None:
    api = registry.API[api_key]
    requests: list[Any] = [
        api.request(),
        fetch_request(),
        commit_request(1),
        FindCoordinatorRequest(coordinator_keys=["k"]),
        DescribeGroupsRequest(groups=["g"]),
        DeleteGroupsRequest(groups_names=["g"]),
        LeaveGroupRequest(members=[MemberIdentity(member_id="m")]),
        TxnOffsetCommitRequest(),
    ]
    for request in requests:
        if api_key != type(request).API_KEY:
            continue
        for version in range(api.versions[0], api.versions[1] + 1):
            connection: Any = None
            call: Call[Any] = Call(request, version, api_key, "c", connection, "127.0.0.1")
            family = transactions if api_key == 28 else groups
            _, refuse = family.HANDLERS[api.request]
            answer = refuse(call, BrokerError(ErrorCode.NOT_COORDINATOR))
            decoded = decode(api.response, encode(answer, version), version)
            if request != api.request() or api_key not in (8, 9, 10, 15, 28, 42):
                assert "error_code=16" in repr(decoded).replace("<ErrorCode.NOT_COORDINATOR: 16>", "16")


# -- parked answers


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


# -- the coordinator comes and goes


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


# -- what is committed


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


async def test_delete_offsets(peer: Peer) -> None:
    await prepare(peer)
    await commit(peer, 1)
    topics = [OffsetDeleteRequestTopic(name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)])]
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
