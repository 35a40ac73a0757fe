"""Compression codecs of record batches, with a limit of the decompressed size. Raises only RemoteProtocolError."""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum

import cramjam

from barnabas.errors import LocalProtocolError, RemoteProtocolError
from barnabas.limits import DECOMPRESSED_BYTES_MAX
from barnabas.ports import Buffer


class DecompressedTooLarge(RemoteProtocolError):
    """The decompressed records exceed the caller's limit. They may be well formed."""


class Compression(IntEnum):
    """Codec numbers (low three bits of the attributes), named as in `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_DEFAULT_LEVELS: dict[int, int] = {Compression.GZIP: -1, Compression.LZ4: 9, Compression.ZSTD: 3}
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version written, lowest version that can read it
_XERIAL_BLOCK_BYTES = 32 * 1024  # as in the Java client
_LZ4_BYTES_AT_ONCE = 64 * 1024  # 0.4 ms, 4 ms at the highest level
_ZSTD_LARGE_BYTES = 4 * 1024 * 1024  # of records, from which on high levels take up to 800 MB of tables
_ZSTD_LEVEL_OF_LARGE = 18  # takes 60 MB
_SNAPPY_EXPANSION_MAX = 32  # a copy element of 3 bytes yields 64: no block grows more than 22-fold
_OUTPUT_BYTES_FIRST = 64 * 1024  # first estimate of an unknown output size
_EXPANSION_GUESS = 4  # typical ratio of compressed records; a wrong estimate costs one more pass
_OUTPUT_TOO_SMALL = "failed to write whole buffer"  # cramjam's text; a test pins it
_INT32 = struct.Struct(">i")


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compresses records in formats that every Kafka client reads. Raises LocalProtocolError for an unknown codec.

    `level` is Kafka's (KIP-390): gzip 1 to 9, lz4 1 to 17, zstd -131072 to 22. None, and Kafka's defaults for gzip (-1)
    and lz4 (9: its fast compressor), select the codec's default. Snappy has no levels. More than 4 MiB of records get
    at most level 18 of zstd, because higher levels take hundreds of megabytes.
    """
    if level == _DEFAULT_LEVELS.get(codec):
        level = None
    if codec == Compression.NONE:
        return bytes(data)
    if codec == Compression.GZIP:
        return bytes(cramjam.gzip.compress(data, level=level))
    if codec == Compression.SNAPPY:
        return _compress_xerial(data)
    if codec == Compression.LZ4:
        # Kafka's Java client rejects linked blocks (KIP-57).
        frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        view = memoryview(data)
        for start in range(0, len(view), _LZ4_BYTES_AT_ONCE):  # the only codec of cramjam that holds Python's lock
            frame.compress(bytes(view[start : start + _LZ4_BYTES_AT_ONCE]))
        return bytes(frame.finish())
    if codec == Compression.ZSTD:
        if level is not None and len(data) > _ZSTD_LARGE_BYTES:
            level = min(level, _ZSTD_LEVEL_OF_LARGE)
        return bytes(cramjam.zstd.compress(data, level=level))
    raise LocalProtocolError(f"compression codec {codec} does not exist, the highest is 4 (zstd)")


def decompress(codec: int, data: Buffer, size_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Decompresses, also plain snappy blocks (librdkafka). Raises DecompressedTooLarge or RemoteProtocolError."""
    if codec == Compression.NONE:
        if len(data) > size_max:
            raise _too_large("uncompressed records", size_max)
        return bytes(data)
    if codec == Compression.GZIP:
        return _decompress_gzip(data, size_max)
    if codec == Compression.SNAPPY:
        return _decompress_snappy(data, size_max)
    if codec == Compression.LZ4 or codec == Compression.ZSTD:
        return _decompress_frame(codec, data, size_max)
    raise RemoteProtocolError(f"compression codec {codec} does not exist, the highest is 4 (zstd)")


def _too_large(what: str, size_max: int) -> DecompressedTooLarge:
    return DecompressedTooLarge(f"{what} exceed {size_max} bytes when decompressed")


def _decompress_gzip(data: Buffer, size_max: int) -> bytes:
    """zlib's stream stops at a given output size; cramjam's does not."""
    parts: list[bytes] = []
    room = size_max
    rest: Buffer = data
    try:
        while rest or not parts:
            member = zlib.decompressobj(wbits=31)
            part = member.decompress(rest, room + 1)
            if len(part) > room:
                raise _too_large("gzip records", size_max)
            if not member.eof:
                raise RemoteProtocolError("gzip records end in the middle of a stream")
            parts.append(part)
            room -= len(part)
            rest = member.unused_data  # some streaming encoders write a second member
    except zlib.error as error:
        raise RemoteProtocolError(f"gzip records are malformed: {error}") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_INT32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, size_max: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, size_max, size_max)
    position = len(_XERIAL_HEADER)
    if len(view) < position:
        raise RemoteProtocolError("snappy records end inside the xerial header")
    parts: list[bytes] = []
    room = size_max
    while position < len(view):
        if position + 4 > len(view):
            raise RemoteProtocolError("snappy records end inside a block length")
        size = int(_INT32.unpack_from(view, position)[0])
        position += 4
        if size < 0 or position + size > len(view):
            raise RemoteProtocolError(f"snappy block of {size} bytes where {len(view) - position} are left")
        part = _decompress_snappy_block(view[position : position + size], room, size_max)
        room -= len(part)
        parts.append(part)
        position += size
    return b"".join(parts)


def _decompress_snappy_block(block: memoryview, room: int, size_max: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > len(block) * _SNAPPY_EXPANSION_MAX:
            raise RemoteProtocolError(f"snappy block of {len(block)} bytes claims {size} bytes of output")
        if size > room:
            raise _too_large("snappy records", size_max)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise RemoteProtocolError(f"snappy records are malformed: {error}") from None


def _decompress_frame(codec: int, data: Buffer, size_max: int) -> bytes:
    """Frames may lack their size: tries an estimate, and larger ones up to the limit."""
    module, name = (cramjam.lz4, "lz4") if codec == Compression.LZ4 else (cramjam.zstd, "zstd")
    room = min(size_max, max(_OUTPUT_BYTES_FIRST, len(data) * _EXPANSION_GUESS))
    while True:
        output = bytearray(room)
        try:
            return bytes(memoryview(output)[: module.decompress_into(data, output)])
        except cramjam.DecompressionError as error:
            if _OUTPUT_TOO_SMALL not in str(error):
                raise RemoteProtocolError(f"{name} records are malformed: {error}") from None
        if room >= size_max:
            raise _too_large(f"{name} records", size_max)
        room = min(size_max, room * 8)
