"""Varints of Kafka's protocol: unsigned (flexible messages, KIP-482) and zigzag (records of batch v2).
Readers return the value and the position after it; they raise RemoteProtocolError for incomplete or too long numbers.
"""

from __future__ import annotations

from barnabas.errors import RemoteProtocolError
from barnabas.ports import Buffer

UVARINT_BYTES_MAX = 5  # a 32-bit number, seven bits a byte
VARLONG_BYTES_MAX = 10  # a 64-bit number

_ONE_BYTE = tuple(bytes((value,)) for value in range(128))


def encode_uvarint(value: int) -> bytes:
    """0 ≤ value < 2**32."""
    if value < 128:
        return _ONE_BYTE[value]
    if value < 16384:
        return bytes((value & 127 | 128, value >> 7))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_varint(value: int) -> bytes:
    """Zigzag varint or varlong of a signed number of at most 64 bits."""
    value = (value << 1) ^ (value >> 63)
    if value < 128:
        return _ONE_BYTE[value]
    if value < 16384:
        return bytes((value & 127 | 128, value >> 7))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def uvarint_size(value: int) -> int:
    return (value.bit_length() + 6) // 7 or 1


def varint_size(value: int) -> int:
    return uvarint_size((value << 1) ^ (value >> 63))


def read_uvarint(buffer: Buffer, pos: int) -> tuple[int, int]:
    """At most 32 bits: (value, position after it)."""
    return _read(buffer, pos, UVARINT_BYTES_MAX)


def read_uvarint_rest(buffer: Buffer, pos: int, first: int) -> tuple[int, int]:
    """As `read_uvarint`, for a number whose first byte, `first` > 127, was read already."""
    value = first & 127
    shift = 7
    try:
        while True:
            byte = buffer[pos]
            pos += 1
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 28:
                raise RemoteProtocolError("a varint is longer than 5 bytes")
    except IndexError:
        raise RemoteProtocolError("a varint is cut off by the end of the message") from None
    if value >> 32:
        raise RemoteProtocolError(f"the varint {value} does not fit 32 bits")
    return value, pos


def read_varint(buffer: Buffer, pos: int) -> tuple[int, int]:
    """Zigzag, at most 32 bits: (value, position after it)."""
    value, pos = _read(buffer, pos, UVARINT_BYTES_MAX)
    return (value >> 1) ^ -(value & 1), pos


def read_varlong(buffer: Buffer, pos: int) -> tuple[int, int]:
    """Zigzag, at most 64 bits: (value, position after it)."""
    value, pos = _read(buffer, pos, VARLONG_BYTES_MAX)
    return (value >> 1) ^ -(value & 1), pos


def _read(buffer: Buffer, pos: int, bytes_max: int) -> tuple[int, int]:
    value = 0
    shift = 0
    try:
        while True:
            byte = buffer[pos]
            pos += 1
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift >= 7 * bytes_max:
                raise RemoteProtocolError(f"a varint is longer than {bytes_max} bytes")
    except IndexError:
        raise RemoteProtocolError("a varint is cut off by the end of the message") from None
    bits_max = 32 if bytes_max == UVARINT_BYTES_MAX else 64
    if value >> bits_max:
        raise RemoteProtocolError(f"the varint {value} does not fit {bits_max} bits")
    return value, pos
