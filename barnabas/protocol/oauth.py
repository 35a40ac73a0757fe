"""OAuth requests for tokens and what their answers mean, without I/O: client_credentials, client assertions, jwt-bearer.

Invariants: no error text contains a secret, an assertion or a token. A token is not verified here: the broker does that.
Follows RFC 6749 4.4 (client_credentials), RFC 7523 (assertions), KIP-768, KIP-1139 and KIP-1258. The bytes of requests are those of
Kafka 4.3.1, which writes a scope as it is configured unless `sasl.oauthbearer.header.urlencode` is true.
"""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote_plus

from barnabas.errors import BarnabasError

ANSWER_BYTES_MAX: Final = 512 * 1024  # a token has at most 256 KiB
_SHOWN_MAX: Final = 200  # characters of the server's own explanation
_FORM: Final = {
    "Accept": "application/json",
    "Cache-Control": "no-cache",
    "Content-Type": "application/x-www-form-urlencoded",
}
# As in Kafka: the same request would be refused again.
_FINAL_STATUSES: Final = frozenset(
    (400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 501, 505)
)
_REMEDIES: Final = {
    401: "check sasl.oauthbearer.client.credentials.client.id and .client.secret",
    403: "the client may not have such a token: check sasl.oauthbearer.scope",
    404: "check sasl.oauthbearer.token.endpoint.url",
    405: "check sasl.oauthbearer.token.endpoint.url",
}


class TokenNotGiven(BarnabasError):
    """A token endpoint gave no token. The text says why and what to do, and contains no secret.

    Attributes:
        retriable: whether the same request may succeed later.
    """

    def __init__(self, text: str, *, retriable: bool = False) -> None:
        self.retriable = retriable
        super().__init__(text)


class TokenRequest(NamedTuple):
    """What is sent.

    Attributes:
        secrets: the secret parts of it, which no error may contain.
    """

    headers: Mapping[str, str]
    body: str
    secrets: tuple[str, ...]


class TokenTimes(NamedTuple):
    """When a token is valid, in milliseconds since 1970.

    Attributes:
        issued_ms: None if the token does not say it.
    """

    issued_ms: int | None
    expires_ms: int


def secret_request(client_id: str, secret: str, scope: str | None, *, url_encode: bool) -> TokenRequest:
    """Asks by client id and secret (RFC 6749 4.4)."""
    sent = (client_id, secret)
    if url_encode:
        sent, scope = (_encoded(client_id), _encoded(secret)), scope and _encoded(scope)
    login = b64encode(":".join(sent).encode()).decode()
    body = "grant_type=client_credentials" + (f"&scope={scope}" if scope else "")
    return TokenRequest({**_FORM, "Authorization": f"Basic {login}"}, body, (secret, sent[1], login))


def assertion_request(assertion: str, client_id: str | None, scope: str | None) -> TokenRequest:
    """Asks by an assertion about the client instead of its secret (RFC 7523 2.2)."""
    kind = _encoded("urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
    body = f"client_assertion_type={kind}&client_assertion={_encoded(assertion)}&grant_type=client_credentials"
    body += f"&client_id={_encoded(client_id)}" if client_id else ""
    return TokenRequest(_FORM, body + (f"&scope={_encoded(scope)}" if scope else ""), (assertion,))


def bearer_request(assertion: str, scope: str | None) -> TokenRequest:
    """Asks by an assertion as authorization (RFC 7523 2.1)."""
    body = f"grant_type={_encoded('urn:ietf:params:oauth:grant-type:jwt-bearer')}&assertion={_encoded(assertion)}"
    return TokenRequest(_FORM, body + (f"&scope={_encoded(scope)}" if scope else ""), (assertion,))


def endpoint_refusal(status: int, answer: bytes, secrets: tuple[str, ...]) -> TokenNotGiven:
    """What an answer with an error status means.

    Args:
        secrets: texts that the error must not contain, even if the server repeats them.
    """
    said = _explanation(answer, secrets)
    text = f"the token endpoint answered with status {status}{f' ({said})' if said else ''}"
    if 300 <= status < 400:
        text += ", a redirection, which is not followed: write the final sasl.oauthbearer.token.endpoint.url"
        return TokenNotGiven(text)
    remedy = _REMEDIES.get(status)
    return TokenNotGiven(f"{text}{f': {remedy}' if remedy else ''}", retriable=status not in _FINAL_STATUSES)


def token_in(answer: bytes) -> str:
    """The token of a successful answer: `access_token`, else `id_token`. Raises TokenNotGiven."""
    if len(answer) > ANSWER_BYTES_MAX:
        raise TokenNotGiven(f"the token endpoint's answer has more than {ANSWER_BYTES_MAX} bytes")
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        raise TokenNotGiven(
            "the token endpoint's answer is no JSON: check sasl.oauthbearer.token.endpoint.url"
        ) from None
    for name in ("access_token", "id_token"):
        token = found.get(name) if isinstance(found, dict) else None
        if isinstance(token, str) and token.strip():
            return token.strip()
    raise TokenNotGiven("the token endpoint's answer has neither access_token nor id_token")


def token_times(token: str, sub_claim: str = "sub") -> TokenTimes:
    """When a token is valid.

    Raises:
        TokenNotGiven: it is no JWT, or it lacks a claim that Kafka's clients need.
    """
    parts = token.split(".")
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))) if len(parts) == 3 else None
    except (ValueError, RecursionError):
        claims = None
    if not isinstance(claims, dict) or not parts[0]:
        raise TokenNotGiven("the token endpoint gave a token that is no JWT, which brokers would refuse")
    if not isinstance(claims.get(sub_claim), str) or not claims[sub_claim].strip():
        raise TokenNotGiven(
            f"the token names no client: it has no claim {sub_claim}; set sasl.oauthbearer.sub.claim.name"
        )
    expires_ms = _ms(claims.get("exp"))
    if expires_ms is None:
        raise TokenNotGiven("the token has no valid claim exp, so brokers would refuse it")
    return TokenTimes(_ms(claims.get("iat")), expires_ms)


def renew_at_ms(times: TokenTimes, now_ms: int, *, share: float, min_period_ms: int, buffer_ms: int) -> int:
    """When a token that was got now is renewed, as Kafka decides by `sasl.login.refresh.*`.

    Args:
        share: of the token's time: the window factor and a part of the jitter.
        min_period_ms: it is not renewed earlier after it was got.
        buffer_ms: it is not renewed later before its end.
    """
    if now_ms + min_period_ms + buffer_ms > times.expires_ms:  # no room for both: they are ignored
        return now_ms + int((times.expires_ms - now_ms) * share)
    begins_ms = now_ms if times.issued_ms is None else times.issued_ms
    at_ms = begins_ms + int((times.expires_ms - begins_ms) * share)
    return max(min(at_ms, times.expires_ms - buffer_ms), now_ms + min_period_ms)


def _explanation(answer: bytes, secrets: tuple[str, ...]) -> str:
    """The server's own words in an error answer, without secrets; empty if it has none."""
    try:
        found = json.loads(answer[:ANSWER_BYTES_MAX])
    except (ValueError, RecursionError):
        return ""
    if not isinstance(found, dict):
        return ""
    words = [found.get(name) for name in ("error", "error_description", "errorCode", "errorSummary")]
    text = " - ".join(word for word in words if isinstance(word, str))
    for secret in filter(None, secrets):
        text = text.replace(secret, "…")
    return "".join(each if each.isprintable() else " " for each in text)[:_SHOWN_MAX]


def _ms(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e11:
        return None
    return int(value * 1_000)


def _encoded(text: str) -> str:
    """As Java's URLEncoder."""
    return quote_plus(text, safe="*").replace("~", "%7E")
