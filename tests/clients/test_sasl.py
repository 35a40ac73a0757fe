"""What foreign clients say of a wrong password. What they do with the right one: test_secured_matrix.py, test_oauth.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError

from barnabas.client.admin.types import ScramMechanism
from tests.support.oracle.sasl_script import SCRAM_USERS, sasl_settings
from tests.support.security.sasl_node import add_scram_user, address_of, sasl_node

SCRAM: tuple[ScramMechanism, ...] = ("SCRAM-SHA-256", "SCRAM-SHA-512")
WAIT_S = 60


@pytest.fixture
async def secured() -> AsyncIterator[str]:
    """Address of the SASL listener of a broker with all mechanisms."""
    settings = dict(each.split("=", 1) for each in sasl_settings("SASL", "AGAIN"))
    settings["group.initial.rebalance.delay.ms"] = "0"
    async with sasl_node(settings, "SASL", "AGAIN") as node:
        for mechanism in SCRAM:
            await add_scram_user(node, "alice", SCRAM_USERS["alice"], mechanism)
        yield address_of(node, "SASL")


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
async def test_each_client_tells_of_a_wrong_password(secured: str, mechanism: str) -> None:
    said = (
        "Invalid username or password"
        if mechanism == "PLAIN"
        else f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
    )

    def librdkafka() -> str:
        errors: list[str] = []
        producer = Producer(
            {
                "bootstrap.servers": secured,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": mechanism,
                "sasl.username": "alice",
                "sasl.password": "wrong",
                "error_cb": lambda error: errors.append(str(error)),
            }
        )
        deadline = time.monotonic() + WAIT_S
        while not any(said in each for each in errors) and time.monotonic() < deadline:
            producer.poll(0.1)
        return " ".join(errors)

    assert said in await asyncio.to_thread(librdkafka)
    config: dict[str, Any] = {
        "bootstrap_servers": secured,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": "wrong",
    }
    producer = AIOKafkaProducer(**config)
    with pytest.raises(KafkaError):
        await producer.start()
    await producer.stop()
    with pytest.raises(KafkaPythonError):
        await asyncio.to_thread(lambda: KafkaProducer(**config, bootstrap_timeout_ms=1_000))
