"""The Java client's own client_credentials login at Barnabas: its tokens are valid for four seconds, and no record is lost.

VerifiableProducer sends each record once: a connection that was closed with its session would lose one.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from barnabas.protocol.oauth_settings import ALLOWED_URLS
from tests.support.oracle.oauth_script import PACKAGE, oauth_settings
from tests.support.oracle.real_kafka import needs_java
from tests.support.oracle.tools import tool
from tests.support.security.identity_server import SECRET, IdentityServer, identity_server
from tests.support.security.sasl_node import address_of, sasl_node
from tests.support.waiting import until

pytestmark = pytest.mark.oracle

RECORDS = 500
LIFETIME_S = 4
TURNS_MAX = 4


def client_properties(server: IdentityServer) -> str:
    return "\n".join(
        (
            "security.protocol=SASL_PLAINTEXT",
            "sasl.mechanism=OAUTHBEARER",
            f"sasl.jaas.config={PACKAGE}.OAuthBearerLoginModule required;",
            f"sasl.login.callback.handler.class={PACKAGE}.OAuthBearerLoginCallbackHandler",
            f"sasl.oauthbearer.token.endpoint.url={server.token_url}",
            "sasl.oauthbearer.client.credentials.client.id=java",
            f"sasl.oauthbearer.client.credentials.client.secret={SECRET}",
        )
    )


async def test_sessions_outlive_the_tokens_of_the_java_client(tmp_path: Path) -> None:
    needs_java("no Java client")
    with identity_server() as server:
        server.lifetime_s = LIFETIME_S
        allowed = {"JAVA_TOOL_OPTIONS": f"-D{ALLOWED_URLS}={server.token_url}"}

        async def run(*arguments: str) -> str:
            return await asyncio.to_thread(tool, *arguments, environment=allowed)

        (tmp_path / "client.properties").write_text(client_properties(server))
        settings = {
            **oauth_settings(server, "SASL"),
            "sasl.oauthbearer.clock.skew.seconds": "0",
            "group.initial.rebalance.delay.ms": "0",
        }
        async with sasl_node(settings, "SASL") as node:
            logins = node.server.logins
            assert logins is not None
            await until(lambda: all(each.keys is not None for each in logins.signing_keys))
            config = ["--command-config", str(tmp_path / "client.properties")]
            paced = ["--max-messages", str(RECORDS), "--throughput", "50"]
            for turn in range(TURNS_MAX):  # a Java that stands still for a tenth of the lifetime renews too late
                common = ["--bootstrap-server", address_of(node, "SASL"), "--topic", f"java-{turn}"]
                said = await run("VerifiableProducer", *common, *paced, *config)
                outcomes = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
                sent = [each["offset"] for each in outcomes if each["name"] == "producer_send_success"]
                errors = [each for each in outcomes if each["name"] == "producer_send_error"]
                if not errors:
                    break
            assert errors == []
            assert sorted(sent) == list(range(RECORDS))
            assert len(server.asked) >= 3  # it has renewed its token
            read = ["--from-beginning", "--max-messages", str(RECORDS), "--timeout-ms", "120000"]
            said = await run("consumer.ConsoleConsumer", *common, *read, *config)
    assert [int(line) for line in said.splitlines() if line.isdecimal()] == list(range(RECORDS))
