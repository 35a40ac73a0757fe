"""The bundled client with a real Kafka over TLS and SASL: each mechanism, the renewal of sessions, and what refusals say."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from barnabas.client import Admin, AuthenticationFailed, BrokerUnreachable, Consumer, KafkaError, NotKafka, Producer
from tests.support.clients.renewed import sends_through_renewals
from tests.support.oracle.real_kafka import running_kafka
from tests.support.oracle.scram_users import make_scram_users
from tests.support.processes.ports import free_port_block
from tests.support.security.certificates import CertificateAuthority

PASSWORD = "planted-secret"
MODULE = "org.apache.kafka.common.security"
LIMIT_S = 90  # of clients that fail at once
LIFETIME_MS = 1_500  # of a session of SCRAM-SHA-256 at the listener SASL_PLAINTEXT


@dataclass
class SecuredKafka:
    """Addresses of the listeners."""

    plaintext: str
    sasl_plaintext: str
    sasl_ssl: str
    ssl: str

    def address(self, protocol: str) -> str:
        found: str = getattr(self, protocol.lower())
        return found


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, ca: CertificateAuthority) -> Iterator[SecuredKafka]:
    port = free_port_block(5)
    node = ca.issue("kafka", hosts=("localhost",))
    names = ("PLAINTEXT", "CONTROLLER", "SASL_PLAINTEXT", "SASL_SSL", "SSL")
    settings = {
        "listeners": ",".join(f"{name}://localhost:{port + i}" for i, name in enumerate(names)),
        "advertised.listeners": ",".join(
            f"{name}://localhost:{port + i}" for i, name in enumerate(names) if name != "CONTROLLER"
        ),
        "controller.quorum.voters": f"1@localhost:{port + 1}",
        "listener.security.protocol.map": ",".join(
            f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in names
        ),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl_plaintext.scram-sha-256.connections.max.reauth.ms": str(LIFETIME_MS),
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(node.both),
        **ca.truststore(),
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        for mechanism, module in (
            ("plain", f'plain.PlainLoginModule required user_alice="{PASSWORD}"'),
            ("scram-sha-256", "scram.ScramLoginModule required"),
            ("scram-sha-512", "scram.ScramLoginModule required"),
            ("oauthbearer", 'oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker"'),
        ):
            settings[f"listener.name.{listener}.{mechanism}.sasl.jaas.config"] = f"{MODULE}.{module};"
    address = [f"localhost:{port + i}" for i in range(len(names))]
    given = [f"{name}={value}" for name, value in settings.items()]
    with running_kafka(tmp_path_factory.mktemp("secured-kafka"), port, given):
        make_scram_users(
            address[0],
            address[2],
            [("alice", PASSWORD, "SCRAM-SHA-256", 4_096), ("alice", PASSWORD, "SCRAM-SHA-512", 16_384)],
        )
        yield SecuredKafka(address[0], *address[2:])


class UnsecuredTokens:
    """Tokens as Kafka's test handler takes them: JWTs without a signature."""

    def __init__(self, subject: str = "alice", lifetime_s: int = 60) -> None:
        self.subject = subject
        self.lifetime_s = lifetime_s
        self.made = 0

    async def token(self) -> str:
        self.made += 1
        now = int(time.time())
        parts = {"alg": "none"}, {"sub": self.subject, "iat": now - 1, "exp": now + self.lifetime_s}
        return ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts) + "."


def login(mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    if mechanism == "OAUTHBEARER":
        return {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": UnsecuredTokens()}
    return {"sasl_mechanism": mechanism, "sasl_plain_username": "alice", "sasl_plain_password": password}


@pytest.fixture(params=["SASL_PLAINTEXT", "SASL_SSL"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def settings_of(protocol: str, secured: SecuredKafka, ca: CertificateAuthority) -> dict[str, Any]:
    tls = {"ssl_cafile": str(ca.certificate)} if protocol.endswith("SSL") else {}
    return {"bootstrap_servers": secured.address(protocol), "security_protocol": protocol, **tls}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
async def test_every_mechanism(secured: SecuredKafka, ca: CertificateAuthority, protocol: str, mechanism: str) -> None:
    settings = {**settings_of(protocol, secured, ca), **login(mechanism)}
    topic = f"{protocol}-{mechanism}".lower()
    async with Producer(**settings) as producer:
        sent = await producer.send_and_wait(topic, b"x")
    async with Consumer(topic, auto_offset_reset="earliest", group_id=topic, **settings) as consumer:
        record = await asyncio.wait_for(consumer.getone(), 60)
    assert (record.value, record.offset) == (b"x", sent.offset)


async def test_a_client_certificate(secured: SecuredKafka, ca: CertificateAuthority) -> None:
    client = ca.issue("client", password="planted-key")
    settings: Any = settings_of("SSL", secured, ca)
    certificate: Any = {
        "ssl_certfile": str(client.certificate),
        "ssl_keyfile": str(client.key),
        "ssl_password": "planted-key",
    }
    async with Admin(**settings, **certificate) as admin:
        assert (await admin.describe_cluster()).brokers


async def failure(**settings: Any) -> tuple[KafkaError, float]:
    """The error of a client that cannot start, and the seconds that it took."""
    began = time.monotonic()
    with pytest.raises(KafkaError) as refused:
        async with Admin(**settings) as admin:
            await admin.describe_cluster()
    assert PASSWORD not in str(refused.value)
    return refused.value, time.monotonic() - began


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_wrong_password_fails_at_once(
    secured: SecuredKafka, ca: CertificateAuthority, protocol: str, mechanism: str
) -> None:
    error, seconds = await failure(
        **settings_of(protocol, secured, ca), **login(mechanism, "wrong"), request_timeout_ms=LIMIT_S * 1_000
    )
    assert isinstance(error, AuthenticationFailed)
    assert error.code is not None
    assert error.code.name == "SASL_AUTHENTICATION_FAILED"
    assert f"{mechanism}: the broker refused the login: Authentication failed" in str(error)
    assert seconds < LIMIT_S


async def test_an_expired_token_and_a_broken_provider(secured: SecuredKafka, ca: CertificateAuthority) -> None:
    settings: Any = {**settings_of("SASL_PLAINTEXT", secured, ca), "sasl_mechanism": "OAUTHBEARER"}
    error, _ = await failure(**settings, sasl_oauth_token_provider=UnsecuredTokens(lifetime_s=-5))
    assert isinstance(error, AuthenticationFailed)
    assert "invalid_token" in str(error)

    class Broken:
        async def token(self) -> str:
            raise RuntimeError("no identity server")

    error, _ = await failure(**settings, sasl_oauth_token_provider=Broken())
    assert isinstance(error, AuthenticationFailed)
    assert "the token provider failed: RuntimeError: no identity server" in str(error)


async def test_certificates_that_are_refused(secured: SecuredKafka, ca: CertificateAuthority, tmp_path: Path) -> None:
    other = CertificateAuthority(tmp_path / "other", "Another CA")
    good: Any = {**settings_of("SASL_SSL", secured, ca), **login("PLAIN")}
    error, _ = await failure(**{**good, "ssl_cafile": str(other.certificate)})
    assert isinstance(error, AuthenticationFailed)
    assert "set ssl_cafile (ssl.truststore.location) to the certificate of the authority that issued it" in str(error)
    error, _ = await failure(**{**good, "bootstrap_servers": secured.sasl_ssl.replace("localhost", "127.0.0.1")})
    assert isinstance(error, AuthenticationFailed)
    assert "connect to a name in the certificate" in str(error)
    address = secured.sasl_ssl.replace("localhost", "127.0.0.1")
    async with Admin(**{**good, "bootstrap_servers": address, "ssl_check_hostname": False}) as admin:
        assert (await admin.describe_cluster()).brokers
    error, seconds = await failure(**settings_of("SSL", secured, ca), request_timeout_ms=LIMIT_S * 1_000)
    assert isinstance(error, AuthenticationFailed)
    assert "requires a certificate of this client" in str(error)
    assert seconds < LIMIT_S
    stranger = other.issue("stranger")
    certificate: Any = {"ssl_certfile": str(stranger.certificate), "ssl_keyfile": str(stranger.key)}
    error, _ = await failure(**settings_of("SSL", secured, ca), **certificate)
    assert isinstance(error, AuthenticationFailed)
    assert (
        "set ssl_certfile and ssl_keyfile (ssl.keystore.location) to one of an authority that the broker trusts"
        in str(error)
    )


async def test_listeners_of_another_kind(secured: SecuredKafka, ca: CertificateAuthority) -> None:
    """What is wrong is said, and what to set."""
    error = await told("security_protocol", bootstrap_servers=secured.ssl)
    assert isinstance(error, NotKafka | BrokerUnreachable)
    assert "TLS" in str(error)
    tls: Any = {"security_protocol": "SSL", "ssl_cafile": str(ca.certificate)}
    await told("does this listener use TLS?", bootstrap_servers=secured.plaintext, **tls)
    await told("does this listener require authentication (SASL)?", bootstrap_servers=secured.sasl_plaintext)
    sasl: Any = {"security_protocol": "SASL_PLAINTEXT", **login("PLAIN")}
    error = await told("expects no SASL at this listener", bootstrap_servers=secured.plaintext, **sasl)
    assert isinstance(error, AuthenticationFailed)


async def told(what: str, **settings: Any) -> KafkaError:
    """An error that says this. A client tries until its time limit: the first one has a short limit."""
    for timeout_ms in (1_500, 30_000):
        error, _ = await failure(**settings, request_timeout_ms=timeout_ms)
        if what in str(error):
            return error
    raise AssertionError(f"not {what!r} but {error}")


async def test_a_session_is_renewed_and_nothing_is_lost(secured: SecuredKafka, ca: CertificateAuthority) -> None:
    """Kafka closes a connection whose session has ended; records that are sent all the time arrive once and in order."""
    settings: Any = {**settings_of("SASL_PLAINTEXT", secured, ca), **login("SCRAM-SHA-256")}
    await sends_through_renewals("renewed", LIFETIME_MS / 1_000, 3 * LIFETIME_MS / 1_000, **settings)
