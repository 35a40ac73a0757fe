"""Requests of clients that brokers forward to the active controller: Envelope 0, and the form of a principal in it (KIP-590)."""

from __future__ import annotations

from barnabas.protocol.schema import Message, RecordMessage, field, message, record
from barnabas.protocol.wire import Bool, Bytes, Int16, String


@record(versions=(0, 0), flexible_since=0)
class DefaultPrincipalData(RecordMessage):
    """A principal, behind its version (`encode_versioned`)."""

    type: str = field(String)
    name: str = field(String)
    token_authenticated: bool = field(Bool)


@message(api_key=58, versions=(0, 0), flexible_since=0)
class EnvelopeRequest(Message):
    """A request with its header; who sent it, and from which address (4 or 16 bytes)."""

    request_data: bytes = field(Bytes)
    request_principal: bytes | None = field(Bytes, nullable_since=0)
    client_host_address: bytes = field(Bytes)


@message(api_key=58, versions=(0, 0), flexible_since=0)
class EnvelopeResponse(Message):
    """The answer to the request inside with its header, or why that request was not handled."""

    response_data: bytes | None = field(Bytes, nullable_since=0, default=None)
    error_code: int = field(Int16)
