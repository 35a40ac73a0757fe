"""Requests of clients that brokers forward to the active controller: Envelope 0, and the form of a principal in it (KIP-590)."""

from __future__ import annotations

from barnabas.protocol.schema import Message, RecordMessage, field
from barnabas.protocol.wire import Bool, Bytes, Int16, String


class DefaultPrincipalData(RecordMessage, versions=(0, 0), flexible_since=0):
    """A principal, after its version (`encode_versioned`)."""

    type: str = field(String)
    name: str = field(String)
    token_authenticated: bool = field(Bool)


class EnvelopeRequest(Message, api_key=58, versions=(0, 0), flexible_since=0):
    """A request with its header, its principal and its address (4 or 16 bytes)."""

    request_data: bytes = field(Bytes)
    request_principal: bytes | None = field(Bytes, nullable_since=0)
    client_host_address: bytes = field(Bytes)


class EnvelopeResponse(Message, api_key=58, versions=(0, 0), flexible_since=0):
    """The response to the forwarded request with its header, or an error."""

    response_data: bytes | None = field(Bytes, nullable_since=0, default=None)
    error_code: int = field(Int16)
