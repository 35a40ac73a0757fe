"""OAuth token requests and responses, without I/O (RFC 6749 4.4, RFC 7523, KIP-768, KIP-1139, KIP-1258).
No error contains a secret, an assertion or a token. The broker verifies tokens, not this module.
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
# As in Kafka: not retriable.
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
    """A token endpoint gave no token. The text contains no secret. `retriable`: the same request may succeed later."""

    def __init__(self, text: str, *, retriable: bool = False) -> None:
        self.retriable = retriable
        super().__init__(text)


class TokenRequest(NamedTuple):
    """A request; `secrets` are its secret parts, which no error may contain."""

    headers: Mapping[str, str]
    body: str
    secrets: tuple[str, ...]


class TokenTimes(NamedTuple):
    """Validity of a token, in milliseconds since 1970; `issued_ms` None if unknown."""

    issued_ms: int | None
    expires_ms: int


def secret_request(client_id: str, secret: str, scope: str | None, *, url_encode: bool) -> TokenRequest:
    """Client id and secret (RFC 6749 4.4)."""
    sent = (client_id, secret)
    if url_encode:
        sent, scope = (_encoded(client_id), _encoded(secret)), scope and _encoded(scope)
    login = b64encode(":".join(sent).encode()).decode()
    body = "grant_type=client_credentials" + (f"&scope={scope}" if scope else "")
    return TokenRequest({**_FORM, "Authorization": f"Basic {login}"}, body, (secret, sent[1], login))


def assertion_request(assertion: str, client_id: str | None, scope: str | None) -> TokenRequest:
    """An assertion instead of the client's secret (RFC 7523 2.2)."""
    kind = _encoded("urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
    body = f"client_assertion_type={kind}&client_assertion={_encoded(assertion)}&grant_type=client_credentials"
    body += f"&client_id={_encoded(client_id)}" if client_id else ""
    return TokenRequest(_FORM, body + (f"&scope={_encoded(scope)}" if scope else ""), (assertion,))


def bearer_request(assertion: str, scope: str | None) -> TokenRequest:
    """An assertion as authorization (RFC 7523 2.1)."""
    body = f"grant_type={_encoded('urn:ietf:params:oauth:grant-type:jwt-bearer')}&assertion={_encoded(assertion)}"
    return TokenRequest(_FORM, body + (f"&scope={_encoded(scope)}" if scope else ""), (assertion,))


def endpoint_refusal(status: int, answer: bytes, secrets: tuple[str, ...]) -> TokenNotGiven:
    """The error for an HTTP error status, without `secrets` that the server may repeat."""
    said = _explanation(answer, secrets)
    text = f"the token endpoint answered with status {status}{f' ({said})' if said else ''}"
    if 300 <= status < 400:
        text += ", a redirection, which is not followed: write the final sasl.oauthbearer.token.endpoint.url"
        return TokenNotGiven(text)
    remedy = _REMEDIES.get(status)
    return TokenNotGiven(f"{text}{f': {remedy}' if remedy else ''}", retriable=status not in _FINAL_STATUSES)


def token_in(answer: bytes) -> str:
    """`access_token`, else `id_token`. Raises TokenNotGiven."""
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
    """Raises TokenNotGiven if `token` is no JWT or lacks a claim that Kafka's clients need."""
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
    """When to renew a token that was received now, as Kafka decides by `sasl.login.refresh.*`.

    Args:
        share: of the token's lifetime: the window factor plus a part of the jitter.
        min_period_ms: earliest renewal after now.
        buffer_ms: latest renewal before its end.
    """
    if now_ms + min_period_ms + buffer_ms > times.expires_ms:  # no room for both: they are ignored
        return now_ms + int((times.expires_ms - now_ms) * share)
    begins_ms = now_ms if times.issued_ms is None else times.issued_ms
    at_ms = begins_ms + int((times.expires_ms - begins_ms) * share)
    return max(min(at_ms, times.expires_ms - buffer_ms), now_ms + min_period_ms)


def _explanation(answer: bytes, secrets: tuple[str, ...]) -> str:
    """The server's error text, without secrets; may be empty."""
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
    return quote_plus(text, safe="*").replace("~", "%7E")
