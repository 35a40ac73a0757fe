"""Skips the tag section of a request header (flexible versions, KIP-482); no tag of a request header is known.

A pure function of the frame. Raises RemoteProtocolError for a malformed section or one with too many tags.
"""

from __future__ import annotations

from barnabas.errors import RemoteProtocolError

__all__ = ["skip_tags"]


def skip_tags(frame: memoryview, position: int) -> int:
    """Skips the tag section of a request header; returns the position of the body."""
    try:
        count = frame[position]
        position += 1
        if count == 0:
            return position
        if count > 127:
            raise RemoteProtocolError("a request header with over 127 tags")
        for _ in range(count):
            _, position = _uvarint(frame, position)
            size, position = _uvarint(frame, position)
            position += size
    except IndexError:
        raise RemoteProtocolError("a request header ends within its tags") from None
    if position > len(frame):
        raise RemoteProtocolError("a request header ends within its tags")
    return position


def _uvarint(frame: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise RemoteProtocolError("a varint of over 5 bytes in a request header")
