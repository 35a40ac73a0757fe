"""What foreign clients say of a token that has expired.

Not aiokafka: it takes the refusal for a success and sends its next request, before which no login is complete.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaTokenProvider

from tests.support.security.identity_server import IdentityServer

WAIT_S = 60


async def expired_token_errors(address: str, server: IdentityServer) -> dict[str, str]:
    """The error of each client, by its name."""
    expired = server.token(exp=time.time() - 600, iat=int(time.time() - 700))

    class KafkaPythonTokens(KafkaTokenProvider):  # type: ignore[misc]  # the library has no types
        def token(self) -> str:
            return expired

    common = {"bootstrap_servers": address, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}

    def librdkafka() -> str:
        errors: list[str] = []
        config: dict[str, Any] = {
            "bootstrap.servers": address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (expired, time.time() + 600, "carol", {}),
            "error_cb": lambda error: errors.append(error.str().partition(" (after ")[0]),
        }
        producer = Producer(config)
        ends = time.monotonic() + WAIT_S
        while not any("invalid_token" in each for each in errors) and time.monotonic() < ends:
            producer.poll(0.1)
        return next((each for each in errors if "invalid_token" in each), "")

    def kafka_python() -> str:
        with pytest.raises(KafkaPythonError) as refused:
            KafkaProducer(**common, sasl_oauth_token_provider=KafkaPythonTokens(), bootstrap_timeout_ms=1_000)
        return repr(refused.value)

    return {
        "librdkafka": await asyncio.to_thread(librdkafka),
        "kafka-python": await asyncio.to_thread(kafka_python),
    }
