"""Requests of users with different permissions are answered as Kafka 4.3.1 answers them: codes, names, hidden elements, messages."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from barnabas.broker.metadata.decision import MetadataDecision
from barnabas.broker.metadata.records import AccessControlEntryRecord
from barnabas.broker.node import Node
from barnabas.broker.security.authorizer_keys import AUTHORIZER_CLASS
from barnabas.broker.security.principal import Principal
from barnabas.protocol.messages.groups import FindCoordinatorRequest
from tests.support.broker.nodes import Nodes, Peer
from tests.support.oracle.outlines import outline
from tests.support.oracle.permission_cases import GOLDEN, cases, users
from tests.support.oracle.permission_requests import DOOMED, GROUP, TOPICS, TRANSACTION, World
from tests.support.oracle.permissions_in_kafka import preparations

KAFKA: dict[str, Any] = json.loads(GOLDEN.read_text())


async def peer_of(nodes: Nodes, node: Node, user: str) -> Peer:
    """A connection of a user, as after a login."""
    before = set(node.server.connections)
    peer = await nodes.peer(node)
    await peer.call(FindCoordinatorRequest(key="", key_type=0), 1)
    (connection,) = set(node.server.connections) - before
    connection.authenticated(Principal("User", user))
    return peer


async def prepared(nodes: Nodes) -> tuple[Node, Peer, World]:
    """A node with everything that the cases name, its ACLs, and a connection of its super user."""
    node = await nodes.start(
        authorizer_class_name=AUTHORIZER_CLASS,
        super_users="User:ANONYMOUS",
        offsets_topic_num_partitions="1",
        transaction_state_log_num_partitions="1",
    )
    admin = await nodes.peer(node)
    for name in TOPICS:
        await admin.create(name)
    for key, kind in ((GROUP, 0), (TRANSACTION, 1)):
        await admin.call(FindCoordinatorRequest(key=key, key_type=kind), 3)
    for request, version in preparations():
        answer = ""
        while not answer or "COORDINATOR" in answer or "LOAD" in answer:
            answer = repr(outline(await admin.call(request, version)))
    records = [
        AccessControlEntryRecord(
            id=number.to_bytes(16, "big"),
            resource_type=acl.resource_type,
            resource_name=acl.name,
            pattern_type=acl.pattern,
            principal=f"User:{user}",
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for number, (user, acl) in enumerate((user, acl) for user, acls in users().items() for acl in acls)
    ]
    assert node.quorum_controller is not None
    made = asyncio.Event()
    node.quorum_controller.submit(lambda _view: MetadataDecision(None, records), lambda _answer: made.set())
    await made.wait()
    return node, admin, World(topic_ids(node))


def topic_ids(node: Node) -> dict[str, bytes]:
    found = {name: node.current_image.image.topic(name) for name in TOPICS}
    return {name: topic.topic_id for name, topic in found.items() if topic is not None}


@pytest.mark.usefixtures("nodes")
async def test_every_answer_is_that_of_kafka(nodes: Nodes) -> None:
    node, admin, world = await prepared(nodes)
    peers: dict[str, Peer] = {}
    different: dict[str, tuple[Any, Any]] = {}
    every = cases()
    for case in every:
        if case.user not in peers or "Txn" in case.name:  # a producer may not go back to an older connection
            peers[case.user] = await peer_of(nodes, node, case.user)
        if case.recreates and node.current_image.image.topic(DOOMED) is None:
            await admin.create(DOOMED)
            world.ids.update(topic_ids(node))
        ours = json.loads(json.dumps(outline(await peers[case.user].call(case.request(world), case.version))))
        if ours != KAFKA[case.name]:
            different[case.name] = ours, KAFKA[case.name]
    assert list(KAFKA) == [case.name for case in every]
    assert len(every) >= 800
    assert not different, "\n".join(
        f"{name}:\n    ours  {ours}\n    Kafka {theirs}" for name, (ours, theirs) in different.items()
    )
