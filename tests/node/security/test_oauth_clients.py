"""The bundled client with tokens of an identity server: client_credentials, the renewal of tokens, and what refusals say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from barnabas.broker.node import Node
from barnabas.client import Admin, AuthenticationFailed, Consumer, Producer
from barnabas.client.net.security_properties import security_from_properties
from tests.support.security.identity_server import CLIENT, SECRET, Answer, IdentityServer, identity_server
from tests.support.security.sasl_node import address_of, sasl_node
from tests.support.waiting import until

JAAS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"


@pytest.fixture
def server() -> Iterator[IdentityServer]:
    with identity_server() as running:
        yield running


@pytest.fixture
async def node(server: IdentityServer) -> AsyncIterator[Node]:
    settings = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": server.keys_url,
        "sasl.oauthbearer.clock.skew.seconds": "0",
        "connection.failed.authentication.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
    }
    async with sasl_node(settings, "SASL") as running:
        logins = running.server.logins
        assert logins is not None
        await until(lambda: all(each.keys is not None for each in logins.signing_keys))
        yield running


def properties(server: IdentityServer, **changes: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": JAAS,
        "sasl.oauthbearer.token.endpoint.url": server.token_url,
        "sasl.oauthbearer.client.credentials.client.id": CLIENT,
        "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        **changes,
    }


async def test_sessions_outlive_their_tokens_and_no_record_is_lost(node: Node, server: IdentityServer) -> None:
    """Tokens are valid for 2 s, and the node closes what is used after that."""
    server.lifetime_s = 2
    login = security_from_properties(properties(server))
    address = address_of(node, "SASL")
    consumer = Consumer("t", bootstrap_servers=address, auto_offset_reset="earliest", **login)
    producer = Producer(bootstrap_servers=address, linger_ms=0, **login)
    async with producer, consumer:
        await producer.send_and_wait("t", b"0")
        opened = [connection.ready_ms for connection in producer._cluster.connections()]
        sent = 1
        while len(server.asked) < 3:  # the first token has expired
            await producer.send_and_wait("t", str(sent).encode())
            sent += 1
        assert [connection.ready_ms for connection in producer._cluster.connections()] == opened
        read = [int((await asyncio.wait_for(consumer.getone(), 10)).value or b"") for _ in range(sent)]
    assert read == list(range(sent))


async def test_refusals_say_what_to_do(node: Node, server: IdentityServer) -> None:
    address = address_of(node, "SASL")
    wrong = {"sasl.oauthbearer.client.credentials.client.secret": "planted-wrong"}
    with pytest.raises(AuthenticationFailed, match=r"OAUTHBEARER: no token: .*status 401.*client\.secret") as refused:
        await Admin(bootstrap_servers=address, **security_from_properties(properties(server, **wrong))).start()
    assert "planted" not in str(refused.value)
    server.claims = {"iat": int(time.time()) + 1_000}  # the node refuses it
    with pytest.raises(AuthenticationFailed, match=r"the broker refused the login: .*invalid_token"):
        await Admin(bootstrap_servers=address, **security_from_properties(properties(server))).start()


async def test_an_endpoint_that_fails_at_first(node: Node, server: IdentityServer) -> None:
    failures = [500, 503]
    server.token_answer = lambda _: Answer(failures.pop()) if failures else None
    login = security_from_properties(properties(server, **{"sasl.login.retry.backoff.ms": "1"}))
    async with Admin(bootstrap_servers=address_of(node, "SASL"), **login) as admin:
        assert (await admin.describe_cluster()).brokers
    assert len(server.asked) == 3


async def test_a_provider_that_never_returns(node: Node) -> None:
    class Silent:
        timeout_ms = 50

        async def token(self) -> str:
            await asyncio.Event().wait()
            return ""

    with pytest.raises(AuthenticationFailed, match="the token provider gave no token within 50 ms"):
        await Admin(
            bootstrap_servers=address_of(node, "SASL"),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Silent(),
        ).start()
