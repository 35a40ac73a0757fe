"""Permissions that change while a client is connected, and what is hidden from groups: on a whole node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.broker.api.access import CLUSTER_NAME
from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.limits import SUBSCRIPTION_NAMES_MAX
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.groups import FindCoordinatorRequest, SyncGroupRequest
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.transactions import InitProducerIdRequest
from tests.support.broker.nodes import Nodes, Peer
from tests.support.broker.some_access import Question, SomeAccess

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
MEMBER = "AAAAAAAAAAAAAAAAAAAAAQ"


def may(operation: AclOperation, kind: AclResourceType, name: str = CLUSTER_NAME) -> Question:
    return operation, kind, name


def reads(*topics: str) -> list[Question]:
    return [may(AclOperation.READ, AclResourceType.TOPIC, topic) for topic in topics]


async def client_of(nodes: Nodes, node: Node, access: SomeAccess) -> Peer:
    """A connection with these permissions."""
    before = set(node.server.connections)
    peer = await nodes.peer(node)
    await peer.call(FindCoordinatorRequest(key="", key_type=0), 1)
    (connection,) = set(node.server.connections) - before
    connection.access = access
    return peer


def session(*topics: str, session_id: int = 0, epoch: int = 0, wait_ms: int = 0) -> FetchRequest:
    parts = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)]
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        max_wait_ms=wait_ms,
        min_bytes=1,
        topics=[FetchTopic(topic=topic, partitions=parts) for topic in topics],
    )


def codes(answer: Any) -> dict[str, int]:
    return {topic.topic: part.error_code for topic in answer.responses for part in topic.partitions}


async def test_an_idle_partition_of_a_fetch_session_is_refused_once_it_may_not_be_read(
    nodes: Nodes, node: Node, peer: Peer
) -> None:
    await peer.create("a")
    await peer.create("b")
    access = SomeAccess(*reads("a", "b"))
    client = await client_of(nodes, node, access)
    first = await client.call(session("a", "b"), 11)
    assert codes(first) == {"a": 0, "b": 0}
    number = first.session_id
    assert codes(await client.call(session(session_id=number, epoch=1), 11)) == {}
    access.allowed.discard(reads("b")[0])
    assert codes(await client.call(session(session_id=number, epoch=2), 11)) == {"b": DENIED}
    access.allowed.add(reads("b")[0])
    again = await client.call(session(session_id=number, epoch=3), 11)
    assert codes(again) == {"b": 0}


async def test_idle_partitions_are_asked_about_again_only_if_decisions_may_have_changed(
    nodes: Nodes, node: Node, peer: Peer
) -> None:
    await peer.create("a")
    await peer.create("b")
    access = SomeAccess(*reads("a", "b"))
    access.standing = "first"
    client = await client_of(nodes, node, access)
    number = (await client.call(session("a", "b"), 11)).session_id
    await client.call(session(session_id=number, epoch=1), 11)
    access.asked.clear()
    assert codes(await client.call(session(session_id=number, epoch=2), 11)) == {}
    assert access.asked == []
    access.allowed.discard(reads("b")[0])
    access.standing = "second"
    for epoch in (3, 4):
        assert codes(await client.call(session(session_id=number, epoch=epoch), 11)) == {"b": DENIED}
    assert access.asked == [*reads("a", "b"), *reads("b")], "a refused partition is asked about each time"
    access.allowed.add(reads("b")[0])
    access.standing = "third"
    assert codes(await client.call(session(session_id=number, epoch=5), 11)) == {"b": 0}
    assert codes(await client.call(session(session_id=number, epoch=6), 11)) == {}


async def test_a_refused_partition_answers_a_waiting_fetch_at_once(nodes: Nodes, node: Node, peer: Peer) -> None:
    await peer.create("a")
    client = await client_of(nodes, node, SomeAccess(*reads("a")))
    async with asyncio.timeout(60):
        answer = await client.call(session("a", "b", epoch=-1, wait_ms=600_000), 11)
    assert codes(answer) == {"a": 0, "b": DENIED}


async def test_a_fetch_of_many_partitions_refuses_those_that_may_not_be_read(
    nodes: Nodes, node: Node, peer: Peer
) -> None:
    await peer.create("a", 300)
    parts = [FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=10) for n in range(300)]
    topics = [FetchTopic(topic=topic, partitions=parts) for topic in ("a", "b")]
    client = await client_of(nodes, node, SomeAccess(*reads("a")))
    for epoch in (-1, 0):
        answer = await client.call(FetchRequest(session_epoch=epoch, max_wait_ms=0, topics=topics), 11)
        found = {(topic.topic, part.error_code) for topic in answer.responses for part in topic.partitions}
        assert found - {("a", ErrorCode.NOT_LEADER_OR_FOLLOWER)} == {
            ("a", 0),
            ("b", DENIED),
        }  # not all of "a" are open yet


async def test_a_topic_that_a_client_may_not_create_is_not_created_and_nothing_waits(nodes: Nodes, node: Node) -> None:
    described = may(AclOperation.DESCRIBE, AclResourceType.TOPIC, "new")
    client = await client_of(nodes, node, SomeAccess(described))
    wanted = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
    answer = await client.call(wanted, 9)
    assert [topic.error_code for topic in answer.topics] == [DENIED]
    assert node.current_image.image.topic("new") is None
    creates = may(AclOperation.CREATE, AclResourceType.TOPIC, "new")
    client = await client_of(nodes, node, SomeAccess(described, creates))
    assert [topic.error_code for topic in (await client.call(wanted, 9)).topics] == [0]


async def test_a_coordinator_that_a_client_may_not_ask_for_creates_no_topic(nodes: Nodes, node: Node) -> None:
    client = await client_of(nodes, node, SomeAccess())
    answer = await client.call(FindCoordinatorRequest(key_type=1, coordinator_keys=["t"]), 6)
    assert [each.error_code for each in answer.coordinators] == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    assert node.current_image.image.topic("__transaction_state") is None


@pytest.mark.parametrize("allowed", [False, True])
async def test_two_phase_commit_has_a_permission_of_its_own(nodes: Nodes, allowed: bool) -> None:
    node = await nodes.start(transaction_two_phase_commit_enable="true", transaction_state_log_num_partitions="1")
    kind = AclResourceType.TRANSACTIONAL_ID
    access = SomeAccess(
        may(AclOperation.WRITE, kind, "t"), may(AclOperation.DESCRIBE, kind, "t"), may(AclOperation.READ, kind, "t")
    )
    if allowed:
        access.allowed.add(may(AclOperation.TWO_PHASE_COMMIT, kind, "t"))
    client = await client_of(nodes, node, access)
    await client.call(FindCoordinatorRequest(key="t", key_type=1), 3)
    request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1_000, enable_2pc=True)
    answer = await client.call(request, 6)
    while answer.error_code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
        answer = await client.call(request, 6)
    assert answer.error_code == (0 if allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


async def test_a_pattern_of_a_group_matches_only_topics_that_the_member_may_describe(
    nodes: Nodes, node: Node, peer: Peer
) -> None:
    await peer.create("orders-open")
    await peer.create("orders-secret")
    group = AclResourceType.GROUP
    access = SomeAccess(
        may(AclOperation.READ, group, "g"),
        may(AclOperation.DESCRIBE, group, "g"),
        may(AclOperation.DESCRIBE, AclResourceType.TOPIC, "orders-open"),
    )
    client = await client_of(nodes, node, access)
    await client.call(FindCoordinatorRequest(key="g", key_type=0), 3)
    joined = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=MEMBER,
        rebalance_timeout_ms=60_000,
        subscribed_topic_regex="orders-.*",
        topic_partitions=[],
    )
    wanted = node.current_image.image.topic("orders-open")
    assert wanted is not None
    assigned: set[bytes] = set()
    async with asyncio.timeout(60):
        answer = await client.call(joined, 1)
        while not assigned:
            if not answer.error_code:
                beat = ConsumerGroupHeartbeatRequest(group_id="g", member_id=MEMBER, member_epoch=answer.member_epoch)
                answer = await client.call(beat, 1)
            else:
                answer = await client.call(joined, 1)
            if answer.assignment is not None:
                assigned = {bytes(each.topic_id) for each in answer.assignment.topic_partitions}
            await asyncio.sleep(0)
    assert assigned == {wanted.topic_id}
    described = await client.call(ConsumerGroupDescribeRequest(group_ids=["g"]), 1)
    assert described.groups[0].error_code == 0
    access.allowed.discard(may(AclOperation.DESCRIBE, AclResourceType.TOPIC, "orders-open"))
    described = await client.call(ConsumerGroupDescribeRequest(group_ids=["g"]), 1)
    assert (described.groups[0].error_code, described.groups[0].members) == (DENIED, [])


async def test_a_list_asks_without_lines_in_the_audit_log(nodes: Nodes, node: Node, peer: Peer) -> None:
    await peer.create("a")
    access = SomeAccess()
    client = await client_of(nodes, node, access)
    assert (await client.call(MetadataRequest(topics=None), 9)).topics == []
    assert may(AclOperation.DESCRIBE, AclResourceType.TOPIC, "a") in access.asked
    assert access.logged == [each for each in access.logged if each[1] is not AclResourceType.TOPIC]


async def test_a_subscription_of_too_many_names_is_refused_without_a_question_about_each(
    nodes: Nodes, node: Node
) -> None:
    reads_group = may(AclOperation.READ, AclResourceType.GROUP, "g")
    access = SomeAccess(reads_group)
    client = await client_of(nodes, node, access)
    joined = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=MEMBER,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[f"t{number}" for number in range(SUBSCRIPTION_NAMES_MAX + 1)],
        topic_partitions=[],
    )
    assert (await client.call(joined, 1)).error_code == ErrorCode.INVALID_REQUEST
    assert access.asked == [reads_group]


async def test_a_sync_without_a_protocol_is_refused_before_its_permission_as_in_kafka(nodes: Nodes, node: Node) -> None:
    client = await client_of(nodes, node, SomeAccess())
    answer = await client.call(SyncGroupRequest(group_id="g", protocol_type="consumer"), 5)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    answer = await client.call(SyncGroupRequest(group_id="g", protocol_type="consumer", protocol_name="range"), 5)
    assert answer.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
