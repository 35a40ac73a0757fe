"""Kafka's keys of a login by OAUTHBEARER: what they mean, and what their errors say."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.protocol.oauth_settings import (
    ALLOWED_URLS,
    Assertion,
    FileLogin,
    OAuthInvalid,
    OAuthSettings,
    UnsecuredLogin,
    extensions_of,
    login_settings,
)

URL = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
SECRET = "sasl.oauthbearer.client.credentials.client.secret"
RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"
HANDLER = "sasl.login.callback.handler.class"
PACKAGE = "org.apache.kafka.common.security.oauthbearer"
ASSERTION = "sasl.oauthbearer.assertion."
GOOD: dict[str, Any] = {URL: "https://idp/token", CLIENT_ID: "carol", SECRET: "planted-1"}
KEY = {f"{ASSERTION}private.key.file": "/key.pem", f"{ASSERTION}claim.iss": "carol"}


def settings(given: dict[str, Any], options: dict[str, str] | None = None, environment: str = "") -> Any:
    return login_settings(given.get, options or {}, {"KAFKA_OPTS": environment})


def test_keys_win_over_the_options_of_jaas() -> None:
    old = {
        "clientId": "dave",
        "clientSecret": "planted-2",
        "scope": "old",
        "ssl.truststore.type": "PEM",
        "extension_a": "b",
    }
    assert settings(GOOD) == OAuthSettings("https://idp/token", "carol", "planted-1")
    found = settings({URL: "https://idp/token"}, old)
    assert found == OAuthSettings(
        "https://idp/token", "dave", "planted-2", "old", tls=(("ssl.truststore.type", "PEM"),)
    )
    assert "planted" not in repr(found)
    assert settings({**GOOD, "sasl.oauthbearer.scope": "new"}, old).scope == "new"
    assert settings(GOOD, old).client_id == "carol"
    assert extensions_of(old) == {"a": "b"}


def test_every_number_has_its_key() -> None:
    found = settings(
        {
            **GOOD,
            "sasl.login.connect.timeout.ms": "1",
            "sasl.login.read.timeout.ms": 2,
            "sasl.login.retry.backoff.ms": 3,
            "sasl.login.retry.backoff.max.ms": 4,
            "sasl.login.refresh.min.period.seconds": 5,
            "sasl.login.refresh.buffer.seconds": 6,
            "sasl.login.refresh.window.factor": "0.7",
            "sasl.login.refresh.window.jitter": 0.1,
            "sasl.oauthbearer.header.urlencode": "True",
            "sasl.oauthbearer.sub.claim.name": "name",
        }
    )
    numbers = (found.connect_timeout_ms, found.read_timeout_ms, found.retry_ms, found.retry_ms_max)
    assert numbers == (1, 2, 3, 4)
    assert (found.min_period_s, found.buffer_s, found.window_factor, found.window_jitter) == (5, 6, 0.7, 0.1)
    assert (found.url_encode, found.sub_claim) == (True, "name")


def test_assertions() -> None:
    found = settings({URL: "https://idp/token", **KEY, f"{ASSERTION}claim.jti.include": True, CLIENT_ID: "carol"})
    assert found.assertion == Assertion(key_file="/key.pem", claims=(("iss", "carol"),), has_id=True)
    assert (found.client_id, found.client_secret, found.bearer) == ("carol", "", False)
    bearer = settings(
        {URL: "https://idp/token", RETRIEVER: f"{PACKAGE}.JwtBearerJwtRetriever", f"{ASSERTION}file": "/a"}
    )
    assert (bearer.assertion, bearer.bearer) == (Assertion("/a"), True)
    secret = settings({URL: "https://idp/token", **KEY, f"{ASSERTION}private.key.passphrase": "planted-3"})
    assert "planted" not in repr(secret)


def test_tokens_without_an_endpoint() -> None:
    assert settings({URL: "file:///t", RETRIEVER: f"{PACKAGE}.FileJwtRetriever"}) == FileLogin("/t")
    assert settings({}, {"unsecuredLoginStringClaim_sub": "bob"}) == UnsecuredLogin("bob")


def test_lists_of_allowed_urls_and_files() -> None:
    for environment in ("", "-Xmx1g", f'"-D{ALLOWED_URLS}=https://a, https://idp/token" -Dx=y'):
        assert settings(GOOD, environment=environment).client_id == "carol"
    for environment in (f"-D{ALLOWED_URLS}=https://idp/", f"-D{ALLOWED_URLS}=", f"-D{ALLOWED_URLS}='"):
        with pytest.raises(OAuthInvalid, match=f"{URL} is not allowed: add its value to -D{ALLOWED_URLS}"):
            settings(GOOD, environment=environment)
    with pytest.raises(OAuthInvalid, match=r"private\.key\.file is not allowed"):
        settings(
            {URL: "https://idp/token", **KEY}, environment="-Dorg.apache.kafka.sasl.oauthbearer.allowed.files=/other"
        )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({CLIENT_ID: None}, f"needs {CLIENT_ID}: set it"),
        ({SECRET: " "}, f"needs {SECRET}: set it"),
        ({URL: "ftp://x/y"}, "write https://HOST/PATH"),
        ({URL: "https:///token"}, "write https://HOST/PATH"),
        ({URL: "http://a:99999/"}, "write https://HOST/PATH"),
        ({URL: "http://a/b c"}, "write https://HOST/PATH"),
        ({URL: "https://carol:planted-4@idp/"}, "contains a login"),
        ({RETRIEVER: "a.B"}, "Java classes are not loaded; known are"),
        ({HANDLER: "a.B"}, "Java classes are not loaded; known are"),
        ({"sasl.oauthbearer.jwt.validator.class": "a.B"}, "Java classes are not loaded; known are"),
        ({RETRIEVER: f"{PACKAGE}.FileJwtRetriever"}, "needs sasl.oauthbearer.token.endpoint.url=file"),
        ({URL: "file:///t", RETRIEVER: f"{PACKAGE}.JwtBearerJwtRetriever"}, "not a file"),
        (
            {RETRIEVER: f"{PACKAGE}.JwtBearerJwtRetriever"},
            "an assertion needs sasl.oauthbearer.assertion.private.key.file",
        ),
        ({f"{ASSERTION}claim.aud": "x"}, "has no effect without sasl.oauthbearer.assertion.claim.iss"),
        ({**KEY, f"{ASSERTION}algorithm": "HS256"}, "is none of RS256, ES256"),
        ({"sasl.login.refresh.window.factor": "0.4"}, "is no number from 0.5 to 1.0"),
        ({"sasl.login.refresh.window.factor": "nan"}, "is no number from 0.5 to 1.0"),
        ({"sasl.login.connect.timeout.ms": "x"}, "is no number from 1"),
        ({"sasl.login.retry.backoff.ms": "20000"}, "is above sasl.login.retry.backoff.max.ms"),
        ({"sasl.oauthbearer.header.urlencode": "1"}, "neither true nor false"),
        ({HANDLER: f"{PACKAGE}.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"}, "remove one of them"),
    ],
)
def test_errors_name_the_key_and_what_to_write(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(OAuthInvalid) as refused:
        settings({**GOOD, **changes})
    assert why in str(refused.value)
    assert "planted" not in str(refused.value)
