"""Splits long work into steps: generators that yield between two steps.

A generator of `Steps[T]` yields None after enough work for one turn of the loop. It may also yield a function of C code that releases
Python's lock: the caller runs it, perhaps in a thread, before the next step. The function never raises. The generator returns its result.
`broker/long_work` runs one step in each turn of the loop, `finish` runs all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from barnabas.errors import RemoteProtocolError
from barnabas.limits import DECOMPRESSED_BYTES_MAX
from barnabas.ports import Buffer
from barnabas.protocol.batch_layout import ATTRIBUTE_LOG_APPEND_TIME
from barnabas.protocol.compression import DecompressedTooLarge, compress, decompress
from barnabas.protocol.record_codec import Record, decode, record_starts
from barnabas.protocol.record_walk import check_count
from barnabas.protocol.records import BatchHeader

__all__ = [
    "DECODED_RECORDS",
    "INLINE_BYTES_MAX",
    "SLICE_RECORDS",
    "Steps",
    "finish",
    "packed",
    "record_slices",
    "unpacked",
]

SLICE_RECORDS = 4_096  # checked in one step: 2 to 4 ms in plain Python
DECODED_RECORDS = 2_048  # decoded in one step: 2 to 5 ms in plain Python
INLINE_BYTES_MAX = 256 * 1024  # decompressed within a step: 1 ms

T = TypeVar("T")
Steps = Generator[Callable[[], None] | None, None, T]


def finish(steps: Steps[T]) -> T:
    """Runs all steps at once: for tests and tools."""
    while True:
        try:
            work = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if work is not None:
            work()


def unpacked(codec: int, packed: Buffer) -> Steps[bytes]:
    """Decompresses the records of a batch; short ones without a step.

    Raises:
        RemoteProtocolError: malformed, or more than DECOMPRESSED_BYTES_MAX.
    """
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
    """Compresses the records of a batch; short ones without a step."""
    if codec and len(records) > INLINE_BYTES_MAX:
        found: list[bytes] = []
        yield lambda: found.append(compress(codec, records))
        return found[0]
    return compress(codec, records) if codec else records


def record_slices(records: bytes, header: BatchHeader) -> Iterator[tuple[bytes, list[Record]]]:
    """Decodes the decompressed records of one batch, a few thousand at a time: yields their bytes and the records.

    Raises:
        RemoteProtocolError: as in `record_codec.decode`.
    """
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
