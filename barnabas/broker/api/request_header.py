"""Request header parts: client id, and the tag section (flexible versions, KIP-482), of which no tag is known.
Malformed parts and too many tags raise RemoteProtocolError.
"""

from __future__ import annotations

from barnabas.errors import RemoteProtocolError


def decoded_client_id(data: bytes, length: int) -> str:
    """`data` is shorter than `length` if the frame ends before."""
    if len(data) < length:
        raise RemoteProtocolError(f"client id of {length} bytes exceeds its frame")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("client id is not UTF-8") from None


def absent_client_id(length: int) -> str | None:
    """The client id of a header without bytes of it: null or empty."""
    if length < -1:
        raise RemoteProtocolError(f"client id of length {length}")
    return None if length else ""


def skip_tags(frame: memoryview, position: int) -> int:
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
