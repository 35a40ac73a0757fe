"""Timestamp search in one batch."""

from __future__ import annotations

from barnabas.errors import RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.protocol.batch_layout import ATTRIBUTE_LOG_APPEND_TIME, COMPRESSION_MASK, HEADER_SIZE
from barnabas.protocol.record_walk import check_count, deltas
from barnabas.protocol.records import read_header
from barnabas.storage.steps import SLICE_RECORDS, unpacked
from barnabas.work import SLICE, Steps


def first_in_batch(data: Buffer, timestamp: int | None, start_offset: int) -> Steps[tuple[int, int] | None]:
    """(offset, timestamp) of the first record from `timestamp` on, or with the largest. Raises RemoteProtocolError."""
    header = read_header(data)
    if header.size_bytes > len(data):
        raise RemoteProtocolError(f"batch of {header.size_bytes} bytes where {len(data)} are left")
    records = yield from unpacked(header.attributes & COMPRESSION_MASK, data[HEADER_SIZE : header.size_bytes])
    check_count(records, header.record_count)
    appended = bool(header.attributes & ATTRIBUTE_LOG_APPEND_TIME)
    position, largest = 0, None
    for first in range(0, header.record_count, SLICE_RECORDS):
        if first:
            yield SLICE
        found, position = deltas(records, position, min(SLICE_RECORDS, header.record_count - first))
        for offset_delta, delta, _ in found:
            recorded = header.max_timestamp if appended else header.base_timestamp + delta
            offset = header.base_offset + offset_delta
            if offset < start_offset:
                continue
            if timestamp is None:
                largest = largest if largest is not None and recorded <= largest[1] else (offset, recorded)
            elif recorded >= timestamp:
                return offset, recorded
    if position != len(records):
        raise RemoteProtocolError(f"{len(records) - position} bytes follow the {header.record_count} records")
    return largest
