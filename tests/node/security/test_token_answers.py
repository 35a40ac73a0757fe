"""Requests about delegation tokens are answered as Kafka 4.3.1 answers them, field by field."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import pytest

from barnabas.broker.config.table import AUTHORIZER_CLASS
from barnabas.broker.node.node import Node
from barnabas.protocol.registry import ENVELOPE_KEY
from tests.support.broker.nodes import Nodes
from tests.support.oracle.permissions_in_kafka import AclWire
from tests.support.oracle.real_kafka import SCRAM_MODULE
from tests.support.oracle.token_script import ACLS, GOLDEN, JAAS, SECRET, asked, asked_without_tokens
from tests.support.processes.ports import free_ports
from tests.support.security.sasl_node import address_of

KAFKA: dict[str, Any] = json.loads(GOLDEN.read_text())
# Kafka accepts a login by an expired token until the periodic check has removed the token.
DEVIATIONS: Final = {"login: by an expired token": ["SASL_AUTHENTICATION_FAILED"]}
SETTINGS: Final = {
    "authorizer.class.name": AUTHORIZER_CLASS,
    "super.users": "User:ANONYMOUS;User:admin",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.guarded.plain.sasl.jaas.config": JAAS,
    "listener.name.guarded.scram-sha-256.sasl.jaas.config": SCRAM_MODULE,
    "connection.failed.authentication.delay.ms": "0",
}
LISTENERS: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:0,GUARDED://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,GUARDED:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
}


async def started(nodes: Nodes, forwards: bool, **more: str) -> Node:
    """A broker whose controller is in the same node, or in another one."""
    if not forwards:
        return await nodes.start(**SETTINGS, **LISTENERS, **more)
    (port,) = free_ports(1)
    quorum = {"controller.quorum.voters": f"9@127.0.0.1:{port}", "controller.listener.names": "CONTROLLER"}
    node_9 = {"node.id": "9", "process.roles": "controller", "listeners": f"CONTROLLER://127.0.0.1:{port}"}
    await nodes.start(**SETTINGS, **quorum, **node_9, **more)
    return await nodes.start(**SETTINGS, **LISTENERS, **quorum, **more, **{"process.roles": "broker"})


def script(plaintext: str, guarded: str, ask: Any) -> dict[str, Any]:
    with AclWire(plaintext) as wire:
        wire.create_acls(ACLS)
    found: dict[str, Any] = json.loads(json.dumps(ask(plaintext, guarded)))
    return found


@pytest.mark.parametrize("forwards", [False, True], ids=["controller here", "in envelopes"])
async def test_every_answer_is_that_of_kafka(nodes: Nodes, forwards: bool) -> None:
    node = await started(nodes, forwards, **{"delegation.token.secret.key": SECRET})
    found = await asyncio.to_thread(script, address_of(node, "PLAINTEXT"), address_of(node, "GUARDED"), asked)
    if forwards:
        assert nodes.nodes[0].controller_router.routes[ENVELOPE_KEY << 16].requests > 40
    expected = {name: answer for name, answer in KAFKA.items() if not name.startswith("no secret")} | DEVIATIONS
    assert list(found) == list(expected)
    assert {name: (answer, expected[name]) for name, answer in found.items() if answer != expected[name]} == {}


@pytest.mark.parametrize("forwards", [False, True], ids=["controller here", "in envelopes"])
async def test_without_a_secret_key_no_tokens_are_made(nodes: Nodes, forwards: bool) -> None:
    node = await started(nodes, forwards)
    addresses = address_of(node, "PLAINTEXT"), address_of(node, "GUARDED")
    found = await asyncio.to_thread(script, *addresses, asked_without_tokens)
    expected = {name: answer for name, answer in KAFKA.items() if name.startswith("no secret")}
    assert list(found) == list(expected)
    assert {name: (answer, expected[name]) for name, answer in found.items() if answer != expected[name]} == {}
