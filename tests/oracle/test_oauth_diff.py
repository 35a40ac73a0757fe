"""OAUTHBEARER with Kafka and with Barnabas: requests for tokens, answers to signed tokens, and a server of keys that fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.client import Producer, oauth_tokens
from barnabas.errors import BarnabasError
from barnabas.protocol.oauth_settings import ALLOWED_URLS
from barnabas.runtime.token_providers import LoginTokens
from tests.support.clients.expired_tokens import expired_token_errors
from tests.support.oracle.oauth_script import PACKAGE, held_tokens, oauth_settings, presented
from tests.support.oracle.real_kafka import NotStarted, needs_java, running_kafka
from tests.support.oracle.tools import tool
from tests.support.processes.ports import free_port_block
from tests.support.security.identity_server import (
    CLIENT,
    SECRET,
    Answer,
    Asked,
    IdentityServer,
    identity_server,
    signing_key,
)
from tests.support.security.sasl_node import address_of, sasl_node
from tests.support.waiting import until

pytestmark = pytest.mark.oracle

RECORDED = Path(__file__).parents[1] / "golden" / "sasl" / "signed-tokens.json"
SOURCE = Path(__file__).parents[1] / "support" / "oracle" / "OAuthRequests.java"
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"


def oauth_kafka(server: IdentityServer) -> tuple[int, list[str], dict[str, str]]:
    """First port (the third is that of the listener SASL), settings and environment of a Kafka that trusts the server."""
    port = free_port_block(3)
    listeners = f"PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{port + 2}"
    settings = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{port + 1}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        **oauth_settings(server, "SASL"),
    }
    allowed = f"-D{ALLOWED_URLS}={server.keys_url},{server.token_url}"
    return port, [f"{name}={value}" for name, value in settings.items()], {"JAVA_TOOL_OPTIONS": allowed}


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[IdentityServer, str]]:
    """An identity server, and the address of the listener SASL of a Kafka that trusts it."""
    needs_java()
    with identity_server() as server:
        server.keys.append(signing_key("last"))
        port, settings, environment = oauth_kafka(server)
        with running_kafka(tmp_path_factory.mktemp("oauth-kafka"), port, settings, environment):
            yield server, f"127.0.0.1:{port + 2}"


async def test_the_recorded_answers_to_tokens_are_those_of_kafka(trusting: tuple[IdentityServer, str]) -> None:
    """Then the key is rotated and the server fails: both refuse the first token of an unknown key, and accept known ones."""
    server, address = trusting
    said, recorded = held_tokens(address, server), json.loads(RECORDED.read_text())
    assert {name: each for name, each in said.items() if each != recorded.get(name)} == {}
    assert said.keys() == recorded.keys()
    server.keys.append(signing_key("newest"))
    readings = server.key_readings
    assert presented(address, server.token())[0][0] == 0 or server.key_readings > readings
    await until(lambda: presented(address, server.token()) == [[0, "", "", True]])
    server.keys_answer = lambda: Answer(503)
    assert presented(address, server.token()) == [[0, "", "", True]]
    server.keys_answer = None


def test_kafka_does_not_start_without_its_keys(tmp_path: Path) -> None:
    """Barnabas starts, and refuses tokens until the keys are read (node/security/test_oauthbearer.py)."""
    with identity_server() as server:
        server.keys_answer = lambda: Answer(503)
        with pytest.raises(NotStarted), running_kafka(tmp_path, *oauth_kafka(server)):
            pass
        said = (tmp_path / "node-1" / "server.log").read_text(errors="replace")
        assert "Fatal error during broker startup" in said
        assert "Non 200 status code (503" in said


async def test_clients_say_the_same_of_an_expired_token(trusting: tuple[IdentityServer, str]) -> None:
    """And the bundled client logs in at Kafka with tokens that it gets itself."""
    server, address = trusting
    by_kafka = await expired_token_errors(address, server)
    tokens = oauth_tokens({ENDPOINT: server.token_url, CLIENT_ID: CLIENT, CLIENT_SECRET: SECRET})
    login: Any = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": tokens}
    async with Producer(bootstrap_servers=address, security_protocol="SASL_PLAINTEXT", **login) as producer:
        assert (await producer.send_and_wait("own", b"x")).offset == 0
    settings = oauth_settings(server, "SASL")
    async with sasl_node(settings, "SASL") as node:
        logins = node.server.logins
        assert logins is not None
        await until(lambda: all(each.keys is not None for each in logins.signing_keys))
        own = await expired_token_errors(address_of(node, "SASL"), server)
        own = {name: each.replace(address_of(node, "SASL"), address) for name, each in own.items()}
    assert "invalid_token" in by_kafka["librdkafka"]
    assert own == by_kafka


async def test_requests_for_tokens_are_those_of_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_java()
    with identity_server() as server:
        plain = {ENDPOINT: server.token_url, CLIENT_ID: "ca rol:ü", CLIENT_SECRET: SECRET}
        odd = {"sasl.oauthbearer.scope": "a b&c+ü~*"}
        cases: list[tuple[dict[str, str], dict[str, str]]] = [
            (plain, {}),
            ({**plain, **odd}, {}),
            ({**plain, **odd, "sasl.oauthbearer.header.urlencode": "true"}, {}),
            ({ENDPOINT: server.token_url}, {"clientId": "carol", "clientSecret": SECRET, "scope": "s"}),
            (plain, {"clientId": "x", "clientSecret": "y", "scope": "s"}),
            ({**plain, CLIENT_SECRET: "planted-wrong"}, {}),
        ]
        (tmp_path / "assertion").write_text("e30.e30.c2lnbmVk")
        assertion = {ENDPOINT: server.token_url, "sasl.oauthbearer.assertion.file": str(tmp_path / "assertion")}
        bearer = {"sasl.oauthbearer.jwt.retriever.class": f"{PACKAGE}.JwtBearerJwtRetriever"}
        cases += [(assertion, {}), ({**assertion, **odd, CLIENT_ID: "ü"}, {}), ({**assertion, **odd, **bearer}, {})]
        options = [
            f"-D{ALLOWED_URLS}={server.token_url}",
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={tmp_path / 'assertion'}",
        ]
        lines = [json.dumps([settings, jaas]) for settings, jaas in cases]
        java = {"JAVA_TOOL_OPTIONS": " ".join(options)}
        said = await asyncio.to_thread(tool, str(SOURCE), stdin="\n".join(lines), environment=java)
        outcomes = said.split()
        assert len(outcomes) == len(cases), said
        kafka = [_shown(each) for each in server.asked]
        server.asked.clear()
        monkeypatch.setenv("KAFKA_OPTS", " ".join(options))
        own = [await _outcome(settings, jaas) for settings, jaas in cases]
        assert own == outcomes
        assert [_shown(each) for each in server.asked] == kafka


def _shown(asked: Asked) -> dict[str, Any]:
    names = ("accept", "authorization", "cache-control", "content-type")
    return {**{name: asked.headers.get(name) for name in names}, "body": asked.body}


async def _outcome(settings: dict[str, str], jaas: dict[str, str]) -> str:
    try:
        return "token" if await LoginTokens().of(settings.get, jaas).token() else ""
    except BarnabasError:
        return "failed"
