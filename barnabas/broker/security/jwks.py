"""SigningKeys: keys of OAuth tokens from a file or URL, renewed while the node runs (KIP-768).
An unreadable document keeps the former keys. Unusable keys are skipped, as in Kafka.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from typing import IO, TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from barnabas.broker.config.sasl_settings import JWKS_SCHEMES
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Offload
from barnabas.broker.scheduling.timers import Timer
from barnabas.errors import BarnabasError
from barnabas.loggers import logger
from barnabas.protocol.oauth_settings import OAuthInvalid
from barnabas.runtime.tls_errors import explained
from barnabas.runtime.token_endpoint import endpoint_tls

if TYPE_CHECKING:
    from http.client import HTTPMessage

    from joserfc.jwk import KeySet

log = logger("kafka.network.SocketServer")

DOCUMENT_BYTES_MAX: Final = 1024 * 1024
KEYS_MAX: Final = 1_000
CONNECT_S_MAX: Final = 10.0
READ_MS_MAX: Final = 20_000  # of the document, after its header
READ_BYTES: Final = 65_536  # at once


class UnusableKeys(BarnabasError):
    """A document without usable keys."""


class KeySource(NamedTuple):
    """Where keys are read.

    Attributes:
        url: file://, http:// or https://.
        tls: options `ssl.…` for https; the trust store is read with each document.
    """

    url: str
    tls: Mapping[str, str] = {}


class SigningKeys:
    """The keys of one URL.

    Args:
        refresh_ms: interval of renewals.
        backoff_ms, backoff_ms_max: after a failure.

    Attributes:
        keys: None before the first document was read.
    """

    def __init__(
        self,
        reactor: Reactor,
        offload: Offload,
        source: KeySource,
        refresh_ms: int,
        backoff_ms: int,
        backoff_ms_max: int,
    ) -> None:
        self.keys: KeySet | None = None
        self._reactor = reactor
        self._offload = offload
        self._source = source
        self._refresh_ms = refresh_ms
        self._backoff_ms = backoff_ms
        self._backoff_ms_max = backoff_ms_max
        self._failures = 0
        self._reading = False
        self._read_at_ms = 0
        self._text = b""
        self._waiting: dict[Callable[[], None], None] = {}  # for the end of the first reading
        self._timer: Timer | None = None

    def read(self) -> None:
        if self._reading:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._reading = True
        self._read_at_ms = self._reactor.clock.monotonic_ms()
        found: list[tuple[bytes, KeySet | None]] = []
        before = self._text

        def read() -> None:
            text = key_document(self._source, self._reactor.clock.monotonic_ms)
            found.append((text, None if text == before else parsed_keys(text)))

        self._reactor.run_beside(self._offload, read, partial(self._done, found))

    def when_read(self, callback: Callable[[], None]) -> Callable[[], None] | None:
        """Calls back after the first reading, which may fail. Returns a cancel function; None if it is over."""
        if self.keys is not None or not self._reading:
            return None
        self._waiting[callback] = None
        return lambda: self._waiting.pop(callback, None)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def on_unknown_key(self) -> None:
        """No key fits a token: reads the document, at most once in `jwks.endpoint.retry.backoff.max.ms`."""
        if self._reactor.clock.monotonic_ms() - self._read_at_ms >= self._backoff_ms_max:
            self.read()

    def _done(self, found: list[tuple[bytes, KeySet | None]], failure: Exception | None) -> None:
        self._reading = False
        try:
            if failure is not None:
                raise failure if isinstance(failure, UnusableKeys) else UnusableKeys(_reason(failure))
            text, keys = found[0]
            if keys is not None:
                self.keys, self._text = keys, text
                log.info("Keys of OAuth tokens are read: url=%s keys=%d", self._source.url, len(keys.keys))
            self._failures = 0
            pause_ms = self._refresh_ms
        except BarnabasError as error:
            pause_ms = min(self._backoff_ms_max, self._backoff_ms << min(self._failures, 20))
            self._failures += 1
            log.warning(
                "Keys of OAuth tokens cannot be read: url=%s error=%s retry_ms=%d", self._source.url, error, pause_ms
            )
        self._timer = self._reactor.call_later(pause_ms, self.read)
        waiting, self._waiting = self._waiting, {}
        for callback in waiting:
            self._reactor.soon(callback)


def _reason(failure: Exception) -> str:
    """Why a document is unreadable, without the server's text."""
    if isinstance(failure, OAuthInvalid):
        return str(failure)
    if isinstance(failure, urllib.error.HTTPError):
        return f"status {failure.code}"
    cause = failure.reason if isinstance(failure, urllib.error.URLError) else failure
    if isinstance(cause, ssl.SSLError):
        return explained(cause)
    said = cause.strerror if isinstance(cause, OSError) else None
    return said or type(cause).__name__


class SameProtection(urllib.request.HTTPRedirectHandler):
    """Follows redirections to http and https, but never from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        scheme = urlsplit(newurl).scheme
        if scheme != "https" and scheme != req.type:
            raise ValueError("the server redirects to another scheme")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def key_document(source: KeySource, now_ms: Callable[[], int]) -> bytes:
    """At most DOCUMENT_BYTES_MAX + 1 bytes. Blocks. Raises OSError, ValueError, HTTPException, OAuthInvalid."""
    if urlsplit(source.url).scheme not in JWKS_SCHEMES:
        raise ValueError(f"the URL is none of {', '.join(JWKS_SCHEMES)}")
    data = bytearray()
    by_https = urllib.request.HTTPSHandler(context=endpoint_tls(source.url, source.tls))
    without_proxy = urllib.request.ProxyHandler({})  # as Java's client, which does not read the *_proxy variables
    opener = urllib.request.build_opener(SameProtection, by_https, without_proxy)
    with opener.open(source.url, timeout=CONNECT_S_MAX) as answer:
        read = getattr(answer, "read1", answer.read)  # files have no read1
        ends_ms = now_ms() + READ_MS_MAX
        while len(data) <= DOCUMENT_BYTES_MAX and (part := read(READ_BYTES)):
            data += part
            if now_ms() > ends_ms:
                raise TimeoutError("the document takes too long")
    return bytes(data)


def parsed_keys(data: bytes) -> KeySet:
    """Keys of a JWKS document, without those for encryption and shared secrets. Raises UnusableKeys."""
    from joserfc.jwk import KeySet

    if len(data) > DOCUMENT_BYTES_MAX:
        raise UnusableKeys(f"the document has more than {DOCUMENT_BYTES_MAX} bytes")
    try:
        every = json.loads(data)["keys"][:KEYS_MAX]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UnusableKeys(f"the document is no set of keys: {type(error).__name__}") from None
    usable = []
    for each in every:
        if not isinstance(each, dict) or each.get("kty") == "oct" or each.get("use", "sig") != "sig":
            continue
        try:
            usable += KeySet.import_key_set({"keys": [each]}).keys
        except Exception as error:  # the libraries below document none: a key of a curve or type that they do not know
            log.warning("A key of OAuth tokens cannot be used: error=%s", type(error).__name__)
    if not usable:
        raise UnusableKeys("the document has no key for signatures")
    return KeySet(usable)
