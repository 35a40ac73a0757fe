"""A node logs in at another node: PLAIN, SCRAM with many iterations, the renewal of the session, and a refused password."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from barnabas.broker.node.node import Node
from barnabas.broker.peers.peer import Peer
from barnabas.broker.peers.peer_error import PeerError, PeerErrorKind
from barnabas.broker.peers.peers import Peers
from barnabas.broker.scheduling.slices import Offload
from barnabas.client import Admin
from barnabas.protocol.messages.metadata import MetadataRequest
from barnabas.protocol.sasl import PlainClient, SaslClient, SaslFailed
from barnabas.protocol.scram import ScramClient, ScramKeys
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.offload import in_own_thread
from tests.support.security.sasl_node import address_of, sasl_node
from tests.support.waiting import until

SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.sasl.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_node="planted-1";'
    ),
    "connection.failed.authentication.delay.ms": "0",
}
ITERATIONS = 16_384  # Kafka's limit: more than a node computes in one turn of its loop


class Logins:
    """Counts the conversations, and what precedes them.

    Attributes:
        failure: of the next `prepare`.
    """

    def __init__(self, make: Callable[[], SaslClient]) -> None:
        self.make = make
        self.count = self.prepared = self.refusals = 0
        self.failure: SaslFailed | None = None
        self.offload: Offload = in_own_thread

    def sasl(self, host: str, port: int) -> Callable[[], SaslClient]:
        return self.begin

    async def prepare(self, host: str, port: int) -> None:
        await asyncio.sleep(0)
        self.prepared += 1
        if self.failure is not None:
            raise self.failure

    def refused(self, host: str, port: int) -> None:
        self.refusals += 1

    def begin(self) -> SaslClient:
        self.count += 1
        return self.make()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with sasl_node({**SETTINGS, "connections.max.reauth.ms": "1200"}, "SASL") as running:
        yield running


def peer_of(node: Node, logins: Logins) -> Peer:
    peers = Peers(node.reactor, AsyncioNetwork(), node.config, node.slices, logins)
    host, port = address_of(node, "SASL").split(":")
    return peers.to(host, int(port), "test")


async def test_the_session_of_a_connection_is_renewed(node: Node) -> None:
    logins = Logins(lambda: PlainClient("node", "planted-1"))
    peer = peer_of(node, logins)
    await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000)
    await until(lambda: logins.count == 2)
    assert logins.prepared == 2
    answer = await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000)
    assert answer.brokers
    assert peer.connected
    peer.close()


async def test_many_iterations_are_computed_beside_the_loop(node: Node) -> None:
    async with Admin(bootstrap_servers=address_of(node, "PLAINTEXT")) as admin:
        await admin.set_scram_password("node", "planted-2", mechanism="SCRAM-SHA-512", iterations=ITERATIONS)
    async with Admin(
        bootstrap_servers=address_of(node, "SASL"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="node",
        sasl_plain_password="planted-2",
    ) as admin:
        assert (await admin.describe_cluster()).brokers
    keys = ScramKeys("SCRAM-SHA-512", "planted-2")
    peer = peer_of(node, Logins(lambda: ScramClient("SCRAM-SHA-512", "node", keys, "nonce")))
    assert (await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000)).brokers
    peer.close()


async def test_a_refused_login_fails_the_request_and_waits_before_the_next(node: Node) -> None:
    logins = Logins(lambda: PlainClient("node", "planted-3"))
    peer = peer_of(node, logins)
    with pytest.raises(PeerError, match="does not let this node log in: PLAIN: the broker refused the login") as error:
        await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000)
    assert error.value.kind is PeerErrorKind.UNREACHABLE
    assert error.value.retry_in_ms > 0
    assert "planted" not in str(error.value)
    with pytest.raises(PeerError, match="does not let this node log in"):
        await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000)
    assert (logins.count, logins.refusals) == (1, 1)
    peer.close()


async def test_a_login_without_a_token_fails_the_request_and_no_connection_is_made(node: Node) -> None:
    logins = Logins(lambda: PlainClient("node", "planted-1"))
    logins.failure = SaslFailed("OAUTHBEARER: no token: the endpoint is away")
    peer = peer_of(node, logins)
    with pytest.raises(PeerError, match=r"cannot log in at .*: OAUTHBEARER: no token: the endpoint is away") as error:
        await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000)
    assert error.value.retry_in_ms > 0
    assert logins.count == 0
    logins.failure = None
    await until(lambda: peer_retries(peer, node))
    assert (await peer.request(MetadataRequest(topics=[]), timeout_ms=5_000)).brokers
    logins.failure = SaslFailed("OAUTHBEARER: no token: the endpoint is away again")
    await until(lambda: not peer.connected)  # its session could not be renewed
    peer.close()


def peer_retries(peer: Peer, node: Node) -> bool:
    """Whether the pause after a failure is over."""
    return peer._retry_at_ms <= node.reactor.clock.monotonic_ms()
