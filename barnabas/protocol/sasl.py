"""SASL clients: a conversation for PLAIN and OAUTHBEARER, without I/O (RFC 4616, RFC 7628, KIP-255, KIP-342)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from barnabas.errors import BarnabasError, ErrorCode

OAUTH_TOKEN_BYTES_MAX: Final = 256 * 1024  # Kafka's brokers accept 512 KiB in all by default
_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # RFC 6750: b64token
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7E \t\r\n]+")
_STATUS_LENGTH_MAX: Final = 500


class SaslFailed(BarnabasError):
    """Authentication failed. The text never contains a secret. `code`: the broker's error; None if this side rejected."""

    def __init__(self, text: str, code: ErrorCode | None = None) -> None:
        self.code = code
        super().__init__(text)


class SaslClient(Protocol):
    """One conversation."""

    @property
    def mechanism(self) -> str:
        """As in SaslHandshake."""
        ...

    def start(self) -> bytes:
        """The first message. Raises SaslFailed."""
        ...

    def step(self, challenge: bytes) -> bytes | None:
        """The response to a challenge; None: complete. Raises SaslFailed."""
        ...

    def work(self, challenge: bytes | None) -> Callable[[], None] | None:
        """Slow computation of `step` or `start` (no challenge), for a thread; None if quick. Errors appear in `step`."""
        ...


class PlainClient:
    """PLAIN (RFC 4616), over TLS only. Raises SaslFailed if a name or password is empty or contains a null character."""

    mechanism = "PLAIN"

    def __init__(self, username: str, password: str) -> None:
        for name, value in (("user name", username), ("password", password)):
            if not value or "\0" in value:
                raise SaslFailed(f"PLAIN: the {name} is empty or contains a null character")
        self._first = f"\0{username}\0{password}".encode()

    def start(self) -> bytes:
        return self._first

    def step(self, challenge: bytes) -> bytes | None:
        return None

    def work(self, challenge: bytes | None) -> Callable[[], None] | None:
        return None


class OAuthBearerClient:
    """OAUTHBEARER (RFC 7628, KIP-255) with extensions (KIP-342). Raises SaslFailed if one cannot be sent."""

    mechanism = "OAUTHBEARER"

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        if len(token) > OAUTH_TOKEN_BYTES_MAX or not _TOKEN.fullmatch(token):
            raise SaslFailed(
                f"OAUTHBEARER: the token provider returned no token: a token has 1 to {OAUTH_TOKEN_BYTES_MAX} letters, digits and "
                f"'-._~+/', then '='"
            )
        parts = [f"auth=Bearer {token}"]
        for name, value in (extensions or {}).items():
            if name == "auth" or not _EXTENSION_NAME.fullmatch(name) or not _EXTENSION_VALUE.fullmatch(value):
                raise SaslFailed(
                    f"OAUTHBEARER: the extension {name!r} cannot be sent: names are letters, values are ASCII"
                )
            parts.append(f"{name}={value}")
        self._first = "n,,\x01{}\x01\x01".format("\x01".join(parts)).encode()
        self._refusal = ""

    def start(self) -> bytes:
        return self._first

    def step(self, challenge: bytes) -> bytes | None:
        if not challenge:
            return None
        if self._refusal:
            raise SaslFailed(f"OAUTHBEARER: the broker refused the token: {self._refusal}")
        self._refusal = _status(challenge)
        return b"\x01"  # RFC 7628 3.2.3: the broker then ends the conversation with an error

    def work(self, challenge: bytes | None) -> Callable[[], None] | None:
        return None


def _status(challenge: bytes) -> str:
    import json  # here, because only a rejected token needs it

    try:
        answer = json.loads(challenge)
        return str(answer["status"])[:_STATUS_LENGTH_MAX]
    except (ValueError, KeyError, TypeError, RecursionError):
        return repr(challenge[:_STATUS_LENGTH_MAX])
