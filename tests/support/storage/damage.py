"""Damage of a batch in a log, by kind."""

from __future__ import annotations

import struct
from collections.abc import Callable

from barnabas.protocol.checksum import crc32c

RECORDS = 3
Damage = Callable[[bytearray], None]


def field(at: int, layout: str, value: int, *, sealed: bool = False) -> Damage:
    def change(batch: bytearray) -> None:
        struct.pack_into(layout, batch, at, value)
        if sealed:
            struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))

    return change


def payload(batch: bytearray) -> None:
    for at in range(61, len(batch)):
        batch[at] ^= 0xA5


HEADER_DAMAGE = {
    "length 0": field(8, ">i", 0),
    "length -12": field(8, ">i", -12),
    "length -2^31": field(8, ">i", -(2**31)),
    "length 2^31-1": field(8, ">i", 2**31 - 1),
    "length one more": field(8, ">i", 1 << 20),
    "magic 7": field(16, ">b", 7),
    "delta -1": field(23, ">i", -1),
    "base offset -1": field(0, ">q", -1),
}
PAYLOAD_DAMAGE = {
    "payload": payload,
    "count 2^31-1": field(57, ">i", 2**31 - 1, sealed=True),
    "count -1": field(57, ">i", -1, sealed=True),
    "one record fewer": field(57, ">i", RECORDS - 1, sealed=True),
    "codec 7": field(21, ">h", 7, sealed=True),
}
ALL_DAMAGE = HEADER_DAMAGE | PAYLOAD_DAMAGE
