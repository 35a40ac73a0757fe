"""Spark with tokens of an identity server: an exactly-once stream from topic to topic, and the secret stays out of checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")
pytest.importorskip("joserfc", reason="the extra `security` is not installed")

from barnabas.client import Admin, NewTopic, Producer, oauth_tokens
from barnabas.pipeline import BarnabasDataSource
from tests.support.pipeline.committed import committed
from tests.support.processes.served import ServedBroker
from tests.support.security.identity_server import CLIENT, SECRET, IdentityServer, identity_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
PARTITIONS = 2
ROWS = 20


@pytest.fixture
def server() -> Iterator[IdentityServer]:
    with identity_server() as running:
        running.lifetime_s = 3_600
        yield running


@pytest.fixture
def node(tmp_path: Path, server: IdentityServer) -> Iterator[ServedBroker]:
    """One node whose only listener asks for tokens of the server."""
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": server.keys_url,
        "sasl.oauthbearer.expected.audience": "kafka",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    }
    running = ServedBroker(tmp_path / "data", *(f"{k}={v}" for k, v in settings.items()), listens=False).start()
    yield running
    running.end()


def test_a_copy_with_tokens(spark: SparkSession, node: ServedBroker, server: IdentityServer, tmp_path: Path) -> None:
    spark.dataSource.register(BarnabasDataSource)
    keys = {
        "sasl.oauthbearer.token.endpoint.url": server.token_url,
        "sasl.oauthbearer.client.credentials.client.id": CLIENT,
        "sasl.oauthbearer.client.credentials.client.secret": SECRET,
    }
    client: dict[str, Any] = {
        "bootstrap_servers": node.address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": oauth_tokens(keys),
    }
    properties = {
        "bootstrap.servers": node.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": MODULE,
        **keys,
    }
    options = {f"kafka.{name}": value for name, value in properties.items()}

    async def create() -> None:
        async with Admin(**client) as admin:
            await admin.create_topics([NewTopic("source", PARTITIONS), NewTopic("target", PARTITIONS)])
        async with Producer(**client) as producer:
            for number in range(ROWS):
                await producer.send("source", b"%d" % number, partition=number % PARTITIONS)

    asyncio.run(create())
    server.asked.clear()
    checkpoint = tmp_path / "checkpoint"
    reading = spark.readStream.format("barnabas").options(**options, subscribe="source", startingOffsets="earliest")
    query = (
        reading.load()
        .select("value")
        .writeStream.format("barnabas")
        .options(**options, **{"topic": "target", "sink.id": "tokens", "checkpointLocation": str(checkpoint)})
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert server.asked, "the processes of Spark get tokens of their own"
    files = b"".join(each.read_bytes() for each in checkpoint.rglob("*") if each.is_file())
    assert SECRET.encode() not in files
    assert asyncio.run(committed(client, "target")) == [b"%d" % number for number in range(ROWS)]
