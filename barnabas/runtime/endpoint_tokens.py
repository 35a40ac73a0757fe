"""EndpointTokens: cached tokens of an OAuth token endpoint, renewed before their end (KIP-768)."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from barnabas.ports import Clock, Rng
from barnabas.protocol.oauth import (
    TokenNotGiven,
    TokenRequest,
    TokenTimes,
    assertion_request,
    bearer_request,
    endpoint_refusal,
    renew_at_ms,
    secret_request,
    token_in,
    token_times,
)
from barnabas.protocol.oauth_settings import Assertion, OAuthInvalid, OAuthSettings
from barnabas.runtime.clock import SystemClock
from barnabas.runtime.offload import in_own_thread
from barnabas.runtime.randomness import SystemRng
from barnabas.runtime.tls_errors import explained
from barnabas.runtime.token_endpoint import TokenCall, endpoint_tls

RETRY_MS: Final = 10_000  # as in Kafka, after a renewal that failed; less before the end of the token
RENEWAL_MS_MAX: Final = 5_000  # that a login waits for the next token while the former one is valid
_SHARED_MAX: Final = 16  # settings in one process; more are those of former queries
_shared: dict[tuple[OAuthSettings, tuple[tuple[str, str], ...]], EndpointTokens] = {}
_FILE_BYTES_MAX: Final = 1024 * 1024


class EndpointTokens:
    """Tokens of one endpoint; logins share a token until its renewal is due (`sasl.login.refresh.*`), and one request.

    If the endpoint does not answer within RENEWAL_MS_MAX, logins get the former token while it is valid; the next
    attempt follows after RETRY_MS. A rejected token is replaced, at most once in RETRY_MS: a broker may reject every
    token. A pickled provider becomes this process's one with the same settings, so Spark's tasks in a process share a
    token.

    Args:
        extensions: SASL extensions of each login.

    Raises:
        OAuthInvalid: the TLS settings are unusable.
    """

    def __init__(
        self,
        settings: OAuthSettings,
        extensions: Mapping[str, str],
        clock: Clock | None = None,
        rng: Rng | None = None,
    ) -> None:
        self._settings = settings
        self._extensions = extensions
        self._clock = clock or SystemClock()
        self._rng = rng or SystemRng()
        if settings.tls:
            endpoint_tls(settings.url, dict(settings.tls))  # to find mistakes early
        self._token = ""
        self._times = TokenTimes(None, 0)
        self._renew_at_ms = 0
        self._replace_at_ms = 0  # not earlier because of a refusal
        self._failure: tuple[int, TokenNotGiven] = (0, TokenNotGiven(""))  # the last one, with its number
        self._asking: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"EndpointTokens({self._settings.url})"

    def __eq__(self, other: object) -> bool:
        mine = self._settings, self._extensions
        return isinstance(other, EndpointTokens) and mine == (other._settings, other._extensions)

    def __hash__(self) -> int:
        return hash(self._settings)

    def __reduce__(self) -> tuple[Callable[..., EndpointTokens], tuple[OAuthSettings, Mapping[str, str]]]:
        return tokens_of_process, (self._settings, self._extensions)  # other processes get their own tokens

    @property
    def timeout_ms(self) -> int:
        """Upper bound of the duration of `token`."""
        settings = self._settings
        return 2 * (settings.connect_timeout_ms + settings.read_timeout_ms) + settings.retry_ms_max

    def extensions(self) -> Mapping[str, str]:
        return self._extensions

    async def token(self) -> str:
        """A valid token. Raises TokenNotGiven."""
        failures = self._failure[0]
        if not self._due():
            return self._token
        async with self._lock():
            if not self._due():
                return self._token
            if self._failure[0] != failures:  # of the request that this login has waited for
                raise self._failure[1]
            rest_ms = self._times.expires_ms - self._clock.now_ms()
            try:
                if rest_ms > 0:
                    async with asyncio.timeout(min(RENEWAL_MS_MAX, rest_ms // 2) / 1_000):
                        await self._renew(repeat_ms=0)
                else:
                    await self._renew(repeat_ms=self._settings.retry_ms_max)
            except (TokenNotGiven, TimeoutError) as error:
                if rest_ms <= 0 and isinstance(error, TokenNotGiven):
                    self._failure = failures + 1, error
                    raise
                self._renew_at_ms = self._clock.now_ms() + min(RETRY_MS, rest_ms // 2)
            return self._token

    def token_refused(self, token: str) -> None:
        """A broker has rejected the token: it is not used again."""
        now_ms = self._clock.now_ms()
        if token == self._token and now_ms >= self._replace_at_ms:
            self._times = TokenTimes(None, 0)
            self._replace_at_ms = now_ms + RETRY_MS

    def _due(self) -> bool:
        now_ms = self._clock.now_ms()
        return now_ms >= self._renew_at_ms or now_ms >= self._times.expires_ms

    def _lock(self) -> asyncio.Lock:
        return self._asking.setdefault(asyncio.get_running_loop(), asyncio.Lock())

    async def _renew(self, *, repeat_ms: int) -> None:
        settings = self._settings
        token = await self._repeated(repeat_ms)
        times = token_times(token, settings.sub_claim)
        now_ms = self._clock.now_ms()
        if times.expires_ms <= now_ms:
            raise TokenNotGiven("the token endpoint gave a token that has expired: compare the clocks of both machines")
        self._token, self._times = token, times
        self._renew_at_ms = renew_at_ms(
            times,
            now_ms,
            share=settings.window_factor + settings.window_jitter * self._rng.random(),
            min_period_ms=settings.min_period_s * 1_000,
            buffer_ms=settings.buffer_s * 1_000,
        )

    async def _repeated(self, repeat_ms: int) -> str:
        ends_ms = self._clock.monotonic_ms() + repeat_ms
        pause_ms = self._settings.retry_ms
        while True:
            try:
                return await self._asked()
            except TokenNotGiven as error:
                rest_ms = ends_ms - self._clock.monotonic_ms()
                if not error.retriable or min(pause_ms, rest_ms) <= 0:
                    raise
                await asyncio.sleep(min(pause_ms, rest_ms) / 1_000)
                pause_ms *= 2

    async def _asked(self) -> str:
        settings = self._settings
        request = await self._request()
        call = TokenCall(
            settings.url,
            request.headers,
            request.body,
            connect_timeout_ms=settings.connect_timeout_ms,
            read_timeout_ms=settings.read_timeout_ms,
            tls=partial(endpoint_tls, settings.url, dict(settings.tls)),
        )
        limit_ms = settings.connect_timeout_ms + settings.read_timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1_000):
                await in_own_thread(call.run)
        except OAuthInvalid as error:
            raise TokenNotGiven(str(error), retriable=True) from None
        except (OSError, HTTPException) as error:  # also TimeoutError
            raise self._not_reached(error, limit_ms) from None
        finally:
            call.abort()
        if call.status not in (200, 201):
            raise endpoint_refusal(call.status, call.answer, request.secrets)
        return token_in(call.answer)

    async def _request(self) -> TokenRequest:
        settings = self._settings
        if settings.assertion is None:
            return secret_request(
                settings.client_id, settings.client_secret, settings.scope, url_encode=settings.url_encode
            )
        made: list[str] = []
        make = partial(assertion_text, settings.assertion, self._clock.now_ms() // 1_000, self._rng.uuid().hex())
        await in_own_thread(lambda: made.append(make()))
        if settings.bearer:
            return bearer_request(made[0], settings.scope)
        return assertion_request(made[0], settings.client_id, settings.scope)

    def _not_reached(self, error: Exception, limit_ms: int) -> TokenNotGiven:
        where = f"the token endpoint {self._settings.url}"
        if isinstance(error, ssl.SSLCertVerificationError):
            remedy = "options ssl.truststore.type and ssl.truststore.location of sasl.jaas.config name the authorities to trust"
            return TokenNotGiven(f"{where} cannot be trusted: {explained(error)}; {remedy}")
        if isinstance(error, ssl.SSLError):
            return TokenNotGiven(f"the TLS connection to {where} failed: {explained(error)}", retriable=True)
        if isinstance(error, TimeoutError):
            return TokenNotGiven(
                f"{where} did not answer within {limit_ms} ms (sasl.login.connect.timeout.ms, sasl.login.read.timeout.ms)",
                retriable=True,
            )
        said = f": {error.strerror or error}" if isinstance(error, OSError) else f": {type(error).__name__}"
        return TokenNotGiven(f"{where} cannot be reached{said}", retriable=True)


def tokens_of_process(settings: OAuthSettings, extensions: Mapping[str, str]) -> EndpointTokens:
    key = settings, tuple(sorted(extensions.items()))
    found = _shared.get(key)
    if found is None:
        if len(_shared) >= _SHARED_MAX:
            _shared.clear()
        found = _shared[key] = EndpointTokens(settings, extensions)
    return found


def assertion_text(assertion: Assertion, now_s: int, new_id: str) -> str:
    """The assertion, with claims of the settings, then of the template, then iat, exp, nbf and jti, as in Kafka.

    `now_s` is in seconds since 1970, `new_id` is for jti. Raises TokenNotGiven for an unusable file.
    """
    if assertion.file is not None:
        text = _content("file", assertion.file).decode(errors="replace").strip()
        if text.count(".") != 2:
            raise TokenNotGiven(
                "sasl.oauthbearer.assertion.file contains no assertion, which has three parts with dots between"
            )
        return text
    header: dict[str, Any] = {}
    claims: dict[str, Any] = dict(assertion.claims)
    if assertion.template_file is not None:
        template = _template(assertion.template_file)
        header |= template.get("header") or {}
        claims |= template.get("payload") or {}
    claims |= {"iat": now_s, "exp": now_s + assertion.expires_s, "nbf": now_s - assertion.not_before_s}
    if assertion.has_id:
        claims["jti"] = new_id
    return _signed(assertion, {**header, "alg": assertion.algorithm, "typ": "JWT"}, claims)


def _signed(assertion: Assertion, header: dict[str, Any], claims: dict[str, Any]) -> str:
    try:
        from joserfc import jwt
        from joserfc.jwk import ECKey, RSAKey
    except ImportError:
        raise TokenNotGiven("assertions need pip install 'barnabas[security]'") from None
    kind = RSAKey if assertion.algorithm == "RS256" else ECKey
    pem = _content("private.key.file", assertion.key_file)
    try:
        key = kind.import_key(pem, password=assertion.passphrase)
        return jwt.encode(header, claims, key, algorithms=[assertion.algorithm])
    except Exception as error:  # the libraries below document none; their texts may quote the key
        needs = "RSA key" if assertion.algorithm == "RS256" else "EC key of the curve P-256"
        raise TokenNotGiven(
            f"sasl.oauthbearer.assertion.private.key.file cannot be used: it must be an {needs} in PEM, and "
            f"sasl.oauthbearer.assertion.private.key.passphrase must decrypt it ({type(error).__name__})"
        ) from None


def _template(path: str) -> dict[str, Any]:
    try:
        found = json.loads(_content("template.file", path))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(found.get(n) or {}, dict) for n in ("header", "payload")):
        raise TokenNotGiven(
            "sasl.oauthbearer.assertion.template.file is no JSON object with the objects header and payload"
        )
    return found


def _content(name: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise TokenNotGiven(f"sasl.oauthbearer.assertion.{name} cannot be read: {error.strerror or error}") from None
