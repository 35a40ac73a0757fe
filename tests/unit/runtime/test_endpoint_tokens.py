"""Tokens of an endpoint: kept, renewed before their end, and what happens when the endpoint fails."""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from barnabas.protocol.oauth import ANSWER_BYTES_MAX, TokenNotGiven
from barnabas.protocol.oauth_settings import Assertion, OAuthInvalid, OAuthSettings
from barnabas.runtime.endpoint_tokens import EndpointTokens
from tests.support.clock import WALL_MS, ManualClock
from tests.support.security.certificates import CertificateAuthority
from tests.support.security.identity_server import CLIENT, SECRET, Answer, Asked, IdentityServer, identity_server


@pytest.fixture
def server() -> Iterator[IdentityServer]:
    with identity_server() as running:
        running.lifetime_s = 1_000
        yield running


def settings(server: IdentityServer, **changes: Any) -> OAuthSettings:
    quick: dict[str, Any] = {"client_secret": SECRET, "retry_ms": 0, "retry_ms_max": 0}
    return OAuthSettings(server.token_url, CLIENT, **{**quick, **changes})


def clock_of_now() -> ManualClock:
    """A clock that begins now, because the server's tokens do."""
    return ManualClock(int(time.time() * 1_000) - WALL_MS)


async def test_a_token_is_kept_and_renewed_before_its_end(server: IdentityServer) -> None:
    clock = clock_of_now()
    tokens = EndpointTokens(settings(server, window_jitter=0.0), {"a": "b"}, clock)
    first = await tokens.token()
    assert tokens.extensions() == {"a": "b"}
    clock.time_ms = tokens._times.expires_ms - WALL_MS - 301_000  # the buffer before the end is 300 s
    assert await tokens.token() == first
    assert len(server.asked) == 1
    clock.time_ms += 1_001
    assert await tokens.token() != first
    assert len(server.asked) == 2


async def test_logins_at_the_same_time_wait_for_one_request(server: IdentityServer) -> None:
    tokens = EndpointTokens(settings(server), {})
    assert len(set(await asyncio.gather(*(tokens.token() for _ in range(20))))) == 1
    assert len(server.asked) == 1


def test_a_process_has_one_token_for_all_that_other_processes_send(server: IdentityServer) -> None:
    """As for the tasks of Spark: each has an event loop of its own."""
    made = EndpointTokens(settings(server), {"a": "b"})
    given = {asyncio.run(pickle.loads(pickle.dumps(made)).token()) for _ in range(3)}
    other = pickle.loads(pickle.dumps(EndpointTokens(settings(server), {"a": "c"})))
    assert (len(given), len(server.asked)) == (1, 1)
    assert asyncio.run(other.token()) not in given
    assert other.extensions() == {"a": "c"}


async def test_a_token_that_a_broker_has_refused_is_replaced(server: IdentityServer) -> None:
    clock = clock_of_now()
    tokens = EndpointTokens(settings(server), {}, clock)
    first = await tokens.token()
    server.claims = {"second": True}
    tokens.token_refused("another")
    assert await tokens.token() == first
    tokens.token_refused(first)
    assert await tokens.token() != first
    tokens.token_refused(first)  # by another connection, later
    second = await tokens.token()
    assert len(server.asked) == 2
    tokens.token_refused(second)  # by a broker that refuses every token
    assert await tokens.token() == second
    clock.time_ms += 10_000
    tokens.token_refused(second)
    await tokens.token()
    assert len(server.asked) == 3


async def test_a_failure_is_that_of_all_who_waited_for_it(server: IdentityServer) -> None:
    server.token_answer = lambda _: Answer(400)
    tokens = EndpointTokens(settings(server), {})
    outcomes = await asyncio.gather(*(tokens.token() for _ in range(20)), return_exceptions=True)
    assert {type(each) for each in outcomes} == {TokenNotGiven}
    assert len(server.asked) == 1
    with pytest.raises(TokenNotGiven):  # a later login asks again
        await tokens.token()
    assert len(server.asked) == 2


async def test_a_login_that_is_cancelled_stops_no_other(server: IdentityServer) -> None:
    may_answer = threading.Event()

    def wait(_: Asked) -> None:
        may_answer.wait(60)

    server.token_answer = wait
    tokens = EndpointTokens(settings(server), {})
    first, second = (asyncio.ensure_future(tokens.token()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    may_answer.set()
    assert await second


async def test_the_former_token_serves_while_the_endpoint_fails(server: IdentityServer) -> None:
    clock = clock_of_now()
    tokens = EndpointTokens(settings(server), {}, clock)
    first = await tokens.token()
    server.token_answer = lambda _: Answer(503)
    clock.time_ms += 900_000
    assert [await tokens.token() for _ in range(5)] == [first] * 5
    assert len(server.asked) == 2  # and not once for each login
    clock.time_ms += 10_000
    assert await tokens.token() == first
    assert len(server.asked) == 3
    clock.time_ms += 100_000  # the token has expired
    with pytest.raises(TokenNotGiven, match="status 503"):
        await tokens.token()
    server.token_answer = None
    server.lifetime_s = 5_000
    assert await tokens.token() != first


async def test_no_login_waits_long_while_the_former_token_is_valid(server: IdentityServer) -> None:
    clock, may_answer = clock_of_now(), threading.Event()
    tokens = EndpointTokens(settings(server, retry_ms_max=60_000), {}, clock)
    first = await tokens.token()

    def wait(_: Asked) -> None:
        may_answer.wait(60)

    server.token_answer = wait
    clock.time_ms = tokens._times.expires_ms - WALL_MS - 500
    try:
        assert await tokens.token() == first
    finally:
        may_answer.set()
    clock.time_ms += 100
    server.token_answer = lambda _: Answer(503)
    asked = len(server.asked)
    assert await tokens.token() == first  # the next request is due after half of the rest
    assert len(server.asked) == asked
    clock.time_ms += 200
    assert await tokens.token() == first
    assert len(server.asked) == asked + 1  # and is not repeated


async def test_requests_are_repeated_unless_they_would_be_refused_again(server: IdentityServer) -> None:
    failures = [503, 500, 429]
    server.token_answer = lambda _: Answer(failures.pop(0)) if failures else None
    assert await EndpointTokens(settings(server, retry_ms=1, retry_ms_max=60_000), {}).token()
    assert len(server.asked) == 4
    with pytest.raises(TokenNotGiven, match=r"status 401.*no such client") as refused:
        await EndpointTokens(settings(server, client_secret="planted-wrong", retry_ms_max=60_000), {}).token()
    assert len(server.asked) == 5
    assert "planted" not in str(refused.value)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(302, headers={"location": "http://127.0.0.1:1/"}), "a redirection, which is not followed"),
        (Answer(200, b"x" * (ANSWER_BYTES_MAX + 2)), "more than"),
        (Answer(200, b'{"access_token":"opaque"}'), "is no JWT"),
        (Answer(200, b"", {"content-length": "5"}), "cannot be reached: IncompleteRead"),
    ],
    ids=range(4),
)
async def test_answers_that_are_refused(server: IdentityServer, answer: Answer, why: str) -> None:
    server.token_answer = lambda _: answer
    with pytest.raises(TokenNotGiven, match=why):
        await EndpointTokens(settings(server), {}).token()
    assert len(server.asked) == 1


async def test_an_expired_token_of_the_endpoint(server: IdentityServer) -> None:
    server.lifetime_s = -1
    with pytest.raises(TokenNotGiven, match="compare the clocks"):
        await EndpointTokens(settings(server), {}).token()


async def test_an_endpoint_that_never_completes_its_answer() -> None:
    """It sends a byte now and then, so that no single reading takes too long."""
    ended = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            while not ended.wait(0.02):
                try:
                    connection.sendall(b"H")
                except OSError:
                    ended.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/token"
        given = OAuthSettings(
            url, CLIENT, SECRET, connect_timeout_ms=100, read_timeout_ms=200, retry_ms_max=0, retry_ms=0
        )
        with pytest.raises(TokenNotGiven, match="did not answer within 300 ms"):
            await EndpointTokens(given, {}).token()
        thread.join(60)  # the connection was closed
        assert ended.is_set()


async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    given = OAuthSettings(f"http://127.0.0.1:{port}/token", CLIENT, SECRET, retry_ms=0, retry_ms_max=0)
    with pytest.raises(TokenNotGiven, match="cannot be reached: Connection refused"):
        await EndpointTokens(given, {}).token()


async def test_https_trusts_the_store_of_the_jaas_text(ca: CertificateAuthority) -> None:
    node = ca.issue("idp", hosts=("127.0.0.1",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(node.both)
    with identity_server(context) as server:
        trusting = settings(server, tls=tuple(ca.truststore().items()))
        assert await EndpointTokens(trusting, {}).token()
        with pytest.raises(TokenNotGiven, match=r"cannot be trusted.*ssl\.truststore\.location of sasl.jaas.config"):
            await EndpointTokens(settings(server, retry_ms_max=60_000), {}).token()
        with pytest.raises(OAuthInvalid, match=r"sasl\.jaas\.config: ssl\.truststore"):
            EndpointTokens(settings(server, tls=(("ssl.truststore.location", "/none"),)), {})


async def test_a_trust_store_is_read_for_each_request(ca: CertificateAuthority, tmp_path: Path) -> None:
    store = tmp_path / "trusted.pem"
    store.write_bytes(CertificateAuthority(tmp_path / "other").certificate.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca.issue("idp", hosts=("127.0.0.1",)).both)
    with identity_server(context) as server:
        by_file = (("ssl.truststore.type", "PEM"), ("ssl.truststore.location", str(store)))
        tokens = EndpointTokens(settings(server, tls=by_file), {})
        with pytest.raises(TokenNotGiven, match="cannot be trusted"):
            await tokens.token()
        store.unlink()
        with pytest.raises(TokenNotGiven, match=r"sasl\.jaas\.config: ssl\.truststore"):
            await tokens.token()
        store.write_bytes(ca.certificate.read_bytes())
        assert await tokens.token()


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
@pytest.mark.parametrize("bearer", [False, True])
async def test_a_signed_assertion(server: IdentityServer, tmp_path: Path, algorithm: str, bearer: bool) -> None:
    private = (
        rsa.generate_private_key(65_537, 2_048) if algorithm == "RS256" else ec.generate_private_key(ec.SECP256R1())
    )
    lock = serialization.BestAvailableEncryption(b"planted-passphrase")
    pem = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
    (tmp_path / "key.pem").write_bytes(pem)
    (tmp_path / "template.json").write_text(
        json.dumps({"header": {"kid": "k1"}, "payload": {"x": "y", "sub": "other"}})
    )
    assertion = Assertion(
        key_file=str(tmp_path / "key.pem"),
        passphrase="planted-passphrase",
        template_file=str(tmp_path / "template.json"),
        algorithm=algorithm,
        claims=(("aud", "idp"), ("iss", CLIENT), ("sub", CLIENT)),
        has_id=True,
    )
    given = settings(server, client_secret="", assertion=assertion, bearer=bearer)
    assert await EndpointTokens(given, {}).token()
    form = server.asked[0].form
    text = form["assertion" if bearer else "client_assertion"]
    kind = RSAKey if algorithm == "RS256" else ECKey
    found = jwt.decode(text, kind.import_key(pem, password="planted-passphrase"), algorithms=[algorithm])
    assert found.header == {"alg": algorithm, "typ": "JWT", "kid": "k1"}
    claims = found.claims
    assert (claims["aud"], claims["iss"], claims["sub"], claims["x"]) == ("idp", CLIENT, "other", "y")
    assert (claims["exp"] - claims["iat"], claims["iat"] - claims["nbf"]) == (300, 60)
    assert claims["jti"]
    wrong = Assertion(key_file=str(tmp_path / "key.pem"), passphrase="planted-wrong", algorithm=algorithm)
    with pytest.raises(TokenNotGiven, match=r"private\.key\.passphrase must decrypt it") as refused:
        await EndpointTokens(settings(server, assertion=wrong), {}).token()
    assert "planted" not in str(refused.value)


async def test_an_assertion_of_a_file(server: IdentityServer, tmp_path: Path) -> None:
    path = tmp_path / "assertion"
    given = settings(server, client_secret="", assertion=Assertion(str(path)))
    with pytest.raises(TokenNotGiven, match=r"assertion\.file cannot be read: No such file"):
        await EndpointTokens(given, {}).token()
    path.write_text("planted")
    with pytest.raises(TokenNotGiven, match="contains no assertion") as refused:
        await EndpointTokens(given, {}).token()
    assert "planted" not in str(refused.value)
    path.write_text("a.b.c\n")
    assert await EndpointTokens(given, {}).token()
    assert server.asked[-1].form["client_assertion"] == "a.b.c"
    server.token_answer = lambda asked: Answer(400, json.dumps({"error": asked.form["client_assertion"]}).encode())
    with pytest.raises(TokenNotGiven) as refused:
        await EndpointTokens(given, {}).token()
    assert "a.b.c" not in str(refused.value)
