"""Requests for OAuth tokens, their answers, and when a token is renewed."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from barnabas.protocol.oauth import (
    ANSWER_BYTES_MAX,
    TokenNotGiven,
    TokenTimes,
    assertion_request,
    bearer_request,
    endpoint_refusal,
    renew_at_ms,
    secret_request,
    token_in,
    token_times,
)

SECRET = "planted-client-secret"


def jwt_of(claims: Any) -> str:
    parts = [
        base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in ({"alg": "x"}, claims)
    ]
    return ".".join([*parts, "signature"])


def test_requests_are_those_of_kafka() -> None:
    """The bodies and logins are recorded from Kafka 4.3.1 (tests/oracle/test_oauth_requests_diff.py compares all)."""
    plain = secret_request("ca rol:ü", SECRET, "a b&c+ü", url_encode=False)
    assert plain.body == "grant_type=client_credentials&scope=a b&c+ü"
    assert plain.headers["Authorization"] == "Basic Y2Egcm9sOsO8OnBsYW50ZWQtY2xpZW50LXNlY3JldA=="
    encoded = secret_request("ca rol:ü", SECRET, "a b&c+ü", url_encode=True)
    assert encoded.body == "grant_type=client_credentials&scope=a+b%26c%2B%C3%BC"
    assert encoded.headers["Authorization"] == "Basic Y2Ercm9sJTNBJUMzJUJDOnBsYW50ZWQtY2xpZW50LXNlY3JldA=="
    assert secret_request("c", SECRET, None, url_encode=False).body == "grant_type=client_credentials"
    assertion = (
        "client_assertion_type=urn%3Aietf%3Aparams%3Aoauth%3Aclient-assertion-type%3Ajwt-bearer&client_assertion=a.b.c"
    )
    assert assertion_request("a.b.c", None, None).body == f"{assertion}&grant_type=client_credentials"
    assert (
        assertion_request("a.b.c", "ü", "s").body
        == f"{assertion}&grant_type=client_credentials&client_id=%C3%BC&scope=s"
    )
    bearer = "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=a.b.c"
    assert bearer_request("a.b.c", "a b~*").body == f"{bearer}&scope=a+b%7E*"


def test_answers() -> None:
    assert token_in(b'{"access_token": " a.b.c ", "id_token": "x"}') == "a.b.c"
    assert token_in(b'{"access_token": "", "id_token": "d.e.f"}') == "d.e.f"
    for answer, why in (
        (b"no", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"[]", "neither access_token nor id_token"),
        (b'{"access_token": 1}', "neither"),
        (b" " * (ANSWER_BYTES_MAX + 1), "more than"),
    ):
        with pytest.raises(TokenNotGiven, match=why) as refused:
            token_in(answer)
        assert not refused.value.retriable


def test_the_times_of_a_token() -> None:
    assert token_times(jwt_of({"sub": "a", "exp": 10.5, "iat": 2})) == (2_000, 10_500)
    assert token_times(jwt_of({"name": "a", "exp": 10}), "name") == (None, 10_000)
    for token, why in (
        ("abc", "is no JWT"),
        ("a.!.c", "is no JWT"),
        (jwt_of([]), "is no JWT"),
        (jwt_of({"exp": 1}), "no claim sub"),
        (jwt_of({"sub": " ", "exp": 1}), "no claim sub"),
        (jwt_of({"sub": "a"}), "no valid claim exp"),
        (jwt_of({"sub": "a", "exp": True}), "no valid claim exp"),
        (jwt_of({"sub": "a", "exp": 1e300}), "no valid claim exp"),
    ):
        with pytest.raises(TokenNotGiven, match=why):
            token_times(token)


@pytest.mark.parametrize(
    ("status", "retriable", "says"),
    [
        (401, False, r"status 401 \(invalid_client - bad …\): check sasl.oauthbearer.client.credentials.client.id"),
        (503, True, "status 503"),
        (429, True, "status 429"),
        (302, False, "a redirection, which is not followed"),
    ],
)
def test_refusals_say_what_to_do_and_contain_no_secret(status: int, retriable: bool, says: str) -> None:
    answer = json.dumps({"error": "invalid_client", "error_description": f"bad {SECRET}"}).encode()
    error = endpoint_refusal(status, answer, (SECRET, ""))
    assert error.retriable is retriable
    assert SECRET not in str(error)
    with pytest.raises(TokenNotGiven, match=says):
        raise error


def test_the_servers_words_are_short_and_printable() -> None:
    said = str(
        endpoint_refusal(500, json.dumps({"errorCode": "a\n\x1b[31m", "errorSummary": "b" * 10_000}).encode(), ())
    )
    assert len(said) < 400
    assert said.isprintable()
    assert str(endpoint_refusal(500, b"<html>", ())) == "the token endpoint answered with status 500"


@pytest.mark.parametrize(
    ("times", "renewed"),
    [
        (TokenTimes(None, 1_100_000), 900_000),  # after 80 % of the 1,000 s that are left
        (TokenTimes(0, 1_100_000), 800_000 + 80_000),  # of the token's whole time
        (TokenTimes(None, 500_000), 100_000 + 320_000 - 120_000),  # the buffer before its end
        (TokenTimes(-1_000_000, 400_000), 160_000),  # the period after it was got
        (TokenTimes(0, 300_000), 100_000 + 160_000),  # no room for both
    ],
)
def test_renewal(times: TokenTimes, renewed: int) -> None:
    assert renew_at_ms(times, 100_000, share=0.8, min_period_ms=60_000, buffer_ms=200_000) == renewed
