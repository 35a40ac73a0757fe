"""SigningKeys: the keys that sign OAuth tokens, from a file or a URL, renewed while the node serves.

Driven by: `login` (`start`, `keys`, `on_refused`), a timer. Emits: key sets; one log line for each failure and each change.

The document is read in a thread, so the loop never waits for it. A document that cannot be read keeps the former keys; the next attempt
follows after a growing pause. A token that no key fits causes a renewal, at most one in `jwks.endpoint.retry.backoff.max.ms`.
Follows KIP-768. The size of the document is limited.
"""

from __future__ import annotations

import json
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from barnabas.broker.reactor import Reactor
from barnabas.broker.security.sasl_settings import JWKS_SCHEMES
from barnabas.broker.slices import Offload
from barnabas.broker.waiting import Timer
from barnabas.errors import BarnabasError
from barnabas.loggers import logger

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

__all__ = ["SigningKeys", "parsed_keys"]

log = logger("kafka.network.SocketServer")

DOCUMENT_BYTES_MAX: Final = 1024 * 1024
KEYS_MAX: Final = 1_000
CONNECT_S_MAX: Final = 10.0


class UnusableKeys(BarnabasError):
    """A document has no keys that can be used."""


class SigningKeys:
    """The keys of one URL.

    Args:
        url: file://, http:// or https://.
        refresh_ms: between two readings.
        backoff_ms, backoff_ms_max: after a failure.

    Attributes:
        keys: None before the first document was read.
    """

    def __init__(
        self, reactor: Reactor, offload: Offload, url: str, refresh_ms: int, backoff_ms: int, backoff_ms_max: int
    ) -> None:
        self.keys: KeySet | None = None
        self._reactor = reactor
        self._offload = offload
        self._url = url
        self._refresh_ms = refresh_ms
        self._backoff_ms = backoff_ms
        self._backoff_ms_max = backoff_ms_max
        self._failures = 0
        self._reading = False
        self._read_at_ms = 0
        self._text = b""
        self._timer: Timer | None = None

    def read(self) -> None:
        """Reads the document in a thread."""
        if self._reading:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._reading = True
        self._read_at_ms = self._reactor.clock.monotonic_ms()
        found: list[bytes] = []
        self._reactor.run_beside(
            self._offload, lambda: found.append(key_document(self._url)), partial(self._done, found)
        )

    def on_unknown_key(self) -> None:
        """No key fits a token: the keys may have changed."""
        if self._reactor.clock.monotonic_ms() - self._read_at_ms >= self._backoff_ms_max:
            self.read()

    def _done(self, found: list[bytes], failure: Exception | None) -> None:
        self._reading = False
        try:
            if failure is not None:
                raise UnusableKeys(type(failure).__name__)
            if found[0] != self._text:
                self.keys = parsed_keys(found[0])
                self._text = found[0]
                log.info("Keys of OAuth tokens are read: url=%s keys=%d", self._url, len(self.keys.keys))
            self._failures = 0
            pause_ms = self._refresh_ms
        except BarnabasError as error:
            pause_ms = min(self._backoff_ms_max, self._backoff_ms << min(self._failures, 20))
            self._failures += 1
            log.warning("Keys of OAuth tokens cannot be read: url=%s error=%s retry_ms=%d", self._url, error, pause_ms)
        self._timer = self._reactor.call_later(pause_ms, self.read)


def key_document(url: str) -> bytes:
    """The document at a URL; blocks. Raises OSError, ValueError."""
    if urlsplit(url).scheme not in JWKS_SCHEMES:
        raise ValueError(f"the URL is none of {', '.join(JWKS_SCHEMES)}")
    with urllib.request.urlopen(url, timeout=CONNECT_S_MAX) as answer:
        data: bytes = answer.read(DOCUMENT_BYTES_MAX + 1)
    return data


def parsed_keys(data: bytes) -> KeySet:
    """The keys of a JWKS document; those for encryption and shared secrets are left out.

    Raises:
        UnusableKeys: there is none, or the document is malformed or too large.
    """
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    if len(data) > DOCUMENT_BYTES_MAX:
        raise UnusableKeys(f"the document has more than {DOCUMENT_BYTES_MAX} bytes")
    try:
        document = json.loads(data)
        every = document["keys"]
        usable = [each for each in every[:KEYS_MAX] if each.get("kty") != "oct" and each.get("use", "sig") == "sig"]
        if not usable:
            raise UnusableKeys("the document has no key for signatures")
        return KeySet.import_key_set({"keys": usable})
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnusableKeys(f"the document is no set of keys: {type(error).__name__}") from None
