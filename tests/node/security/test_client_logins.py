"""The bundled client logs in at a node: each mechanism, wrong passwords, and a password that changes while clients run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from barnabas.broker.node.node import Node
from barnabas.client import Admin, AuthenticationFailed, Consumer, Producer
from barnabas.client.errors import BrokerUnreachable
from barnabas.errors import ErrorCode
from tests.support.security.sasl_node import add_scram_user, address_of, sasl_node

JAAS = "listener.name.sasl.plain.sasl.jaas.config"
USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{}";'
SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    JAAS: USERS.format("planted-1"),
    "connection.failed.authentication.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
}


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with sasl_node(SETTINGS, "SASL") as running:
        await add_scram_user(running, "alice", "planted-1", "SCRAM-SHA-256")
        await add_scram_user(running, "alice", "planted-1", "SCRAM-SHA-512")
        yield running


def login(node: Node, mechanism: str = "PLAIN", password: str = "planted-1") -> dict[str, Any]:
    return {
        "bootstrap_servers": address_of(node, "SASL"),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": password,
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_login(node: Node, mechanism: str) -> None:
    async with Admin(**login(node, mechanism)) as admin:
        assert (await admin.describe_cluster()).brokers
    with pytest.raises(AuthenticationFailed, match=f"{mechanism}: the broker refused the login") as refused:
        await Admin(**login(node, mechanism, "planted-2")).start()
    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "planted" not in str(refused.value)


async def test_a_mechanism_that_the_listener_does_not_have(node: Node) -> None:
    class Tokens:
        async def token(self) -> str:
            return "a.b.c"

    settings: Any = {
        "bootstrap_servers": address_of(node, "SASL"),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Tokens(),
    }
    with pytest.raises(AuthenticationFailed, match=r"it offers: .*PLAIN"):
        await Admin(**settings).start()


async def test_running_clients_raise_after_the_password_has_changed(node: Node) -> None:
    """And they continue once it is the old one again."""
    consumer: Any = Consumer("t", **login(node), auto_offset_reset="earliest")
    producer: Any = Producer(**login(node))
    async with consumer, producer:
        await producer.send_and_wait("t", b"1")
        assert (await asyncio.wait_for(consumer.getone(), 60)).value == b"1"
        node.config.reconfigure({}, {JAAS: USERS.format("planted-2")})
        for client in (consumer, producer):
            for connection in client._cluster.connections():
                connection.drop(BrokerUnreachable("cut by the test"))
        with pytest.raises(AuthenticationFailed, match="PLAIN: the broker refused the login"):
            await asyncio.wait_for(consumer.getone(), 60)
        with pytest.raises(AuthenticationFailed, match="PLAIN: the broker refused the login"):
            await producer.send("another", b"2")
        node.config.reconfigure({}, {})
        sent = await producer.send("t", b"2")
        assert (await asyncio.wait_for(sent, 60)).offset == 1
        while True:
            try:
                record = await asyncio.wait_for(consumer.getone(), 60)
            except AuthenticationFailed:
                await asyncio.wait_for(consumer._cluster.changed(), 60)
            else:
                break
        assert record.value == b"2"
