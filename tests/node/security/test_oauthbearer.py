"""Logins with signed OAuth tokens: keys from a file and their rotation; half a configuration is refused."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.errors import BrokerError
from barnabas.runtime.offload import WorkerThread
from tests.support.oracle.oauth_script import held_tokens, oauth_settings, presented
from tests.support.oracle.sasl_script import SaslWire, bearer
from tests.support.security.identity_server import Answer, identity_server, signing_key
from tests.support.security.sasl_node import address_of, node_of, sasl_node
from tests.support.waiting import until

RECORDED = Path(__file__).parents[2] / "golden" / "sasl" / "signed-tokens.json"


def key(name: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": name, "use": "sig"})


def write_keys(path: Path, *keys: ECKey) -> None:
    path.write_text(json.dumps({"keys": [each.as_dict(private=False) for each in keys]}))


def token(signer: ECKey, **claims: Any) -> bytes:
    now = int(time.time())
    every = {"sub": "carol", "iat": now, "exp": now + 60, "aud": "kafka", **claims}
    return bearer(jwt.encode({"alg": "ES256", "kid": signer.kid}, every, signer))


def login(address: str, message: bytes) -> Any:
    with SaslWire(address) as wire:
        wire.handshake("OAUTHBEARER")
        if wire.token(message):
            wire.token(b"\1", show=True)
        return wire.said[-1][:5]  # without a note of how long it took


async def test_tokens_are_checked_with_the_keys_of_a_file_also_after_their_rotation(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    first, second = key("first"), key("second")
    write_keys(path, first)
    settings = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": path.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "1",
        "connection.failed.authentication.delay.ms": "0",
    }
    async with sasl_node(settings, "SASL") as node:
        address = address_of(node, "SASL")
        logins = node.server.logins
        assert logins is not None
        await until(lambda: all(each.keys is not None for each in logins.signing_keys))
        accepted = await asyncio.to_thread(login, address, token(first))
        assert accepted[:3] == ("token", 0, "")
        assert 50_000 < accepted[4] <= 60_000  # the session ends with the token
        refused = ("token", 58, '{"status":"invalid_token"}', "", 0)
        assert await asyncio.to_thread(login, address, token(first, aud="other")) == refused
        assert await asyncio.to_thread(login, address, token(first, exp=1)) == refused
        write_keys(path, second)
        assert (
            await asyncio.to_thread(login, address, token(second)) == refused
        )  # it makes the node read the file again
        await until(lambda: [each.keys and each.keys.keys[0].kid for each in logins.signing_keys] == ["second"])
        assert (await asyncio.to_thread(login, address, token(second)))[:3] == ("token", 0, "")
        assert await asyncio.to_thread(login, address, token(first)) == refused


@pytest.mark.parametrize("readable", [True, False])
async def test_a_slow_server_of_keys_keeps_only_logins_waiting(readable: bool) -> None:
    signer, may_answer = key("first"), threading.Event()

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            may_answer.wait(60)
            self.send_response(200 if readable else 503)
            self.end_headers()
            self.wfile.write(json.dumps({"keys": [signer.as_dict(private=False)]}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    worker = WorkerThread()
    settings = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"http://127.0.0.1:{server.server_port}/keys",
        "connection.failed.authentication.delay.ms": "0",
    }
    try:
        async with sasl_node(settings, "SASL", offload=worker.run) as node:
            logins = node.server.logins
            assert logins is not None
            await asyncio.wait_for(worker.run(lambda: None), 60)  # other work of the node's thread goes on
            (keys,) = logins.signing_keys
            begun = asyncio.ensure_future(asyncio.to_thread(login, address_of(node, "SASL"), token(signer)))
            await until(lambda: keys.waiting == 1)
            may_answer.set()
            said = await begun
            assert said[:2] == ("token", 0 if readable else 58)
            assert keys.waiting == 0
    finally:
        may_answer.set()
        await asyncio.to_thread(server.shutdown)
        server.server_close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "jwks.endpoint.url"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "ftp://x"}, "file"),
        ({"sasl.server.callback.handler.class": "a.B"}, "Java classes are not loaded"),
    ],
    ids=range(3),
)
def test_oauthbearer_needs_keys_or_an_explicit_permission(settings: dict[str, str], says: str) -> None:
    base = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
    }
    with pytest.raises(BrokerError, match=says):
        BrokerConfig({**base, **settings})


async def test_answers_to_signed_tokens_are_those_of_kafka() -> None:
    """Recorded from Kafka 4.3.1 (tests/oracle/test_oauth_diff.py): claims, names of keys, signatures."""
    with identity_server() as server:
        server.keys.append(signing_key("last"))
        settings = {**oauth_settings(server, "SASL"), "connection.failed.authentication.delay.ms": "0"}
        async with sasl_node(settings, "SASL") as node:
            logins = node.server.logins
            assert logins is not None
            await until(lambda: all(each.keys is not None for each in logins.signing_keys))
            said = await asyncio.to_thread(held_tokens, address_of(node, "SASL"), server)
    recorded = json.loads(RECORDED.read_text())
    assert {name: each for name, each in said.items() if each != recorded[name]} == {}


async def test_a_node_starts_without_its_server_of_keys(caplog: pytest.LogCaptureFixture) -> None:
    """Tokens are refused until the keys are read; a fault of the server later changes nothing."""
    with identity_server() as server:
        server.keys_answer = lambda: Answer(503)
        settings = {**oauth_settings(server, "SASL"), "connection.failed.authentication.delay.ms": "0"}
        server.claims = {"iss": "idp"}
        async with sasl_node(settings, "SASL") as node:
            address = address_of(node, "SASL")
            refused = [[0, "", '{"status":"invalid_token"}', False], [58, '{"status":"invalid_token"}', "", False]]
            assert await asyncio.to_thread(presented, address, server.token()) == refused
            assert "error=status 503 " in caplog.text
            server.keys_answer = None
            logins = node.server.logins
            assert logins is not None
            await until(lambda: all(each.keys is not None for each in logins.signing_keys))
            assert await asyncio.to_thread(presented, address, server.token()) == [[0, "", "", True]]
            server.keys_answer = lambda: Answer(503)
            stranger = signing_key("stranger")
            assert await asyncio.to_thread(presented, address, server.token(key=stranger)) == refused
            assert await asyncio.to_thread(presented, address, server.token()) == [[0, "", "", True]]


def test_a_url_of_keys_that_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_OPTS", "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=http://other/")
    with identity_server() as server, pytest.raises(BrokerError, match=r"jwks\.endpoint\.url is not allowed: add its"):
        node_of({**oauth_settings(server, "SASL")}, "SASL")
