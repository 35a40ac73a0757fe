"""The values of a log."""

from __future__ import annotations

from barnabas.broker.replica.core.machine import Replica
from barnabas.protocol.records import decode_records


def values(replica: Replica) -> list[bytes]:
    """The value at every offset of a log; offsets are dense here."""
    found: list[bytes] = []
    offset = replica.log.log_start_offset
    while offset < replica.log.log_end_offset:
        part = replica.log.read(offset, 1, end_offset=replica.log.log_end_offset)
        found += [record.value or b"" for record in decode_records(part.records)]
        offset = part.next_offset
    return found
