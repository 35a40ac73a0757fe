"""Logins with signed tokens, to be held with Kafka and with Barnabas: both read their keys from the same identity server by http.

Each token is presented on a connection of its own; the note says whether it was accepted, the texts of the answers, and whether the
session has an end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from joserfc import jwt
from joserfc.jwk import ECKey

from tests.support.oracle.sasl_script import SaslWire, bearer, unsecured
from tests.support.security.identity_server import IdentityServer, signing_key

PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
STRANGER: Final = signing_key("stranger")


def oauth_settings(server: IdentityServer, listener: str) -> dict[str, str]:
    """Settings of a listener that Kafka and Barnabas understand; the server's tokens, which Kafka's node uses itself, fit them."""
    server.claims["iss"] = "idp"
    prefix = f"listener.name.{listener.lower()}.oauthbearer"
    return {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{prefix}.sasl.jaas.config": f"{PACKAGE}.OAuthBearerLoginModule required;",
        f"{prefix}.sasl.server.callback.handler.class": f"{PACKAGE}.OAuthBearerValidatorCallbackHandler",
        f"{prefix}.sasl.login.callback.handler.class": f"{PACKAGE}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.jwks.endpoint.url": server.keys_url,
        "sasl.oauthbearer.token.endpoint.url": server.token_url,
        "sasl.oauthbearer.client.credentials.client.id": "node",
        "sasl.oauthbearer.client.credentials.client.secret": "planted-client-secret",
        "sasl.oauthbearer.expected.audience": "kafka,other",
        "sasl.oauthbearer.expected.issuer": "idp",
    }


def _claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    every = {"sub": "carol", "iat": now, "exp": now + 1_000, "aud": "kafka", "iss": "idp", **changes}
    return {name: value for name, value in every.items() if value is not ...}


def _with(**changes: Any) -> Callable[[IdentityServer], str]:
    """A token of the server's last key with other claims; `...` leaves one out."""
    return lambda server: _signed(server.keys[-1], {"kid": server.keys[-1].kid}, _claims(**changes))


def _headed(by: Callable[[IdentityServer], ECKey], **header: Any) -> Callable[[IdentityServer], str]:
    return lambda server: _signed(by(server), header, _claims())


def _signed(key: ECKey, header: dict[str, Any], claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "ES256", **header}, claims, key)


def _later(seconds: int) -> int:
    return int(time.time()) + seconds


TOKENS: Final[dict[str, Callable[[IdentityServer], str]]] = {
    "as it should be": _with(),
    "several audiences": _with(aud=["x", "other"]),
    "another audience": _with(aud="x"),
    "no audience": _with(aud=...),
    "another issuer": _with(iss="x"),
    "no issuer": _with(iss=...),
    "expired": _with(exp=1_000, iat=999),
    "no end": _with(exp=...),
    "end is a text": _with(exp="soon"),
    "end with a fraction": lambda server: _with(exp=_later(1_000) + 0.5)(server),
    "expired within the skew": lambda server: _with(exp=_later(-10), iat=_later(-100))(server),
    "ends before it is issued": lambda server: _with(exp=_later(-10))(server),
    "ends before it is valid": lambda server: _with(exp=_later(5), nbf=_later(10))(server),
    "not issued": _with(iat=...),
    "issued in the future": lambda server: _with(iat=_later(600))(server),
    "issued a little in the future": lambda server: _with(iat=_later(10))(server),
    "not valid yet": lambda server: _with(nbf=_later(600))(server),
    "no subject": _with(sub=...),
    "empty subject": _with(sub=""),
    "blank subject": _with(sub=" "),
    "subject in blanks": _with(sub=" carol\n"),
    "subject is a number": _with(sub=5),
    "scope is a text": _with(scope="a b"),
    "scope is a list": _with(scope=["a", "b"]),
    "scope names one twice": _with(scope=["a", "a"]),
    "scope names nothing": _with(scope=["a", ""]),
    "scope is an empty text": _with(scope=""),
    "scope is a number": _with(scope=5),
    "unknown key": _headed(lambda _: STRANGER, kid="stranger"),
    "signature of another key": _headed(lambda _: STRANGER, kid="first"),
    "no name of a key, signed by the first": _headed(lambda server: server.keys[0]),
    "no name of a key, signed by the last": _headed(lambda server: server.keys[-1]),
    "no signature": lambda _: unsecured(_claims()),
    "not a token": lambda _: "abc",
    "three empty parts": lambda _: "..",
}


def presented(address: str, token: str) -> list[Any]:
    """What a broker answers to a token."""
    with SaslWire(address) as wire:
        wire.handshake("OAUTHBEARER")
        if wire.token(bearer(token), show=True):
            wire.token(b"\1", show=True)
        return [[*each[1:4], each[4] != 0] if each[0] == "token" else each[0] for each in wire.said[1:]]


def held_tokens(address: str, server: IdentityServer) -> dict[str, Any]:
    """What a broker answers to each token."""
    return {name: presented(address, make(server)) for name, make in TOKENS.items()}
