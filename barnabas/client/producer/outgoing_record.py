"""Checks of what callers pass to `send`: keys, values, headers, timestamps."""

from __future__ import annotations

from typing import Any

from barnabas.client.errors import SerializationFailed
from barnabas.client.types import Headers

__all__ = ["as_bytes", "checked_headers", "checked_timestamp", "serialized"]


def as_bytes(data: Any, what: str, topic: str) -> bytes:
    """The bytes of a buffer. A mutable buffer is copied, because the record is sent later."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise SerializationFailed(
        f"a {what} must be bytes or None, not {type(data).__name__}; or set {what}_serializer", topic=topic
    )


def checked_headers(headers: Headers, topic: str) -> Headers:
    """The headers with their values as bytes.

    Raises:
        SerializationFailed: they are not pairs of str and bytes (or None).
    """
    try:
        checked = [(name, None if data is None else as_bytes(data, "header value", topic)) for name, data in headers]
        if all(isinstance(name, str) for name, _ in checked):
            return checked
    except (TypeError, ValueError):
        pass
    raise SerializationFailed(f"headers must be pairs of str and bytes (or None), not {headers!r}", topic=topic)


def checked_timestamp(timestamp_ms: Any, topic: str) -> int:
    """The timestamp itself.

    Raises:
        SerializationFailed: it is not an int.
    """
    if type(timestamp_ms) is not int:
        raise SerializationFailed(f"timestamp_ms must be an int, not {timestamp_ms!r}", topic=topic)
    return timestamp_ms


def serialized(what: str, serializer: Any, data: Any, topic: str) -> Any:
    """The result of a serializer; `data` itself if there is none.

    Raises:
        SerializationFailed: the serializer raised.
    """
    if serializer is None:
        return data
    try:
        return serializer(data)
    except Exception as error:
        raise SerializationFailed(f"the {what} serializer raised {error!r}", topic=topic) from error
