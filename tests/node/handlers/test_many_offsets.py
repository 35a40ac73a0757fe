"""Commits and deletions of more offsets than one turn of the loop writes."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.broker.api.call import AnyPending
from barnabas.broker.coordinator.groups.committing import Committer
from barnabas.broker.coordinator.groups.effects import JoinCall
from barnabas.broker.coordinator.groups.records import CommittedOffset, OffsetRecord
from barnabas.broker.handlers import group_offsets, offset_parts
from barnabas.broker.node.node import Node
from barnabas.broker.scheduling.slices import LARGE_REQUESTS_AT_ONCE, Slices, WorkResult, advance
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from barnabas.protocol.records import iter_batches
from barnabas.protocol.schema import Message
from barnabas.work import Work, finished
from tests.support.broker.nodes import Nodes, Peer
from tests.support.waiting import until

COUNT = 100
AT_ONCE = 8
PER_WAKE_UP = 2 * AT_ONCE  # a batch has the parts of one wake-up
STATE_TOPICS = {"offsets_topic_num_partitions": "1", "transaction_state_log_num_partitions": "1"}


@pytest.fixture
async def node(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(offset_parts, "RECORDS_AT_ONCE", AT_ONCE)
    return await nodes.start(None, **STATE_TOPICS)


async def prepare(peer: Peer) -> None:
    await peer.create("t", COUNT)
    answer = await peer.call(FindCoordinatorRequest(key="g"), 3)
    assert answer.error_code == 0


def commit_request(group: str = "g", metadata: str = "") -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(partition_index=n, committed_offset=n + 1, committed_metadata=metadata)
        for n in range(COUNT)
    ]
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)])


async def commit(peer: Peer, request: OffsetCommitRequest) -> set[int]:
    answer = await peer.call(request, 9)
    assert len(answer.topics[0].partitions) == COUNT
    return {partition.error_code for partition in answer.topics[0].partitions}


async def committed(peer: Peer) -> dict[int, int]:
    answer = await peer.call(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]), 8)
    return {
        partition.partition_index: partition.committed_offset
        for topic in answer.groups[0].topics
        for partition in topic.partitions
    }


def batch_sizes(node: Node) -> list[int]:
    """How many records each batch of __consumer_offsets has."""
    log = node.replicas.leader("__consumer_offsets", 0).log
    data = log.read(0, 1 << 24, end_offset=log.log_end_offset).records
    return [header.record_count for _, header in iter_batches(bytes(data)) if not header.is_control]


ALL = {n: n + 1 for n in range(COUNT)}


async def test_a_commit_is_written_in_parts(peer: Peer, node: Node) -> None:
    await prepare(peer)
    assert await commit(peer, commit_request()) == {0}
    assert await committed(peer) == ALL
    sizes = batch_sizes(node)
    assert AT_ONCE <= max(sizes) <= PER_WAKE_UP
    assert sum(sizes) == COUNT


async def test_a_commit_in_a_transaction_is_written_in_parts_and_takes_effect_at_once(peer: Peer, node: Node) -> None:
    await prepare(peer)
    await peer.call(FindCoordinatorRequest(key="x", key_type=1), 3)
    identity = await peer.call(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 4)
    ids = {"producer_id": identity.producer_id, "producer_epoch": identity.producer_epoch}
    added = await peer.call(AddOffsetsToTxnRequest(transactional_id="x", group_id="g", **ids), 3)
    assert added.error_code == 0
    partitions = [TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=n + 1) for n in range(COUNT)]
    request = TxnOffsetCommitRequest(
        transactional_id="x", group_id="g", topics=[TxnOffsetCommitRequestTopic(name="t", partitions=partitions)], **ids
    )
    answer = await peer.call(request, 3)
    assert {partition.error_code for partition in answer.topics[0].partitions} == {0}
    assert max(batch_sizes(node)) <= PER_WAKE_UP
    assert set((await committed(peer)).values()) <= {-1}, "pending until the marker"
    assert (await peer.call(EndTxnRequest(transactional_id="x", committed=True, **ids), 3)).error_code == 0
    while await committed(peer) != ALL:  # the marker follows the answer
        pass


async def test_a_deletion_is_written_in_parts(peer: Peer, node: Node) -> None:
    await prepare(peer)
    assert await commit(peer, commit_request()) == {0}
    partitions = [OffsetDeleteRequestPartition(partition_index=n) for n in range(COUNT + 1)]
    other = [OffsetDeleteRequestPartition(partition_index=0)]
    answer = await peer.call(
        OffsetDeleteRequest(
            group_id="g",
            topics=[
                OffsetDeleteRequestTopic(name="nope", partitions=other),
                OffsetDeleteRequestTopic(name="t", partitions=partitions),
            ],
        ),
        0,
    )
    codes = [[each.error_code for each in topic.partitions] for topic in answer.topics]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [[unknown], [0] * COUNT + [unknown]]
    assert await committed(peer) == {}
    assert max(batch_sizes(node)) <= PER_WAKE_UP


async def test_a_group_is_deleted_in_parts(peer: Peer, node: Node) -> None:
    await prepare(peer)
    assert await commit(peer, commit_request()) == {0}
    answer = await peer.call(DeleteGroupsRequest(groups_names=["g", "g", "nope"]), 2)
    assert [(each.group_id, each.error_code) for each in answer.results] == [
        ("g", 0),
        ("nope", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    assert await committed(peer) == {}
    assert max(batch_sizes(node)) <= PER_WAKE_UP
    described = await peer.call(DescribeGroupsRequest(groups=["g"]), 6)
    assert described.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_member_that_joins_between_two_parts_keeps_its_group(
    peer: Peer, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(peer)
    assert await commit(peer, commit_request()) == {0}
    write = node.groups.write
    calls: list[int] = []

    def joined(group_id: str, decide: object, done: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            request = JoinGroupRequest(
                group_id="g",
                session_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
            )
            node.groups.join(JoinCall(request, 3, "", "/", "member", _NoReply()))
        write(group_id, decide, done)  # type: ignore[arg-type]  # a stand-in for every kind of decision

    monkeypatch.setattr(node.groups, "write", joined)
    answer = await peer.call(DeleteGroupsRequest(groups_names=["g"]), 2)
    assert answer.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    monkeypatch.undo()
    assert len(await committed(peer)) == COUNT - 2 * AT_ONCE


class _NoReply:
    """Takes no answer."""

    def send(self, response: object) -> None:
        pass

    def refuse(self, code: ErrorCode) -> None:
        pass


@pytest.mark.parametrize("kind", ["commit", "deletion", "group"])
async def test_all_parts_are_written_after_the_connection_ended(nodes: Nodes, node: Node, kind: str) -> None:
    peer = await nodes.peer(node)
    await prepare(peer)
    requests: dict[str, tuple[Message, int]] = {
        "commit": (commit_request(), 9),
        "deletion": (
            OffsetDeleteRequest(
                group_id="g",
                topics=[
                    OffsetDeleteRequestTopic(
                        name="t", partitions=[OffsetDeleteRequestPartition(partition_index=n) for n in range(COUNT)]
                    )
                ],
            ),
            0,
        ),
        "group": (DeleteGroupsRequest(groups_names=["g"]), 2),
    }
    if kind != "commit":
        assert await commit(peer, commit_request()) == {0}
    log = node.replicas.leader("__consumer_offsets", 0).log
    before = log.log_end_offset
    leaving = await nodes.peer(node)
    request, version = requests[kind]
    call = asyncio.ensure_future(leaving.call(request, version))
    await until(lambda: log.log_end_offset > before)
    assert log.log_end_offset < before + COUNT, "the first part"
    leaving.writer.transport.abort()
    call.cancel()
    await until(lambda: log.log_end_offset >= before + COUNT)
    assert await committed(peer) == (ALL if kind == "commit" else {})


async def test_clients_that_leave_have_no_more_requests_in_memory_than_clients_that_stay(
    nodes: Nodes, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await nodes.peer(node)
    await prepare(peer)
    at_once, begun = [0], 0
    start = offset_parts.write_to_the_end

    def counted(slices: Slices, writing: Work, pending: AnyPending) -> None:
        nonlocal begun

        def noted() -> Work:
            at_once.append(at_once[-1] + 1)
            try:
                yield from writing
            finally:
                at_once.append(at_once[-1] - 1)

        begun += 1
        start(slices, noted(), pending)

    monkeypatch.setattr(group_offsets, "write_to_the_end", counted)
    request = commit_request()
    request.topics[0].partitions = request.topics[0].partitions * 60  # decoded in slices
    for number in range(1, 7):
        leaving = await nodes.peer(node)
        call = asyncio.ensure_future(leaving.call(request, 9))
        await until(lambda number=number: begun == number or bool(node.slices.requests.waiting))  # type: ignore[misc]  # bound here
        leaving.writer.transport.abort()
        call.cancel()
    await until(lambda: at_once[-1] == 0 and not node.slices.requests.running)
    assert begun >= LARGE_REQUESTS_AT_ONCE
    assert max(at_once) == LARGE_REQUESTS_AT_ONCE


async def test_a_commit_that_needs_more_than_one_batch_may_hold_is_refused_as_a_whole(peer: Peer, node: Node) -> None:
    """Kafka's answer. The group id is in the key of each of 100 offsets: 3 MB for a request of 34 kB."""
    await prepare(peer)
    before = node.replicas.leader("__consumer_offsets", 0).log.log_end_offset
    assert await commit(peer, commit_request("g" * 32_000)) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert node.replicas.leader("__consumer_offsets", 0).log.log_end_offset == before


async def test_the_error_of_a_part_is_the_answer_for_all(
    peer: Peer, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(peer)
    write = node.groups.write
    calls: list[int] = []

    def resigned(group_id: str, decide: object, done: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            node.groups.on_resigned(0)
        write(group_id, decide, done)  # type: ignore[arg-type]  # a stand-in for every kind of decision

    monkeypatch.setattr(node.groups, "write", resigned)
    assert await commit(peer, commit_request()) == {ErrorCode.NOT_COORDINATOR}
    assert len(calls) <= 4, "later parts are not written"


async def test_the_sizes_of_very_many_offsets_are_added_up_in_slices(peer: Peer, node: Node) -> None:
    await prepare(peer)
    value = CommittedOffset(1, -1, "", 0)
    records = [OffsetRecord("g", "t", number, value) for number in range(30_000)]
    outcomes: list[BrokerError | None] = []
    work = offset_parts.commit_in_parts(node.groups, Committer("g", "", None, -1, 9), records, None, outcomes.append)
    rest = advance(work)
    assert not isinstance(rest, WorkResult)
    assert outcomes == []
    finished(rest)
    (outcome,) = outcomes
    assert outcome is not None
    assert outcome.code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE


async def test_no_part_of_a_deletion_is_written_after_one_that_failed(peer: Peer, node: Node) -> None:
    """Else the answer could be an error and the group deleted."""
    await prepare(peer)
    assert await commit(peer, commit_request()) == {0}
    outcomes: list[object] = []
    deleting = offset_parts.delete_group_in_parts(node.groups, "g", outcomes.append)
    next(deleting)
    part = node.groups.host._partitions[0]
    queue, part.queue = part.queue, []
    node.groups.host._refuse(part, queue, BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS))
    (error,) = outcomes
    assert isinstance(error, BrokerError)
    finished(deleting)
    assert await committed(peer) == ALL
