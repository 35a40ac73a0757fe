"""Authentication of a connection by SASL: SaslHandshake 0-1, SaslAuthenticate 0-2 (KIP-43, KIP-152, KIP-368)."""

from __future__ import annotations

from typing import ClassVar

from barnabas.protocol.schema import Message, field
from barnabas.protocol.wire import Array, Bytes, Int16, Int64, String


class SaslHandshakeRequest(Message, api_key=17, versions=(0, 1), flexible_since=None):
    """Chooses a mechanism. After version 0 tokens follow without a request header, after version 1 SaslAuthenticate."""

    mechanism: str = field(String)


class SaslHandshakeResponse(Message, api_key=17, versions=(0, 1), flexible_since=None):
    """Whether the mechanism is enabled."""

    error_code: int = field(Int16)
    mechanisms: list[str] = field(Array(String))  # that the listener has enabled


class SaslAuthenticateRequest(Message, api_key=36, versions=(0, 2), flexible_since=2):
    """One token of the client."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"auth_bytes"})

    auth_bytes: bytes = field(Bytes)


class SaslAuthenticateResponse(Message, api_key=36, versions=(0, 2), flexible_since=2):
    """The token of the server."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"auth_bytes"})

    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)
    auth_bytes: bytes = field(Bytes)
    session_lifetime_ms: int = field(Int64, since=1)  # 0: the session has no end (KIP-368)
