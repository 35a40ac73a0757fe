"""What callers give a producer, checked: keys, values, headers, the name of a codec."""

from __future__ import annotations

from typing import Any

from barnabas.client.errors import IllegalState, SerializationFailed
from barnabas.client.types import Headers
from barnabas.protocol.compression import Compression

__all__ = ["as_bytes", "checked_headers", "codec_of"]


def as_bytes(data: Any, what: str, topic: str) -> bytes:
    """Bytes of a buffer; what is mutable is copied, for the record leaves later."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise SerializationFailed(
        f"a {what} must be bytes or None, not {type(data).__name__}; or set {what}_serializer", topic=topic
    )


def checked_headers(headers: Headers, topic: str) -> Headers:
    """The headers as they are encoded."""
    try:
        checked = [(name, None if data is None else as_bytes(data, "header value", topic)) for name, data in headers]
        if all(isinstance(name, str) for name, _ in checked):
            return checked
    except (TypeError, ValueError):
        pass
    raise SerializationFailed(f"headers must be pairs of str and bytes (or None), not {headers!r}", topic=topic)


def codec_of(name: str | None) -> int:
    """The codec's number by its name."""
    if name is None or name == "none":
        return Compression.NONE
    try:
        return Compression[name.upper()]
    except KeyError:
        raise IllegalState(f"compression_type={name!r} is none of None, 'gzip', 'snappy', 'lz4', 'zstd'") from None
