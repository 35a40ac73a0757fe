"""Request and response headers; `registry` maps requests to header versions."""

from __future__ import annotations

from barnabas.protocol.schema import Message, field
from barnabas.protocol.wire import Int16, Int32, String


class RequestHeader(Message, versions=(0, 2), flexible_since=2):
    """Its client id keeps the classic length: every broker must be able to read it."""

    request_api_key: int = field(Int16)
    request_api_version: int = field(Int16)
    correlation_id: int = field(Int32)
    client_id: str | None = field(String, since=1, nullable_since=1, compact=False)  # classic length in every version


class ResponseHeader(Message, versions=(0, 1), flexible_since=1):
    """Header of every response."""

    correlation_id: int = field(Int32)
