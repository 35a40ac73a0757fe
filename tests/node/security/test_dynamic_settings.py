"""Altered settings of security: nothing locks clients out, and a client without permission makes the broker read no file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.client import Admin, AuthenticationFailed
from barnabas.client.admin.types import ConfigResource
from barnabas.client.errors import ResponseError
from tests.support.security.certificates import CertificateAuthority
from tests.support.security.sasl_node import address_of, sasl_node

LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required "
JAAS = "listener.name.sasl.plain.sasl.jaas.config"
MECHANISMS = "listener.name.sasl.sasl.enabled.mechanisms"
STORE = "listener.name.tls.ssl.keystore.location"
BROKER = ConfigResource("broker", "1")


@pytest.fixture
async def addresses(ca: CertificateAuthority) -> AsyncIterator[dict[str, str]]:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL://127.0.0.1:0,TLS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        JAAS: f'{LOGIN_MODULE} user_alice="planted-alice";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        **ca.issue("dynamic").by_file(),
    }
    async with sasl_node(settings, "SASL") as node:
        yield {name: address_of(node, name) for name in ("PLAINTEXT", "SASL")}


def alice(addresses: dict[str, str], password: str = "planted-alice") -> Admin:
    settings: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": password,
    }
    return Admin(bootstrap_servers=addresses["SASL"], **settings)


async def refusal(admin: Admin, resource: ConfigResource, values: dict[str, str | None]) -> str:
    with pytest.raises(ResponseError) as refused:
        await asyncio.wait_for(admin.alter_config_resource(resource, values), 60)
    return str(refused.value)


async def test_a_client_without_permission_makes_the_broker_open_no_file(
    addresses: dict[str, str], tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # whoever opens it waits for its other end
    async with alice(addresses) as admin:
        for path in (pipe, tmp_path / "missing", Path("/etc/hostname")):
            assert "CLUSTER_AUTHORIZATION_FAILED" in await refusal(admin, BROKER, {STORE: str(path)})
    async with Admin(bootstrap_servers=addresses["PLAINTEXT"]) as admin:
        assert "is no regular file" in await refusal(admin, BROKER, {STORE: str(pipe)})


async def test_settings_with_which_no_client_could_log_in_are_refused(addresses: dict[str, str]) -> None:
    async with Admin(bootstrap_servers=addresses["PLAINTEXT"]) as admin:
        for name, value, why in (
            (MECHANISMS, "NOPE", "NOPE is not served"),
            ("sasl.enabled.mechanisms", "", "enables no mechanism"),
            (JAAS, "planted-garbage", "is missing at character 15"),
            (JAAS, f"{LOGIN_MODULE};", "it names no user"),
            ("listener.name.salt.plain.sasl.jaas.config", "x", "there is no such listener; listeners are"),
            ("listener.name.SASL.plain.sasl.jaas.config", "x", "write listener.name.sasl.plain.sasl.jaas.config"),
        ):
            text = await refusal(admin, BROKER, {name: value})
            assert "INVALID_REQUEST" in text
            assert why in text
            assert "planted" not in text
        with pytest.raises(ResponseError, match="enables no mechanism"):
            await admin.alter_config_resource(BROKER, {}, subtract={MECHANISMS: "PLAIN,SCRAM-SHA-512"})
        async with alice(addresses) as user:
            await user.describe_cluster()
        await admin.alter_config_resource(BROKER, {}, subtract={MECHANISMS: "SCRAM-SHA-512"})
        await admin.alter_config_resource(BROKER, {JAAS: f'{LOGIN_MODULE} user_alice="planted-new";'})
        async with alice(addresses, "planted-new") as user:
            await user.describe_cluster()
        with pytest.raises(AuthenticationFailed):
            await alice(addresses).start()
