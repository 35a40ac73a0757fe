"""Envelopes: a client's request with principal and address, encoded for the active controller (KIP-590)."""

from __future__ import annotations

from functools import partial
from ipaddress import ip_address
from typing import Final, NamedTuple

from barnabas.broker.api.access import Access
from barnabas.broker.api.principal import Principal
from barnabas.broker.api.request_header import skip_tags
from barnabas.errors import BrokerError, ErrorCode, RemoteProtocolError
from barnabas.protocol.exchange import is_long
from barnabas.protocol.messages.envelope import DefaultPrincipalData, EnvelopeRequest, EnvelopeResponse
from barnabas.protocol.messages.header import RequestHeader
from barnabas.protocol.registry import API, request_header_version, response_header_version
from barnabas.protocol.schema import Message, codec, decode, decode_versioned, encode, encode_parts, encode_versioned
from barnabas.work import LONG_BYTES, Steps, in_worker

# The APIs that a broker forwards, as in Kafka. A controller accepts no other request.
FORWARDED: Final = frozenset({19, 20, 30, 31, 33, 37, 38, 39, 40, 43, 44, 45, 46, 49, 51, 55, 57, 64, 80, 81})
_HEADER_MAX: Final = 40_000  # bytes that a header is read from: a client id has up to 32,767


class SealedRequest(NamedTuple):
    """An envelope, and the version of its request."""

    envelope: EnvelopeRequest
    version: int


def seal(request: Message, version: int, access: Access, client_id: str) -> Steps[SealedRequest]:
    """The envelope of a request of a client. Raises BrokerError (UNKNOWN_SERVER_ERROR) without internet address."""
    try:
        address = ip_address(access.host.partition("%")[0]).packed
    except ValueError:
        raise BrokerError(
            ErrorCode.UNKNOWN_SERVER_ERROR, "a request of a client without an internet address cannot be forwarded"
        ) from None
    header = RequestHeader(
        request_api_key=request.API_KEY, request_api_version=version, correlation_id=0, client_id=client_id
    )
    head = bytearray(encode(header, request_header_version(request.API_KEY, version)))
    encoded = partial(encode_parts, request, version, head)
    parts = (yield from in_worker(encoded)) if is_long(request) else encoded()
    principal = access.principal
    data = DefaultPrincipalData(type=principal.kind, name=principal.name, token_authenticated=principal.token)
    return SealedRequest(
        EnvelopeRequest(
            request_data=b"".join(parts), request_principal=encode_versioned(data, 0), client_host_address=address
        ),
        version,
    )


def open_answer(request: Message, version: int, answer: EnvelopeResponse) -> Steps[Message]:
    """The response to the forwarded request.

    Raises BrokerError: NOT_CONTROLLER, UNSUPPORTED_VERSION, UNKNOWN_SERVER_ERROR (no envelopes accepted, or malformed).
    """
    code = answer.error_code
    if code in (ErrorCode.NOT_CONTROLLER, ErrorCode.UNSUPPORTED_VERSION):
        raise BrokerError(ErrorCode(code))
    if code or answer.response_data is None:
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR)
    data = answer.response_data
    try:
        position = 4
        if response_header_version(request.API_KEY, version) >= 1:
            position = skip_tags(memoryview(data), position)
        decoded = partial(decode, API[request.API_KEY].response, data, version, position)
        response = (yield from in_worker(decoded)) if len(data) > LONG_BYTES else decoded()
    except RemoteProtocolError:
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR) from None
    return response


def forwarded_principal(data: bytes | None) -> Principal:
    """Raises BrokerError (PRINCIPAL_DESERIALIZATION_FAILURE)."""
    try:
        found = decode_versioned(DefaultPrincipalData, data or b"")
    except RemoteProtocolError:
        raise BrokerError(
            ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, "Failed to deserialize client principal from envelope"
        ) from None
    return Principal(found.type, found.name, found.token_authenticated)


def forwarded_address(data: bytes) -> str:
    """The client's address. Raises BrokerError (INVALID_REQUEST)."""
    if len(data) not in (4, 16):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "Failed to parse client address from envelope")
    return str(ip_address(bytes(data)))


def forwarded_header(data: bytes) -> tuple[RequestHeader, int]:
    """Header of the forwarded request, and start of its body. Raises BrokerError: UNSUPPORTED_VERSION, INVALID_REQUEST."""
    start = data[:_HEADER_MAX]
    try:
        if len(start) < 4:
            raise RemoteProtocolError("no header")
        key, version = int.from_bytes(start[:2], "big", signed=True), int.from_bytes(start[2:4], "big", signed=True)
        if key in API and key in FORWARDED and API[key].versions[0] <= version <= API[key].versions[1]:
            header, position = codec(RequestHeader, request_header_version(key, version)).decode(start, 0)
        else:
            header, position = RequestHeader(request_api_key=key, request_api_version=version), 0
    except RemoteProtocolError:
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, "Failed to parse request header from envelope") from None
    if key not in FORWARDED:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"API {key} is not enabled or is not eligible for forwarding")
    if not position:
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, f"version {version} of API {key} is not served")
    return header, position
