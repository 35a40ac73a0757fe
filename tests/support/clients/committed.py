"""What a read_committed reader of a partition gets, by raw requests."""

from __future__ import annotations

from barnabas.protocol.records import decode_records, iter_batches
from tests.support.oracle.wire import Wire


def committed_values(wire: Wire, topic: str, partition: int, *, held_back: bool = False) -> list[bytes]:
    """What a read_committed reader of one partition is given. Unless it may be held back: that nothing holds it back."""
    values: list[bytes] = []
    offset, end = 0, -1
    open_aborts: dict[int, list[int]] = {}
    while offset != end:
        fetched = wire.fetch(topic, partition, offset, isolation_level=1)
        assert fetched.error_code == 0, fetched
        assert held_back or fetched.last_stable_offset == fetched.high_watermark
        end = fetched.last_stable_offset
        for aborted in fetched.aborted_transactions or []:
            open_aborts.setdefault(aborted.producer_id, []).append(aborted.first_offset)
        records = fetched.records or b""
        for at, header in iter_batches(records):
            offset = header.next_offset
            begun = [first for first in open_aborts.get(header.producer_id, []) if first <= header.base_offset]
            if header.is_control:
                open_aborts[header.producer_id] = [
                    first for first in open_aborts.get(header.producer_id, []) if first > header.base_offset
                ]
            elif not begun:
                values += [record.value or b"" for record in decode_records(records, at, header)]
    return values
