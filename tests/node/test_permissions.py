"""Requests of users with different permissions are answered as Kafka 4.3.1 answers them: codes, names, hidden elements, messages."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from barnabas.broker.config.table import AUTHORIZER_CLASS
from barnabas.broker.controller.controller import QuorumController
from barnabas.broker.controller.core.decision import MetadataDecision
from barnabas.broker.image.records import AccessControlEntryRecord
from barnabas.broker.node.node import Node
from barnabas.protocol.messages.authentication import SaslAuthenticateRequest, SaslHandshakeRequest
from barnabas.protocol.messages.groups import FindCoordinatorRequest
from barnabas.protocol.registry import ENVELOPE_KEY
from tests.support.broker.nodes import Nodes, Peer
from tests.support.oracle.outlines import outline
from tests.support.oracle.permission_cases import DOOMED, GOLDEN, GROUP, TOPICS, TRANSACTION, World, cases, users
from tests.support.oracle.permissions_in_kafka import preparations
from tests.support.processes.ports import free_ports
from tests.support.waiting import until

KAFKA: dict[str, Any] = json.loads(GOLDEN.read_text())


async def peer_of(nodes: Nodes, node: Node, user: str) -> Peer:
    """A connection of a user."""
    peer = await nodes.peer(node, "GUARDED")
    await peer.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    answer = await peer.call(SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{user}".encode()), 2)
    assert answer.error_code == 0
    return peer


async def started(nodes: Nodes, forwards: bool) -> tuple[Node, QuorumController]:
    """A broker and its controller: of the same node, or of another one that the broker asks."""
    settings = {
        "authorizer_class_name": AUTHORIZER_CLASS,
        "super_users": "User:ANONYMOUS",
        "offsets_topic_num_partitions": "1",
        "offsets_topic_replication_factor": "1",
        "transaction_state_log_num_partitions": "1",
        "transaction_state_log_replication_factor": "1",
        "transaction_state_log_min_isr": "1",
        "delegation_token_secret_key": "secret",
    }
    logins = " ".join(f'user_{name}="{name}"' for name in users())
    guarded = {
        "listeners": "PLAINTEXT://127.0.0.1:0,GUARDED://127.0.0.1:0",
        "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,GUARDED:SASL_PLAINTEXT",
        "inter_broker_listener_name": "PLAINTEXT",
        "sasl_enabled_mechanisms": "PLAIN",
        "listener_name_guarded_plain_sasl_jaas_config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {logins};"
        ),
    }
    if not forwards:
        node = await nodes.start(**settings, **guarded)
        assert node.quorum_controller is not None
        return node, node.quorum_controller
    (port,) = free_ports(1)
    settings |= {"controller_quorum_voters": f"9@127.0.0.1:{port}", "controller_listener_names": "CONTROLLER"}
    controller = await nodes.start(
        **settings, node_id="9", process_roles="controller", listeners=f"CONTROLLER://127.0.0.1:{port}"
    )
    node = await nodes.start(**settings, **guarded, process_roles="broker")
    assert controller.quorum_controller is not None
    return node, controller.quorum_controller


async def prepared(nodes: Nodes, forwards: bool) -> tuple[Node, Peer, World]:
    """A broker with everything that the cases name, its ACLs, and a connection of its super user."""
    node, controller = await started(nodes, forwards)
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
    made = asyncio.Event()
    controller.submit(lambda _view: MetadataDecision(None, records), lambda _answer: made.set())
    await made.wait()
    await until(lambda: len(node.current_image.image.acls) == len(records))
    return node, admin, World(topic_ids(node))


def topic_ids(node: Node) -> dict[str, bytes]:
    found = {name: node.current_image.image.topic(name) for name in TOPICS}
    return {name: topic.topic_id for name, topic in found.items() if topic is not None}


@pytest.mark.parametrize("forwards", [False, True], ids=["controller here", "in envelopes"])
async def test_every_answer_is_that_of_kafka(nodes: Nodes, forwards: bool) -> None:
    node, admin, world = await prepared(nodes, forwards)
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
    if forwards:
        assert nodes.nodes[0].controller_router.routes[ENVELOPE_KEY << 16].requests > 200
    assert list(KAFKA) == [case.name for case in every]
    assert len(every) >= 800
    assert not different, "\n".join(
        f"{name}:\n    ours  {ours}\n    Kafka {theirs}" for name, (ours, theirs) in different.items()
    )
