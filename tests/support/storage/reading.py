"""What a log holds, as tests compare it."""

from __future__ import annotations

from barnabas.protocol.records import decode_records, iter_batches
from barnabas.storage.partition_log import PartitionLog
from barnabas.storage.segment import LogSlice


def values(log: PartitionLog, start: int = 0, end: int | None = None) -> list[int]:
    """Offsets of all records by repeated reads."""
    end = log.log_end_offset if end is None else end
    seen: list[int] = []
    offset = start
    while offset < end:
        found = log.read(offset, 300, end_offset=end)
        if not found.records:
            break
        seen += [each for each in offsets(found) if each >= start]
        assert found.next_offset > offset
        offset = found.next_offset
    return seen


def offsets(found: LogSlice) -> list[int]:
    return [
        record.offset
        for position, header in iter_batches(found.records)
        for record in decode_records(found.records, position, header)
    ]
