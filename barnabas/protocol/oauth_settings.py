"""OAuthSettings: Kafka's OAUTHBEARER keys of clients and inter-broker connections (KIP-768, KIP-1139, KIP-1258).
No error and no `repr` contains a secret. A key that is set takes effect or is rejected.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from barnabas.errors import BarnabasError

ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
_ALLOWED_FILES: Final = "org.apache.kafka.sasl.oauthbearer.allowed.files"
_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"
_SCOPE: Final = "sasl.oauthbearer.scope"
_ASSERTION: Final = "sasl.oauthbearer.assertion."
_ASSERTION_FILE: Final = "sasl.oauthbearer.assertion.file"
_KEY_FILE: Final = "sasl.oauthbearer.assertion.private.key.file"
_TEMPLATE_FILE: Final = "sasl.oauthbearer.assertion.template.file"
_ISSUER: Final = "sasl.oauthbearer.assertion.claim.iss"
_HANDLER: Final = "sasl.login.callback.handler.class"
_RETRIEVER: Final = "sasl.oauthbearer.jwt.retriever.class"
_VALIDATOR: Final = "sasl.oauthbearer.jwt.validator.class"
_SUBJECT: Final = "unsecuredLoginStringClaim_sub"
_EXTENSION: Final = "extension_"
_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
_UNSECURED_HANDLER: Final = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
_HANDLERS: Final = (
    f"{_PACKAGE}.OAuthBearerLoginCallbackHandler",
    f"{_PACKAGE}.secured.OAuthBearerLoginCallbackHandler",
    _UNSECURED_HANDLER,
)
_FILE, _CREDENTIALS, _BEARER = (
    f"{_PACKAGE}.{name}" for name in ("FileJwtRetriever", "ClientCredentialsJwtRetriever", "JwtBearerJwtRetriever")
)
_RETRIEVERS: Final = (f"{_PACKAGE}.DefaultJwtRetriever", _FILE, _CREDENTIALS, _BEARER)
_VALIDATORS: Final = (f"{_PACKAGE}.DefaultJwtValidator", f"{_PACKAGE}.ClientJwtValidator")
_ALGORITHMS: Final = ("RS256", "ES256")

_ASSERTION_KEYS: Final = tuple(
    f"{_ASSERTION}{name}"
    for name in (
        *("file", "private.key.file", "private.key.passphrase", "template.file", "algorithm"),
        *("claim.aud", "claim.iss", "claim.sub", "claim.exp.seconds", "claim.nbf.seconds", "claim.jti.include"),
    )
)
_FIRST_PAUSE: Final = "sasl.login.retry.backoff.ms"
_LAST_PAUSE: Final = "sasl.login.retry.backoff.max.ms"
LOGIN_KEYS: Final = (
    *(_URL, _CLIENT_ID, _SECRET, _SCOPE, _HANDLER, _RETRIEVER, _VALIDATOR),
    *("sasl.oauthbearer.header.urlencode", "sasl.oauthbearer.sub.claim.name"),
    *("sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms", _FIRST_PAUSE, _LAST_PAUSE),
    *("sasl.login.refresh.min.period.seconds", "sasl.login.refresh.buffer.seconds"),
    *("sasl.login.refresh.window.factor", "sasl.login.refresh.window.jitter"),
    *_ASSERTION_KEYS,
)

Value = Callable[[str], Any]  # the value of a key, a text or already parsed; None or empty: it is not set


class OAuthInvalid(BarnabasError):
    """A key is missing or wrong. The text names it and what to write."""


@dataclass(frozen=True)
class Assertion:
    """Source of an assertion: a file, or a signature here.

    Attributes:
        file: contains the whole assertion; then nothing else applies.
        key_file: the private key in PEM.
        template_file: JSON with additional `header` and `payload`.
        claims: `aud`, `iss`, `sub`.
    """

    file: str | None = None
    key_file: str = ""
    passphrase: str | None = field(default=None, repr=False)
    template_file: str | None = None
    algorithm: str = "RS256"
    claims: tuple[tuple[str, str], ...] = ()
    expires_s: int = 300
    not_before_s: int = 60
    has_id: bool = False


@dataclass(frozen=True)
class OAuthSettings:
    """A login with tokens of an endpoint.

    Attributes:
        client_id, client_secret: for client_credentials; empty with an assertion, whose client id is optional.
        assertion: instead of the secret.
        bearer: whether the assertion is the authorization (jwt-bearer), not the client's login.
        read_timeout_ms: for the whole response.
        retry_ms, retry_ms_max: first backoff, and total time of retries.
        window_factor, window_jitter, min_period_s, buffer_s: when a token is renewed.
        tls: options `ssl.…` of the JAAS text.
    """

    url: str
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str | None = None
    url_encode: bool = False
    assertion: Assertion | None = None
    bearer: bool = False
    sub_claim: str = "sub"
    connect_timeout_ms: int = 10_000
    read_timeout_ms: int = 10_000
    retry_ms: int = 100
    retry_ms_max: int = 10_000
    min_period_s: int = 60
    buffer_s: int = 300
    window_factor: float = 0.8
    window_jitter: float = 0.05
    tls: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class FileLogin:
    """A login with a token file."""

    path: str


@dataclass(frozen=True)
class UnsecuredLogin:
    """A login with unsigned tokens."""

    subject: str


def login_settings(
    value: Value, options: Mapping[str, str], environment: Mapping[str, str]
) -> OAuthSettings | FileLogin | UnsecuredLogin:
    """Login settings from keys and the `options` of the JAAS text; keys win, as in Kafka. Raises OAuthInvalid."""
    handler = _one_of(_HANDLER, value(_HANDLER), _HANDLERS)
    retriever = _one_of(_RETRIEVER, value(_RETRIEVER), _RETRIEVERS)
    _one_of(_VALIDATOR, value(_VALIDATOR), _VALIDATORS)
    url, subject = _text(value(_URL)), options.get(_SUBJECT)
    if url is None or handler == _UNSECURED_HANDLER:
        if url is not None:
            raise OAuthInvalid(
                f"{_HANDLER} names tokens without a signature although {_URL} is set: remove one of them"
            )
        if not subject:
            raise OAuthInvalid(
                f"sasl.mechanism=OAUTHBEARER needs {_URL}=https://HOST/PATH with {_CLIENT_ID} and {_SECRET}, or "
                f"{_URL}=file:///PATH, a file with a token, or {_SUBJECT} in sasl.jaas.config for tokens without a signature"
            )
        return UnsecuredLogin(subject)
    check_allowed(ALLOWED_URLS, _URL, url, environment)
    scheme = url.partition(":")[0].lower()
    if scheme == "file":
        if retriever in (_CREDENTIALS, _BEARER):
            raise OAuthInvalid(f"{_RETRIEVER}={retriever} needs {_URL}=https://HOST/PATH, not a file")
        return FileLogin(url.removeprefix("file://").removeprefix("file:"))
    if retriever == _FILE:
        raise OAuthInvalid(f"{_RETRIEVER}={_FILE} needs {_URL}=file:///PATH")
    _check_url(_URL, url)
    return _endpoint(value, options, environment, url, bearer=retriever == _BEARER)


def extensions_of(options: Mapping[str, str]) -> dict[str, str]:
    """SASL extensions (KIP-342) among the JAAS options."""
    return {name.removeprefix(_EXTENSION): text for name, text in options.items() if name.startswith(_EXTENSION)}


def check_allowed(listed: str, key: str, resource: str, environment: Mapping[str, str]) -> None:
    """Rejects what the `-D` allow lists in KAFKA_OPTS exclude (without a list, nothing). Raises OAuthInvalid."""
    try:
        words = shlex.split(environment.get("KAFKA_OPTS", ""))
    except ValueError:
        words = environment.get("KAFKA_OPTS", "").split()
    lists = [word.partition("=")[2] for word in words if word.startswith(f"-D{listed}=")]
    if lists and resource not in (each.strip() for each in lists[-1].split(",")):
        raise OAuthInvalid(
            f"{key} is not allowed: add its value to -D{listed}=… in the environment variable KAFKA_OPTS"
        )


def _endpoint(
    value: Value, options: Mapping[str, str], environment: Mapping[str, str], url: str, *, bearer: bool
) -> OAuthSettings:
    client_id = _text(value(_CLIENT_ID)) or options.get("clientId", "").strip()
    secret = _text(value(_SECRET)) or options.get("clientSecret", "").strip()
    uses_assertion = bearer or any(_text(value(key)) for key in (_ISSUER, _ASSERTION_FILE))
    if not uses_assertion:
        given = next((key for key in _ASSERTION_KEYS if _is_changed(value, key)), None)
        if given is not None:
            raise OAuthInvalid(
                f"{given} has no effect without {_ASSERTION}claim.iss or {_ASSERTION}file: set one or remove it"
            )
        for key, text in ((_CLIENT_ID, client_id), (_SECRET, secret)):
            if not text:
                raise OAuthInvalid(f"{_URL} needs {key}: set it to what the identity provider gave to this client")

    def number(key: str, default: float, low: float, high: float) -> Any:
        return _number(key, value(key), default, low, high)

    numbers: dict[str, Any] = {
        "connect_timeout_ms": number("sasl.login.connect.timeout.ms", 10_000, 1, 600_000),
        "read_timeout_ms": number("sasl.login.read.timeout.ms", 10_000, 1, 600_000),
        "retry_ms": number(_FIRST_PAUSE, 100, 0, 600_000),
        "retry_ms_max": number(_LAST_PAUSE, 10_000, 0, 600_000),
        "min_period_s": number("sasl.login.refresh.min.period.seconds", 60, 0, 900),
        "buffer_s": number("sasl.login.refresh.buffer.seconds", 300, 0, 3_600),
        "window_factor": number("sasl.login.refresh.window.factor", 0.8, 0.5, 1.0),
        "window_jitter": number("sasl.login.refresh.window.jitter", 0.05, 0.0, 0.25),
    }
    if numbers["retry_ms"] > numbers["retry_ms_max"]:
        raise OAuthInvalid(f"{_FIRST_PAUSE} is above {_LAST_PAUSE}: lower the first one")
    return OAuthSettings(
        url=url,
        client_id=client_id,
        client_secret="" if uses_assertion else secret,
        scope=_text(value(_SCOPE)) or options.get("scope", "").strip() or None,
        url_encode=_flag("sasl.oauthbearer.header.urlencode", value("sasl.oauthbearer.header.urlencode")),
        assertion=_assertion(value, environment) if uses_assertion else None,
        bearer=bearer,
        sub_claim=_text(value("sasl.oauthbearer.sub.claim.name")) or "sub",
        tls=tuple(sorted((name, text) for name, text in options.items() if name.startswith("ssl."))),
        **numbers,
    )


def _assertion(value: Value, environment: Mapping[str, str]) -> Assertion:
    def file_of(key: str) -> str | None:
        path = _text(value(key))
        if path is not None:
            check_allowed(_ALLOWED_FILES, key, path, environment)
        return path

    def number(key: str, default: int, low: int, high: int) -> int:
        found: int = _number(key, value(key), default, low, high)
        return found

    file, key_file = file_of(_ASSERTION_FILE), file_of(_KEY_FILE)
    if file is not None:
        return Assertion(file)
    if key_file is None:
        raise OAuthInvalid(
            f"an assertion needs {_ASSERTION}private.key.file, a private key in PEM, or {_ASSERTION}file, the assertion itself"
        )
    algorithm = (_text(value("sasl.oauthbearer.assertion.algorithm")) or "RS256").upper()
    if algorithm not in _ALGORITHMS:
        raise OAuthInvalid(f"{_ASSERTION}algorithm={algorithm[:20]} is none of {', '.join(_ALGORITHMS)}")
    claims = (
        ("aud", _text(value("sasl.oauthbearer.assertion.claim.aud"))),
        ("iss", _text(value(_ISSUER))),
        ("sub", _text(value("sasl.oauthbearer.assertion.claim.sub"))),
    )
    return Assertion(
        key_file=key_file,
        passphrase=_text(value("sasl.oauthbearer.assertion.private.key.passphrase")),
        template_file=file_of(_TEMPLATE_FILE),
        algorithm=algorithm,
        claims=tuple((name, text) for name, text in claims if text),
        expires_s=number("sasl.oauthbearer.assertion.claim.exp.seconds", 300, 0, 86_400),
        not_before_s=number("sasl.oauthbearer.assertion.claim.nbf.seconds", 60, 0, 3_600),
        has_id=_flag(
            "sasl.oauthbearer.assertion.claim.jti.include", value("sasl.oauthbearer.assertion.claim.jti.include")
        ),
    )


def _check_url(key: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        fits = False
    if not fits or not url.isascii() or not url.isprintable() or " " in url:
        raise OAuthInvalid(f"{key} is no URL of an endpoint: write https://HOST/PATH, http://HOST/PATH or file:///PATH")
    if parts.username is not None or parts.password is not None:
        raise OAuthInvalid(f"{key} contains a login: set {_CLIENT_ID} and {_SECRET} instead")


def _text(found: object) -> str | None:
    return None if found is None or isinstance(found, bool) else str(found).strip() or None


def _flag(key: str, found: object) -> bool:
    text = "" if found is None else str(found).strip().lower()
    if text not in ("", "true", "false"):
        raise OAuthInvalid(f"{key} is neither true nor false")
    return text == "true"


def _number(key: str, found: object, default: float, low: float, high: float) -> Any:
    text = _text(found)
    if text is None:
        return default
    try:
        number = type(default)(text)
    except ValueError:
        number = -1
    if not low <= number <= high:
        raise OAuthInvalid(f"{key}={text[:40]} is no number from {low} to {high}")
    return number


def _one_of(key: str, found: object, known: tuple[str, ...]) -> str | None:
    text = _text(found)
    if text is not None and text not in known:
        raise OAuthInvalid(f"{key}={text[:200]}: Java classes are not loaded; known are {', '.join(known)}")
    return text


def _is_changed(value: Value, key: str) -> bool:
    found = value(key)
    defaults = {
        "algorithm": "RS256",
        "claim.exp.seconds": "300",
        "claim.nbf.seconds": "60",
        "claim.jti.include": "false",
    }
    text = "" if found is None else str(found).strip()
    return bool(text) and text.lower() != defaults.get(key.removeprefix(_ASSERTION), "").lower()
