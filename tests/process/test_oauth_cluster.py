"""Three nodes that log in at each other with tokens of an identity server, which are valid for five seconds."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.client import Admin, Consumer, NewTopic, Producer, oauth_tokens
from tests.support.processes.secured_nodes import secured_nodes  # not the kit: the brokers' own listeners have logins
from tests.support.processes.served import ServedBroker  # not the kit: the brokers' own listeners have logins
from tests.support.security.identity_server import CLIENT, SECRET, Answer, Asked, IdentityServer, identity_server
from tests.support.waiting import until

pytestmark = pytest.mark.process

LIFETIME_S = 5
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"


@pytest.fixture
def server() -> Iterator[IdentityServer]:
    with identity_server() as running:
        running.lifetime_s = LIFETIME_S
        yield running


@pytest.fixture
def cluster(tmp_path: Path, server: IdentityServer) -> Iterator[list[ServedBroker]]:
    settings = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "listener.name.secure.oauthbearer.sasl.jaas.config": MODULE,
        "listener.name.controller.oauthbearer.sasl.jaas.config": MODULE,
        "sasl.oauthbearer.jwks.endpoint.url": server.keys_url,
        "sasl.oauthbearer.token.endpoint.url": server.token_url,
        "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        "sasl.oauthbearer.clock.skew.seconds": "0",
        "sasl.login.retry.backoff.max.ms": "500",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    with secured_nodes(
        tmp_path,
        "SASL_PLAINTEXT",
        settings,
        lambda node: {"sasl.oauthbearer.client.credentials.client.id": f"node-{node}"},
    ) as nodes:
        yield nodes


def settings_of(nodes: list[ServedBroker], server: IdentityServer) -> Any:
    tokens = oauth_tokens(
        {
            "sasl.oauthbearer.token.endpoint.url": server.token_url,
            "sasl.oauthbearer.client.credentials.client.id": CLIENT,
            "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        }
    )
    return {
        "bootstrap_servers": ",".join(node.address for node in nodes),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": tokens,
    }


async def replicas_in_sync(admin: Admin) -> list[int]:
    (topic,) = (await admin.describe_topics(["t"])).values()
    return [len(each.isr) for each in topic.partitions]


async def test_nodes_renew_their_tokens_and_survive_a_pause_of_the_identity_server(
    cluster: list[ServedBroker], server: IdentityServer
) -> None:
    settings = settings_of(cluster, server)
    async with Admin(**settings) as admin, Producer(acks="all", **settings) as producer:
        await admin.create_topics([NewTopic("t", 3, 3, configs={"min.insync.replicas": "2"})])
        sent = 0
        async with asyncio.timeout(60):
            while min(Counter(map(client_of, server.asked))[f"node-{n}"] for n in (1, 2, 3)) < 3:
                await producer.send_and_wait("t", str(sent).encode())
                sent += 1
                await asyncio.sleep(0.02)

        server.token_answer = lambda asked: Answer(503) if client_of(asked).startswith("node-") else None
        await until(lambda: all("cannot log in at" in node.log() for node in cluster))
        server.token_answer = None
        async with asyncio.timeout(60):
            while await replicas_in_sync(admin) != [3] * 3:
                pass
        await producer.send_and_wait("t", str(sent).encode())
    async with Consumer("t", auto_offset_reset="earliest", **settings) as consumer:
        async with asyncio.timeout(60):
            values = [int((await consumer.getone()).value or b"") for _ in range(sent + 1)]
    assert sorted(values) == list(range(sent + 1))


def client_of(asked: Asked) -> str:
    """The client that asks for a token."""
    return base64.b64decode(asked.headers["authorization"].partition(" ")[2]).decode().partition(":")[0]
