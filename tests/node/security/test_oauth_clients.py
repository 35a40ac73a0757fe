"""The bundled client with tokens of an identity server: client_credentials, the renewal of tokens, and what refusals say."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from barnabas.broker.node.node import Node
from barnabas.client import Admin, AuthenticationFailed, Consumer, Producer
from barnabas.client.net.security_properties import security_from_properties
from tests.support.security.identity_server import CLIENT, SECRET, Answer, IdentityServer, identity_server
from tests.support.security.sasl_node import address_of, sasl_node
from tests.support.waiting import turns, until

JAAS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"


@pytest.fixture
def server() -> Iterator[IdentityServer]:
    with identity_server() as running:
        yield running


@asynccontextmanager
async def oauth_node(server: IdentityServer, **changes: str) -> AsyncIterator[Node]:
    settings = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": server.keys_url,
        "sasl.oauthbearer.clock.skew.seconds": "0",
        "connection.failed.authentication.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
        **changes,
    }
    async with sasl_node(settings, "SASL") as running:
        logins = running.server.logins
        assert logins is not None
        await until(lambda: all(each.keys is not None for each in logins.signing_keys))
        yield running


@pytest.fixture
async def node(server: IdentityServer) -> AsyncIterator[Node]:
    async with oauth_node(server) as running:
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
    """Tokens are valid for 3 s, and the node closes what is used after that."""
    server.lifetime_s = 3
    login = security_from_properties(properties(server))
    address = address_of(node, "SASL")
    consumer = Consumer("t", bootstrap_servers=address, auto_offset_reset="earliest", **login)
    producer = Producer(bootstrap_servers=address, linger_ms=0, **login)
    async with producer, consumer:
        await producer.send_and_wait("t", b"0")
        sent = 1
        while not node.server.authentications["SASL"].renewed:
            await producer.send_and_wait("t", str(sent).encode())
            sent += 1
        read = [int((await asyncio.wait_for(consumer.getone(), 60)).value or b"") for _ in range(sent)]
    assert read == list(range(sent))


async def test_a_request_waits_if_the_token_comes_after_the_end_of_the_session(server: IdentityServer) -> None:
    over = threading.Event()
    login = security_from_properties(properties(server))
    async with (
        oauth_node(server, **{"connections.max.reauth.ms": "300"}) as node,
        Producer(bootstrap_servers=address_of(node, "SASL"), linger_ms=0, **login) as producer,
    ):
        await producer.send_and_wait("t", b"0")
        server.token_answer = lambda _: None if over.wait(60) else Answer(503)
        connections = list(producer._cluster.connections())
        opened = [connection.ready_ms for connection in connections]
        await until(lambda: is_over(node))
        sending = asyncio.create_task(producer.send_and_wait("t", b"1"))
        await until(lambda: sending.done() or any(connection.core.in_flight for connection in connections))
        await turns()
        over.set()
        await sending
        assert [connection.ready_ms for connection in producer._cluster.connections()] == opened


async def test_a_record_is_sent_again_if_the_node_closes_the_connection_at_the_end_of_the_session(
    server: IdentityServer,
) -> None:
    login = security_from_properties(properties(server))
    async with oauth_node(server, **{"connections.max.reauth.ms": "300"}) as node:
        async with Producer(bootstrap_servers=address_of(node, "SASL"), linger_ms=0, **login) as producer:
            await producer.send_and_wait("t", b"0")
            opened = [connection.ready_ms for connection in producer._cluster.connections()]
            for connection in producer._cluster.connections():  # this client takes its session for endless
                connection.core.reauthenticate_at_ms = connection.core._held_from_ms = None
            await until(lambda: is_over(node))
            await producer.send_and_wait("t", b"1")
            assert [connection.ready_ms for connection in producer._cluster.connections()] != opened
        async with Consumer(
            "t", bootstrap_servers=address_of(node, "PLAINTEXT"), auto_offset_reset="earliest"
        ) as consumer:
            assert [(await asyncio.wait_for(consumer.getone(), 60)).value for _ in range(2)] == [b"0", b"1"]


def is_over(node: Node) -> bool:
    """Whether the node serves nothing but logins on its connections now."""
    assert node.server.logins is not None
    return all(each.router is node.server.logins.router for each in node.server.connections)


async def test_refusals_say_what_to_do(node: Node, server: IdentityServer) -> None:
    address = address_of(node, "SASL")
    wrong = {"sasl.oauthbearer.client.credentials.client.secret": "planted-wrong"}
    with pytest.raises(AuthenticationFailed, match=r"OAUTHBEARER: no token: .*status 401.*client\.secret") as refused:
        await Admin(bootstrap_servers=address, **security_from_properties(properties(server, **wrong))).start()
    assert "planted" not in str(refused.value)
    server.claims = {"iat": int(time.time()) + 1_000}  # the node refuses it
    with pytest.raises(AuthenticationFailed, match=r"the broker refused the login: .*invalid_token"):
        await Admin(bootstrap_servers=address, **security_from_properties(properties(server))).start()


async def test_a_token_that_was_refused_is_not_used_again(node: Node, server: IdentityServer) -> None:
    """Clients of one process share it, so the next one would be refused, too."""
    login = security_from_properties(properties(server), shared=True)
    address = address_of(node, "SASL")
    server.claims = {"iat": int(time.time()) + 1_000}
    with pytest.raises(AuthenticationFailed, match="the broker refused the login"):
        await Admin(bootstrap_servers=address, **login).start()
    server.claims = {}
    async with Admin(bootstrap_servers=address, **login) as admin:
        assert (await admin.describe_cluster()).brokers
    asked = len(server.asked)
    async with Admin(bootstrap_servers=address, **security_from_properties(properties(server), shared=True)) as admin:
        assert (await admin.describe_cluster()).brokers
    assert len(server.asked) == asked


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
