"""Reads log files that no broker of this process owns: batches of a .log file in order, in bounded memory, with what is wrong.

Reads only: it locks, repairs and creates nothing. A batch is in memory while it is yielded, and no more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.limits import DECOMPRESSED_BYTES_MAX
from barnabas.protocol.batch_layout import HEADER_SIZE
from barnabas.storage.replay import StoredBatch, checksum_holds, stored_batch

CHUNK_BYTES: Final = 1024 * 1024
HEADER_CHUNK_BYTES: Final = 16 * 1024


class DamageFound(NamedTuple):
    """Where a log file stops being readable, and why."""

    position: int
    next_offset: int | None  # the offset that should follow, None if nothing was read
    why: str


def batches_of(
    path: Path, *, from_position: int = 0, contents: bool = True
) -> Iterator[tuple[StoredBatch, memoryview] | DamageFound]:
    """Yields the batches of a file with their bytes, and at the end the damage, if there is one.

    Zeros up to the end of the file are no damage: Kafka preallocates files.

    Args:
        from_position: where a batch begins.
        contents: reads the records and checks the checksums; otherwise only headers are read, and the bytes are empty.

    Raises OSError: the file cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        yield from _Reader(file.fileno(), contents).batches(from_position)


def last_batch(path: Path, from_position: int = 0) -> StoredBatch | None:
    """The last whole batch of a file by its headers, None without one. Raises OSError."""
    last = None
    for found in batches_of(path, from_position=from_position, contents=False):
        if not isinstance(found, DamageFound):
            last = found[0]
    return last


class _Reader:
    def __init__(self, descriptor: int, contents: bool) -> None:
        self._descriptor = descriptor
        self._contents = contents
        self._chunk = memoryview(b"")
        self._start = 0

    def batches(self, position: int) -> Iterator[tuple[StoredBatch, memoryview] | DamageFound]:
        size = os.fstat(self._descriptor).st_size
        next_offset: int | None = None
        while position < size:
            header = self._bytes(position, HEADER_SIZE)
            batch = stored_batch(header, 0, position) if len(header) == HEADER_SIZE else None
            why = self._why_not(batch, position, size, next_offset)
            if batch is None or why is not None:
                if not self._only_zeros(position, size):
                    yield DamageFound(position, next_offset, why or "no header of a batch")
                return
            data = memoryview(b"")
            if self._contents:
                data = self._bytes(position, batch.size)
                if not checksum_holds(data):
                    yield DamageFound(
                        position, next_offset, f"the batch at byte {position} does not match its checksum"
                    )
                    return
            yield batch, data
            position += batch.size
            next_offset = batch.last_offset + 1

    @staticmethod
    def _why_not(batch: StoredBatch | None, position: int, size: int, next_offset: int | None) -> str | None:
        """Why the bytes at a position are no batch that may follow; None if they are one."""
        if batch is None:
            return f"no batch begins at byte {position} of {size}"
        if position + batch.size > size:
            return f"the batch at byte {position} is cut off: {size - position} of {batch.size} bytes are there"
        if next_offset is not None and batch.base_offset < next_offset:
            return f"the batch at byte {position} begins at offset {batch.base_offset}, below {next_offset}"
        if batch.size > DECOMPRESSED_BYTES_MAX:
            return f"the batch at byte {position} claims {batch.size} bytes"
        return None

    def _bytes(self, position: int, size: int) -> memoryview:
        """Up to `size` bytes at a position, fewer at the end of the file."""
        at = position - self._start
        if at < 0 or at + size > len(self._chunk):
            wanted = max(size, CHUNK_BYTES if self._contents else HEADER_CHUNK_BYTES)
            parts, have = [], 0
            while have < wanted:
                part = self._read(wanted - have, position + have)
                if not part:
                    break
                parts.append(part)
                have += len(part)
            self._chunk, self._start, at = memoryview(b"".join(parts)), position, 0
        return self._chunk[at : at + size]

    def _read(self, size: int, position: int) -> bytes:
        os.lseek(self._descriptor, position, os.SEEK_SET)  # Windows has no pread
        return os.read(self._descriptor, size)

    def _only_zeros(self, position: int, size: int) -> bool:
        while position < size:
            part = self._read(min(CHUNK_BYTES, size - position), position)
            if not part or part.count(0) != len(part):
                return not part
            position += len(part)
        return True
