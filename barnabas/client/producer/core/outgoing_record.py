"""Checks of keys, values, headers and timestamps passed to `send`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from barnabas.client.errors import SerializationFailed
from barnabas.client.types import Headers, HeadersToSend


def as_bytes(data: Any, what: str, topic: str) -> bytes:
    """Copies a mutable buffer, because the record is sent later."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise SerializationFailed(
        f"a {what} must be bytes or None, not {type(data).__name__}; or set {what}_serializer", topic=topic
    )


def checked_headers(headers: HeadersToSend, topic: str) -> Headers:
    """Headers as pairs with bytes values, from a dict or pairs with bytes, str or None. Raises SerializationFailed."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        checked = [(name, _header_value(data)) for name, data in pairs]
        if all(isinstance(name, str) for name, _ in checked):
            return checked
    except (TypeError, ValueError):
        pass
    raise SerializationFailed(
        f"headers must be a dict or pairs, of str and bytes, str or None; not {headers!r}", topic=topic
    )


def _header_value(data: Any) -> bytes | None:
    if data is None or type(data) is bytes:
        return data
    return data.encode() if isinstance(data, str) else bytes(memoryview(data))


def checked_timestamp(timestamp_ms: Any, topic: str) -> int:
    if type(timestamp_ms) is not int:
        raise SerializationFailed(f"timestamp_ms must be an int, not {timestamp_ms!r}", topic=topic)
    if not 0 <= timestamp_ms < 1 << 63:  # Java's producer refuses negative ones, too
        raise SerializationFailed(f"timestamp_ms must be from 0 to {(1 << 63) - 1}, not {timestamp_ms}", topic=topic)
    return timestamp_ms


def serialized(what: str, serializer: Any, data: Any, topic: str) -> Any:
    """Serializes; None stays null. Raises SerializationFailed if the serializer raised or did not return bytes."""
    if serializer is None or data is None:
        return data
    try:
        result = serializer(data)
    except Exception as error:
        raise SerializationFailed(f"the {what} serializer raised {error!r}", topic=topic) from error
    if result is None or isinstance(result, bytes | bytearray | memoryview):
        return result
    raise SerializationFailed(f"{what}_serializer returned {type(result).__name__}; it must return bytes", topic=topic)
