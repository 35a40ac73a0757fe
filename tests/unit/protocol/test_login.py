"""Authentication of a connection, and the renewal of its session, against a simulated broker: no request is lost or reordered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.errors import ErrorCode
from barnabas.ports import Buffer
from barnabas.protocol.exchange import Exchange, ExchangeState, NotReady
from barnabas.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from barnabas.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from barnabas.protocol.messages.header import RequestHeader, ResponseHeader
from barnabas.protocol.messages.metadata import ApiVersion, ApiVersionsResponse
from barnabas.protocol.messages.produce import ProduceRequest
from barnabas.protocol.registry import request_header_version, response_header_version
from barnabas.protocol.sasl import OAuthBearerClient, PlainClient, SaslFailed
from barnabas.protocol.schema import decode, encode
from barnabas.protocol.scram import ScramClient, ScramKeys
from barnabas.work import finished

VERSIONS = {0: (0, 13), 12: (0, 4), 17: (0, 1), 18: (0, 4), 36: (0, 2)}


class Broker:
    """Takes requests apart and makes answers."""

    def __init__(self, core: Exchange) -> None:
        self.core = core

    def take(self, parts: list[Buffer]) -> list[RequestHeader]:
        """The headers of the requests; `bodies` has the rest."""
        data = b"".join(parts)
        headers, self.bodies = [], []
        while data:
            size = int.from_bytes(data[:4], "big")
            frame, data = data[4 : 4 + size], data[4 + size :]
            key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
            header_version = request_header_version(key, version)
            header = decode(RequestHeader, frame, header_version)
            headers.append(header)
            self.bodies.append(frame[len(encode(header, header_version)) :])
        return headers

    def answer(self, header: RequestHeader, response: Any, now_ms: int = 0) -> list[Buffer]:
        """Gives an answer to the core. Returns what it writes next."""
        version = header.request_api_version
        head = encode(
            ResponseHeader(correlation_id=header.correlation_id),
            response_header_version(header.request_api_key, version),
        )
        self.core.on_frame(memoryview(head + encode(response, version)))
        return self.core.on_own_answer(now_ms) if self.core.own_answer is not None else []


def connecting(sasl: Callable[[], Any], versions: Any = VERSIONS) -> tuple[Exchange, Broker, list[Buffer]]:
    """A connection whose broker has answered ApiVersions, and what the client has written then."""
    core = Exchange("me", request_timeout_ms=1_000, sasl=sasl, jitter=0.5)
    broker = Broker(core)
    core.on_connecting()
    (header,) = broker.take(core.on_connected(0))
    keys = [ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in versions.items()]
    return core, broker, broker.answer(header, ApiVersionsResponse(api_keys=keys))


def plain() -> PlainClient:
    return PlainClient("alice", "secret")


def ready(lifetime_ms: int) -> tuple[Exchange, Broker]:
    core, broker, parts = connecting(plain)
    (header,) = broker.take(parts)
    (header,) = broker.take(broker.answer(header, SaslHandshakeResponse(mechanisms=["PLAIN"])))
    assert broker.answer(header, SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms), 100) == []
    assert core.state is ExchangeState.READY
    return core, broker


def test_a_connection_authenticates_before_it_is_ready() -> None:
    core, broker, parts = connecting(plain)
    (header,) = broker.take(parts)
    authenticating = core.state
    assert authenticating is ExchangeState.AUTHENTICATING
    assert (header.request_api_key, header.request_api_version) == (17, 1)
    assert decode(SaslHandshakeRequest, broker.bodies[0], 1).mechanism == "PLAIN"
    with pytest.raises(NotReady, match="authenticating"):
        core.send(HeartbeatRequest(), print, 0)
    (header,) = broker.take(broker.answer(header, SaslHandshakeResponse(mechanisms=["PLAIN"])))
    assert (header.request_api_key, header.request_api_version) == (36, 2)
    assert decode(SaslAuthenticateRequest, broker.bodies[0], 2).auth_bytes == b"\0alice\0secret"
    assert broker.answer(header, SaslAuthenticateResponse()) == []
    assert core.state is ExchangeState.READY
    assert core.reauthenticate_at_ms is None


def test_a_conversation_has_several_messages() -> None:
    """The vector of RFC 7677, over a broker that serves version 0 of SaslAuthenticate only."""
    nonce = "rOprNGfwEbeRWgbNEkqO"
    keys = ScramKeys("SCRAM-SHA-256", "pencil")
    versions = {**VERSIONS, 36: (0, 0)}
    core, broker, parts = connecting(lambda: ScramClient("SCRAM-SHA-256", "user", keys, nonce), versions)
    (header,) = broker.take(parts)
    (header,) = broker.take(broker.answer(header, SaslHandshakeResponse()))
    first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    (header,) = broker.take(broker.answer(header, SaslAuthenticateResponse(auth_bytes=first)))
    final = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    broker.answer(header, SaslAuthenticateResponse(auth_bytes=final))
    assert core.state is ExchangeState.READY


def handshake_only(core: Exchange, broker: Broker, parts: list[Buffer], answer: Any) -> None:
    (header,) = broker.take(parts)
    broker.answer(header, answer)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["SCRAM-SHA-256", "OAUTHBEARER"]
            ),
            "does not offer SASL mechanism PLAIN at this listener; it offers: SCRAM-SHA-256, OAUTHBEARER",
        ),
        (SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE), "expects no SASL at this listener"),
        (SaslHandshakeResponse(error_code=-1), "error -1"),
    ],
)
def test_a_mechanism_that_is_not_offered(answer: Any, why: str) -> None:
    core, broker, parts = connecting(plain)
    with pytest.raises(SaslFailed, match=why):
        handshake_only(core, broker, parts, answer)


@pytest.mark.parametrize("versions", [{18: (0, 4)}, {17: (0, 0), 18: (0, 4), 36: (0, 2)}, {17: (0, 1), 18: (0, 4)}])
def test_a_broker_without_the_requests(versions: Any) -> None:
    def authenticate() -> None:
        core, broker, parts = connecting(plain, versions)
        handshake_only(core, broker, parts, SaslHandshakeResponse())

    with pytest.raises(SaslFailed, match="does not serve SASL in a form that this client knows"):
        authenticate()


@pytest.mark.parametrize(
    ("code", "text", "why"),
    [
        (
            58,
            "Authentication failed: Invalid username or password",
            "Authentication failed: Invalid username",
        ),
        (58, None, "the credentials are wrong"),
        (34, None, "does not fit this stage"),
        (4711, None, "PLAIN: the broker refused"),
    ],
)
def test_a_refused_login_tells_what_the_broker_said(code: int, text: str | None, why: str) -> None:
    _, broker, parts = connecting(plain)
    (header,) = broker.take(parts)
    (header,) = broker.take(broker.answer(header, SaslHandshakeResponse()))
    with pytest.raises(SaslFailed, match=why) as refused:
        broker.answer(header, SaslAuthenticateResponse(error_code=code, error_message=text))
    assert "secret" not in str(refused.value)


def test_a_broker_that_does_not_end_the_conversation() -> None:
    class Endless(PlainClient):
        def step(self, challenge: bytes) -> bytes | None:
            return challenge

    _, broker, parts = connecting(lambda: Endless("a", "b"))
    (header,) = broker.take(parts)
    (header,) = broker.take(broker.answer(header, SaslHandshakeResponse()))
    for _ in range(19):
        (header,) = broker.take(broker.answer(header, SaslAuthenticateResponse(auth_bytes=b"x")))
    with pytest.raises(SaslFailed, match="20 messages without an end"):
        broker.answer(header, SaslAuthenticateResponse(auth_bytes=b"x"))


def test_a_silent_broker_is_overdue() -> None:
    core, _, _ = connecting(plain)
    assert core.timer_at() == 1_000
    assert core.on_timer(1_000) == "SaslHandshake"


def test_a_session_is_renewed_before_it_ends_and_requests_wait_for_it() -> None:
    core, broker = ready(lifetime_ms=10_000)
    assert core.reauthenticate_at_ms == 9_000  # between 85 % and 95 % of the lifetime
    got: list[Any] = []
    (before,) = broker.take(core.send(HeartbeatRequest(generation_id=1), got.append, 8_900, timeout_ms=60_000))
    (handshake,) = broker.take(core.reauthenticate(9_000))
    assert handshake.request_api_key == 17
    assert core.reauthenticate(9_001) == []
    # the broker answers the handshake after the long request before it: its time limit begins then
    assert core.timer_at() == 8_900 + 60_000
    assert core.state is ExchangeState.READY
    assert core.send(HeartbeatRequest(generation_id=2), got.append, 9_001) == []
    assert core.send(ProduceRequest(acks=0), print, 9_002, answered=False) == []
    assert core.send(HeartbeatRequest(generation_id=3), got.append, 9_003) == []
    assert core.in_flight == 5
    assert core.timer_at() == 10_001
    broker.answer(before, HeartbeatResponse(throttle_time_ms=1))
    assert [response.throttle_time_ms for response in got] == [1]
    assert core.timer_at() == 10_001
    (token,) = broker.take(broker.answer(handshake, SaslHandshakeResponse(), 9_100))
    assert token.request_api_key == 36
    held = broker.take(broker.answer(token, SaslAuthenticateResponse(session_lifetime_ms=20_000), 9_200))
    assert [header.request_api_key for header in held] == [12, 0, 12]
    assert [decode(HeartbeatRequest, broker.bodies[i], 4).generation_id for i in (0, 2)] == [2, 3]
    assert core.reauthenticate_at_ms == 9_000 + 18_000
    (after,) = broker.take(core.send(HeartbeatRequest(generation_id=4), got.append, 9_300))
    for number, header in enumerate((held[0], held[2], after), 2):
        broker.answer(header, HeartbeatResponse(throttle_time_ms=number))
    assert [response.throttle_time_ms for response in got] == [1, 2, 3, 4]


def test_a_short_session_is_renewed_when_brokers_accept_it() -> None:
    core, _ = ready(lifetime_ms=500)
    assert core.reauthenticate_at_ms == 100 + 1_050  # a second after the login, with a margin


def test_requests_wait_for_a_renewal_that_is_late() -> None:
    """The token provider is slow, or the loop was busy: the broker would close the connection at a request after the session's end."""
    core, broker = ready(lifetime_ms=10_000)
    got: list[Any] = []
    (sent,) = broker.take(core.send(HeartbeatRequest(generation_id=1), got.append, 9_499))
    assert core.send(HeartbeatRequest(generation_id=2), got.append, 9_500) == []
    encoded = finished(core.encode_long(HeartbeatRequest(generation_id=3), 4))
    assert core.send_encoded(encoded, got.append, 10_500, 11_500) == []
    assert (core.in_flight, core.timer_at()) == (3, 10_499)
    broker.answer(sent, HeartbeatResponse())
    assert core.timer_at() == 10_500
    (handshake,) = broker.take(core.reauthenticate(10_501))
    (token,) = broker.take(broker.answer(handshake, SaslHandshakeResponse(), 10_502))
    held = broker.take(broker.answer(token, SaslAuthenticateResponse(session_lifetime_ms=10_000), 10_503))
    assert [decode(HeartbeatRequest, body, 4).generation_id for body in broker.bodies] == [2, 3]
    assert [header.request_api_key for header in held] == [12, 12]
    assert broker.take(core.send(HeartbeatRequest(generation_id=4), got.append, 10_504))


def test_requests_that_wait_for_a_renewal_fail_with_the_connection() -> None:
    core, broker = ready(lifetime_ms=1_000)
    got: list[Any] = []
    broker.take(core.send(HeartbeatRequest(), lambda outcome: got.append(("sent", outcome)), 800))
    core.reauthenticate(900)
    core.send(HeartbeatRequest(), lambda outcome: got.append(("held", outcome)), 901, timeout_ms=50)
    core.send(ProduceRequest(acks=0), print, 902, answered=False)
    assert core.on_timer(951) == "Heartbeat"
    core.on_lost("gone")
    assert got == [("sent", "gone"), ("held", "gone")]
    assert (core.state, core.reauthenticate_at_ms) == (ExchangeState.DISCONNECTED, None)
    core.on_connecting()
    (header,) = broker.take(core.on_connected(1_000))
    assert header.request_api_key == 18


def test_a_refused_renewal_is_an_error() -> None:
    core, broker = ready(lifetime_ms=1_000)
    (handshake,) = broker.take(core.reauthenticate(900))
    (token,) = broker.take(broker.answer(handshake, SaslHandshakeResponse(), 9_100))
    refusal = SaslAuthenticateResponse(error_code=58, error_message="Cannot change principals")
    with pytest.raises(SaslFailed, match="Cannot change principals"):
        broker.answer(token, refusal)


def test_a_refused_token_is_explained_by_the_broker() -> None:
    _, broker, parts = connecting(lambda: OAuthBearerClient("a.b.c"))
    (header,) = broker.take(parts)
    (header,) = broker.take(broker.answer(header, SaslHandshakeResponse()))
    refusal = SaslAuthenticateResponse(auth_bytes=b'{"status":"invalid_token"}')
    (header,) = broker.take(broker.answer(header, refusal))
    assert decode(SaslAuthenticateRequest, broker.bodies[0], 2).auth_bytes == b"\x01"
    with pytest.raises(SaslFailed, match=r'OAUTHBEARER: .*{"status":"invalid_token"}'):
        broker.answer(header, SaslAuthenticateResponse(error_code=58, error_message='{"status":"invalid_token"}'))


def test_without_sasl_nothing_is_renewed() -> None:
    core = Exchange("me", request_timeout_ms=1_000)
    core.on_connecting()
    core.on_connected(0)
    assert core.reauthenticate(5) == []
