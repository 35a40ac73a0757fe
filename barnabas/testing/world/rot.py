"""Flips a bit of a record on a broker's disk."""

from __future__ import annotations

from barnabas.ports import Disk
from barnabas.protocol.batch_layout import HEADER_SIZE, LENGTH_OVERHEAD, offset_of, struct_of

_EXTENT = struct_of("base_offset", "batch_length")
_DELTA_OFFSET = offset_of("last_offset_delta")
_LOG = ".log"


def flip(disk: Disk, folder: str, offset: int) -> str:
    """Flips the lowest bit of the last byte of the batch with this offset. Returns what is wrong, or nothing."""
    if not disk.exists(folder):
        return f"it has no replica {folder}"
    bases = sorted(int(each[: -len(_LOG)]) for each in disk.listdir(folder) if each.endswith(_LOG))
    base = max((each for each in bases if each <= offset), default=-1)
    if base < 0:
        return f"{folder} has no record at offset {offset}: it begins at {bases[0] if bases else 0}"
    file = disk.open(f"{folder}/{base:020d}{_LOG}")
    try:
        size, position = file.size(), 0
        while position + HEADER_SIZE <= size:
            header = file.pread(HEADER_SIZE, position)
            first, length = _EXTENT.unpack_from(header)
            end = position + length + LENGTH_OVERHEAD
            last = first + int.from_bytes(header[_DELTA_OFFSET : _DELTA_OFFSET + 4], "big")
            if first <= offset <= last and end <= size:
                [byte] = file.pread(1, end - 1)
                file.pwrite(bytes([byte ^ 1]), end - 1)
                return ""
            position = max(end, position + HEADER_SIZE)
    finally:
        file.close()
    return f"{folder} has no record at offset {offset}"
