"""Batches in steps (`barnabas/work.py`): large ones are decompressed, compressed and decoded piecewise."""

from __future__ import annotations

from collections.abc import Iterator

from barnabas.errors import RemoteProtocolError
from barnabas.limits import DECOMPRESSED_BYTES_MAX
from barnabas.ports import Buffer
from barnabas.protocol.batch_layout import ATTRIBUTE_LOG_APPEND_TIME
from barnabas.protocol.compression import DecompressedTooLarge, compress, decompress
from barnabas.protocol.record_codec import Record, decode, record_starts
from barnabas.protocol.record_walk import check_count
from barnabas.protocol.records import BatchHeader
from barnabas.work import Steps

SLICE_RECORDS = 4_096  # checked in one step: 2 to 4 ms in plain Python
DECODED_RECORDS = 2_048  # decoded in one step: 2 to 5 ms in plain Python
INLINE_BYTES_MAX = 256 * 1024  # decompressed within a step: 1 ms


def unpacked(codec: int, packed: Buffer) -> Steps[bytes]:
    """Decompresses records. Raises RemoteProtocolError if malformed or above DECOMPRESSED_BYTES_MAX."""
    try:
        return decompress(codec, packed, INLINE_BYTES_MAX if codec else len(packed))
    except DecompressedTooLarge:
        pass
    found: list[bytes | RemoteProtocolError] = []

    def work() -> None:
        try:
            found.append(decompress(codec, packed, DECOMPRESSED_BYTES_MAX))
        except RemoteProtocolError as error:
            found.append(error)

    yield work
    if isinstance(found[0], RemoteProtocolError):
        raise found[0]
    return found[0]


def packed(codec: int, records: bytes) -> Steps[bytes]:
    if codec and len(records) > INLINE_BYTES_MAX:
        found: list[bytes] = []
        yield lambda: found.append(compress(codec, records))
        return found[0]
    return compress(codec, records) if codec else records


def record_slices(records: bytes, header: BatchHeader) -> Iterator[tuple[bytes, list[Record]]]:
    """Decodes a few thousand records at a time: yields their bytes and the records. Raises RemoteProtocolError."""
    count = header.record_count
    check_count(records, count)
    append_time = header.max_timestamp if header.attributes & ATTRIBUTE_LOG_APPEND_TIME else -1
    position = 0
    for first in range(0, count, DECODED_RECORDS):
        number = min(DECODED_RECORDS, count - first)
        piece = records
        if first + number < count:
            start = position
            try:
                _, position = record_starts(records, start, len(records), number)
            except IndexError:
                raise RemoteProtocolError("records end in the middle of a record") from None
            piece = records[start:position]
        elif position:
            piece = records[position:]
        yield piece, decode(piece, number, header.base_offset, header.base_timestamp, append_time)
