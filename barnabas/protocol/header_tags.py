"""Tagged fields of a response header (KIP-482), which a client skips."""

from __future__ import annotations

from barnabas.errors import RemoteProtocolError


def skip_header_tags(frame: memoryview, position: int) -> int:
    if position < len(frame) and not frame[position]:
        return position + 1
    count, position = _unsigned(frame, position)
    for _ in range(count):
        _, position = _unsigned(frame, position)
        size, position = _unsigned(frame, position)
        position += size
        if position > len(frame):
            raise RemoteProtocolError("a tag of a response header ends behind its frame")
    return position


def _unsigned(frame: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(frame) and shift < 35:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise RemoteProtocolError("a response header is cut off")
