"""Foreign clients over SASL_PLAINTEXT: transactions, groups, and the errors of wrong passwords."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError
from confluent_kafka import Consumer, Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaTokenProvider

from barnabas.client.admin.scram_users import ScramMechanism
from tests.support.clients.kafka_python import kafka_python_round
from tests.support.oracle.sasl_script import SCRAM_USERS, USERS, sasl_settings
from tests.support.security.sasl_node import add_scram_user, address_of, sasl_node

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SCRAM: tuple[ScramMechanism, ...] = ("SCRAM-SHA-256", "SCRAM-SHA-512")
WAIT_S = 60


def unsecured_token() -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    now = time.time()
    return f"{part({'alg': 'none'})}.{part({'sub': 'alice', 'iat': now, 'exp': now + 600})}."


def password_of(mechanism: str) -> str:
    return USERS["alice"] if mechanism == "PLAIN" else SCRAM_USERS["alice"]


class AiokafkaTokens(AbstractTokenProvider):  # type: ignore[misc]  # the library has no types
    async def token(self) -> str:
        return unsecured_token()


class KafkaPythonTokens(KafkaTokenProvider):  # type: ignore[misc]  # the library has no types
    def token(self) -> str:
        return unsecured_token()


@pytest.fixture
async def secured() -> AsyncIterator[str]:
    """Address of the SASL listener of a broker with all mechanisms."""
    settings = dict(each.split("=", 1) for each in sasl_settings("SASL", "AGAIN"))
    settings["group.initial.rebalance.delay.ms"] = "0"
    async with sasl_node(settings, "SASL", "AGAIN") as node:
        for mechanism in SCRAM:
            await add_scram_user(node, "alice", SCRAM_USERS["alice"], mechanism)
        yield address_of(node, "SASL")


def librdkafka_config(address: str, mechanism: str, password: str | None = None) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        config["oauth_cb"] = lambda _: (unsecured_token(), time.time() + 600, "alice", {})
    else:
        config |= {"sasl.username": "alice", "sasl.password": password or password_of(mechanism)}
    return config


def librdkafka_round(address: str, mechanism: str) -> bytes:
    config = librdkafka_config(address, mechanism)
    producer = Producer({**config, "transactional.id": "t"})
    producer.poll(0)
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("librdkafka", b"value")
    producer.commit_transaction(WAIT_S)
    consumer = Consumer({**config, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["librdkafka"])
    try:
        record = next(each for _ in range(WAIT_S) if (each := consumer.poll(1.0)) is not None and each.error() is None)
        value = record.value()
        assert isinstance(value, bytes)
        return value
    finally:
        consumer.close()


async def aiokafka_round(address: str, mechanism: str) -> bytes:
    config: dict[str, Any] = {
        "bootstrap_servers": address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        config["sasl_oauth_token_provider"] = AiokafkaTokens()
    else:
        config |= {"sasl_plain_username": "alice", "sasl_plain_password": password_of(mechanism)}
    async with AIOKafkaProducer(transactional_id="t", **config) as producer, producer.transaction():
        await producer.send_and_wait("aiokafka", b"value")
    async with AIOKafkaConsumer("aiokafka", group_id="g", auto_offset_reset="earliest", **config) as consumer:
        record = await asyncio.wait_for(consumer.getone(), WAIT_S)
        assert isinstance(record.value, bytes)
        return record.value


def kafka_python_config(address: str, mechanism: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap_servers": address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        return {**config, "sasl_oauth_token_provider": KafkaPythonTokens()}
    return {**config, "sasl_plain_username": "alice", "sasl_plain_password": password_of(mechanism)}


def kcat_round(address: str, mechanism: str) -> bytes:
    config = [f"bootstrap.servers={address}", "security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={mechanism}"]
    config += ["sasl.username=alice", f"sasl.password={password_of(mechanism)}"]
    kcat = ["kcat", *(part for each in config for part in ("-X", each)), "-t", "kcat"]
    subprocess.run([*kcat, "-P"], input=b"value", check=True, timeout=WAIT_S)
    return subprocess.run([*kcat, "-C", "-e", "-q", "-o", "0"], check=True, timeout=WAIT_S, capture_output=True).stdout


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_each_client_writes_and_reads(secured: str, mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert await asyncio.to_thread(librdkafka_round, secured, mechanism) == b"value"
    assert await aiokafka_round(secured, mechanism) == b"value"
    assert await asyncio.to_thread(kafka_python_round, kafka_python_config(secured, mechanism)) == b"value"
    own = "\n".join(each.getMessage() for each in caplog.records if each.name.startswith("barnabas"))
    assert password_of(mechanism) not in own


async def test_kcat_writes_and_reads(secured: str) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed")
    assert await asyncio.to_thread(kcat_round, secured, "PLAIN") == b"value\n"


@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
async def test_each_client_tells_of_a_wrong_password(secured: str, mechanism: str) -> None:
    said = (
        "Invalid username or password"
        if mechanism == "PLAIN"
        else f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
    )

    def librdkafka() -> str:
        errors: list[str] = []
        config = librdkafka_config(secured, mechanism, "wrong")
        producer = Producer({**config, "error_cb": lambda error: errors.append(str(error))})
        deadline = time.monotonic() + WAIT_S
        while not any(said in each for each in errors) and time.monotonic() < deadline:
            producer.poll(0.1)
        return " ".join(errors)

    assert said in await asyncio.to_thread(librdkafka)
    producer = AIOKafkaProducer(
        bootstrap_servers=secured,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password="wrong",
    )
    with pytest.raises(KafkaError):
        await producer.start()
    await producer.stop()
    config = {**kafka_python_config(secured, mechanism), "sasl_plain_password": "wrong"}
    with pytest.raises(KafkaPythonError):
        await asyncio.to_thread(lambda: KafkaProducer(**config, bootstrap_timeout_ms=1_000))
