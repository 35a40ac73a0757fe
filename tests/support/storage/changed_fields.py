"""Batches with one field of the header changed."""

from __future__ import annotations

import struct

from barnabas.protocol.checksum import crc32c

FIELDS = {  # name -> (position, format)
    "base_offset": (0, ">q"),
    "batch_length": (8, ">i"),
    "leader_epoch": (12, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "record_count": (57, ">i"),
}


def changed(batch: bytearray, **fields: int) -> bytearray:
    """The batch with header fields overwritten and a correct checksum."""
    for name, value in fields.items():
        position, layout = FIELDS[name]
        struct.pack_into(layout, batch, position, value)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch
