"""OAUTHBEARER on the server's side: signatures, claims and malformed tokens."""

from __future__ import annotations

import base64
import json
from http.client import HTTPMessage
from io import BytesIO
from typing import Any
from urllib.request import Request

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

from barnabas.broker.sasl.oauthbearer_server import (
    BearerRules,
    BearerServer,
    TokenRefused,
    checked_claims,
    signed_claims,
    unsecured_claims,
)
from barnabas.broker.sasl.server_mechanism import LoginFailed, LoginIdentity
from barnabas.broker.security.jwks import SameProtection, UnusableKeys, parsed_keys

NOW_MS = 1_800_000_000_000
CLAIMS = {"sub": "carol", "exp": 1_800_000_600, "iat": 1_799_999_990, "aud": ["kafka", "x"], "iss": "i", "scope": "a b"}
KEY = ECKey.generate_key("P-256", {"kid": "one", "use": "sig"})
OTHER = ECKey.generate_key("P-256", {"kid": "two", "use": "sig"})
KEYS = KeySet([KEY])


def signed(key: Any = KEY, alg: str = "ES256", **claims: Any) -> str:
    return jwt.encode({"alg": alg, "kid": key.kid}, {**CLAIMS, **claims}, key, algorithms=[alg])


def test_a_signed_token_is_read() -> None:
    claims = signed_claims(signed(), KEYS)
    rules = BearerRules("i", ("kafka",), required_scope=("b",), signed=True)
    assert checked_claims(claims, rules, NOW_MS) == LoginIdentity("carol", 1_800_000_600_000)


def test_tokens_that_no_key_has_signed() -> None:
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    parts = signed().split(".")
    public = json.dumps(KEY.as_dict(private=False)).encode()
    confused = signed(OctKey.import_key(public, {"kid": "one"}), "HS256")  # a shared key made of a public one
    for token in (
        signed(OTHER),
        f"{none}.{parts[1]}.",
        f"{none}.{parts[1]}.{parts[2]}",
        confused,
        "",
        "a.b.c",
        "x" * 9,
    ):
        with pytest.raises(TokenRefused) as caught:
            signed_claims(token, KEYS)
        assert not token or token not in str(caught.value)


def test_an_empty_list_of_critical_extensions_is_refused() -> None:
    """RFC 7515, 4.1.11: it must not be empty."""
    token = jwt.encode({"alg": "ES256", "kid": "one", "crit": []}, CLAIMS, KEY, algorithms=["ES256"])
    with pytest.raises(TokenRefused, match="critical extensions"):
        signed_claims(token, KEYS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sub": None}, "claim sub"),
        ({"sub": 7}, "claim sub"),
        ({"sub": "admin\0"}, "claim sub"),
        ({"exp": None}, "no claim exp"),
        ({"exp": 1_799_999_990}, "has expired"),
        ({"exp": "soon"}, "no time"),
        ({"exp": 1e300}, "no time"),
        ({"iat": None}, "no claim iat"),
        ({"iat": 1_800_000_700}, "ends before it begins"),
        ({"nbf": 1_800_000_100}, "not valid yet"),
        ({"iss": "other"}, "another issuer"),
        ({"aud": "other"}, "another audience"),
        ({"aud": [7]}, "no text"),
        ({"scope": "a"}, "required scope"),
    ],
    ids=range(14),
)
def test_claims_that_break_a_rule(change: dict[str, Any], says: str) -> None:
    rules = BearerRules("i", ("kafka",), 5_000, required_scope=("b",), signed=True)
    claims = {name: value for name, value in {**CLAIMS, **change}.items() if value is not None}
    with pytest.raises(TokenRefused, match=says):
        checked_claims(claims, rules, NOW_MS)


def test_clocks_may_differ() -> None:
    rules = BearerRules(skew_ms=30_000)
    with pytest.raises(TokenRefused, match="not valid yet"):
        checked_claims({"sub": "a", "exp": 1.9e9, "iat": NOW_MS // 1_000 + 31}, rules, NOW_MS)
    assert checked_claims({"sub": "a", "exp": NOW_MS // 1_000 - 29}, rules, NOW_MS).name == "a"
    assert checked_claims({"sub": "a", "exp": 1.9e9, "iat": NOW_MS // 1_000 + 29}, rules, NOW_MS).name == "a"


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda each: base64.urlsafe_b64encode(each).decode() + ".."))
def test_any_text_is_a_token_or_refused(token: str) -> None:
    for read in (unsecured_claims, lambda text: signed_claims(text, KEYS)):
        with pytest.raises(TokenRefused):
            read(token)


@given(st.binary(max_size=80))
def test_any_first_message_is_refused(data: bytes) -> None:
    def refuse(token: str, now_ms: int) -> LoginIdentity:
        raise TokenRefused("never valid")

    exchange = BearerServer(refuse, lambda reason: None)
    try:
        assert exchange.step(data, 0) == b'{"status":"invalid_token"}'
    except LoginFailed:
        pass
    assert exchange.identity is None


def test_keys_of_a_document() -> None:
    rsa = RSAKey.generate_key(2048, {"kid": "rsa"})
    document = {"keys": [KEY.as_dict(private=False), rsa.as_dict(private=False), {"kty": "oct", "k": "c2VjcmV0"}]}
    keys = parsed_keys(json.dumps(document).encode())
    assert [each.kid for each in keys.keys] == ["one", "rsa"]
    assert signed_claims(signed(rsa, "RS256"), keys)["sub"] == "carol"


@pytest.mark.parametrize(
    "other",
    [
        {"kty": "AKP", "alg": "ML-DSA-44", "kid": "other", "pub": "AAAA"},
        {"kty": "EC", "crv": "P-999", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "RSA", "n": "!!", "e": "AQAB"},
        {"kty": "RSA", "n": [1], "e": "AQAB"},
        {"kty": []},
        7,
    ],
    ids=range(7),
)
def test_a_key_that_cannot_be_used_keeps_the_others(other: object) -> None:
    keys = parsed_keys(json.dumps({"keys": [other, KEY.as_dict(private=False)]}).encode())
    assert "one" in [each.kid for each in keys.keys]
    assert signed_claims(signed(KEY, "ES256"), keys)["sub"] == "carol"


@pytest.mark.parametrize(
    ("asked", "answered", "follows"),
    [
        ("https://a/keys", "https://b/keys", True),
        ("http://a/keys", "https://b/keys", True),
        ("http://a/keys", "http://b/keys", True),
        ("https://a/keys", "http://a/keys", False),
        ("http://a/keys", "ftp://a/keys", False),
        ("http://a/keys", "file:///etc/keys", False),
    ],
    ids=range(6),
)
def test_keys_are_not_read_from_a_less_protected_address(asked: str, answered: str, follows: bool) -> None:
    def redirected() -> Request | None:
        return SameProtection().redirect_request(Request(asked), BytesIO(), 302, "Found", HTTPMessage(), answered)

    if follows:
        found = redirected()
        assert found is not None
        assert found.full_url == answered
    else:
        with pytest.raises(ValueError, match="redirects to another scheme"):
            redirected()


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"keys":[]}', b'{"keys":[7]}', b'{"keys":[{"kty":"EC"}]}', b"[" * 100_000, b" " * 1_100_000],
    ids=range(8),
)
def test_documents_without_usable_keys(data: bytes) -> None:
    with pytest.raises(UnusableKeys):
        parsed_keys(data)
