"""Foreign clients with tokens of an identity server that are valid for three seconds: librdkafka's own login, aiokafka, kafka-python."""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaTokenProvider

from barnabas.broker.node.node import Node
from tests.support.security.identity_server import SECRET, IdentityServer, identity_server
from tests.support.security.sasl_node import address_of, sasl_node
from tests.support.waiting import until

pytestmark = pytest.mark.clients

WAIT_S = 60
LIFETIME_S = 3
TOKENS = 3  # when a client has got so many, it has used the first one beyond its end


@pytest.fixture
def server() -> Iterator[IdentityServer]:
    with identity_server() as running:
        running.lifetime_s = LIFETIME_S
        yield running


@pytest.fixture
async def node(server: IdentityServer) -> AsyncIterator[Node]:
    settings = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": server.keys_url,
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.clock.skew.seconds": "0",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
    }
    async with sasl_node(settings, "SASL") as running:
        logins = running.server.logins
        assert logins is not None
        await until(lambda: all(each.keys is not None for each in logins.signing_keys))
        yield running


class Given:
    """Tokens of the server, counted, for the clients without a login of their own."""

    def __init__(self, server: IdentityServer) -> None:
        self.server = server
        self.count = 0

    def next(self) -> str:
        self.count += 1
        return self.server.token()


class AiokafkaTokens(AbstractTokenProvider):  # type: ignore[misc]  # the library has no types
    def __init__(self, given: Given) -> None:
        self.given = given

    async def token(self) -> str:
        return self.given.next()


class KafkaPythonTokens(KafkaTokenProvider):  # type: ignore[misc]  # the library has no types
    def __init__(self, given: Given, **_: Any) -> None:
        self.given = given

    def token(self) -> str:
        return self.given.next()


def librdkafka_config(address: str, server: IdentityServer) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "librdkafka",
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.token.endpoint.url": server.token_url,
        "sasl.oauthbearer.scope": "kafka",
    }


def python_config(address: str, tokens: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": tokens,
    }


def asked_by(server: IdentityServer, client: str) -> int:
    logins = (each.headers.get("authorization", "").partition(" ")[2] for each in server.asked)
    return Counter(base64.b64decode(each).decode().partition(":")[0] for each in logins)[client]


def until_renewed(renewed: Callable[[], bool], send: Callable[[int], None]) -> int:
    """Sends numbers until the client has renewed its token; returns how many."""
    sent, ends = 0, time.monotonic() + 120
    while not renewed():
        assert time.monotonic() < ends, "the client does not renew its token"
        send(sent)
        sent += 1
    return sent


def librdkafka_round(address: str, server: IdentityServer) -> tuple[int, list[int]]:
    errors: list[object] = []
    producer = Producer({**librdkafka_config(address, server), "enable.idempotence": True, "linger.ms": 0})

    def on_delivery(error: object, _: object) -> None:
        errors.extend([error] if error is not None else [])

    def send(number: int) -> None:
        producer.produce("librdkafka", str(number).encode(), callback=on_delivery)
        assert producer.flush(WAIT_S) == 0

    sent = until_renewed(lambda: asked_by(server, "librdkafka") >= TOKENS, send)
    assert errors == []
    consumer = Consumer({**librdkafka_config(address, server), "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["librdkafka"])
    found: list[int] = []
    try:
        ends = time.monotonic() + WAIT_S
        while len(found) < sent and time.monotonic() < ends:
            found += [int(each.value() or b"") for each in consumer.consume(500, 1.0) if each.error() is None]
    finally:
        consumer.close()
    return sent, found


async def aiokafka_round(address: str, server: IdentityServer) -> tuple[int, list[int]]:
    given = Given(server)
    config = python_config(address, AiokafkaTokens(given))
    sent = 0
    async with AIOKafkaProducer(enable_idempotence=True, **config) as producer, asyncio.timeout(120):
        while given.count < TOKENS + 1:  # one token for each connection
            await producer.send_and_wait("aiokafka", str(sent).encode())
            sent += 1
    async with AIOKafkaConsumer("aiokafka", auto_offset_reset="earliest", **config) as consumer:
        async with asyncio.timeout(WAIT_S):
            return sent, [int((await consumer.getone()).value or b"") for _ in range(sent)]


def kafka_python_round(address: str, server: IdentityServer) -> tuple[int, list[int]]:
    given = Given(server)
    config = python_config(address, KafkaPythonTokens(given))
    producer = KafkaProducer(**config)
    sent = until_renewed(
        lambda: given.count >= TOKENS + 1,
        lambda number: producer.send("kafka-python", str(number).encode()).get(WAIT_S) and None,
    )
    producer.close()
    consumer = KafkaConsumer("kafka-python", auto_offset_reset="earliest", consumer_timeout_ms=WAIT_S * 1_000, **config)
    try:
        return sent, [int(next(consumer).value) for _ in range(sent)]
    finally:
        consumer.close()


async def test_each_client_renews_its_tokens_and_loses_no_record(node: Node, server: IdentityServer) -> None:
    address = address_of(node, "SASL")
    rounds = await asyncio.gather(
        asyncio.to_thread(librdkafka_round, address, server),
        aiokafka_round(address, server),
        asyncio.to_thread(kafka_python_round, address, server),
    )
    for sent, found in rounds:
        assert found == list(range(sent))
    assert {each.form["scope"] for each in server.asked} == {"kafka"}
