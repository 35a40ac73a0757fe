"""Aborted transactions of a segment (.txnindex, KIP-98): those whose markers are in it, in the order of the markers."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size
_VERSION = 0


class AbortedTxn(NamedTuple):
    """One aborted transaction. All offsets are inclusive except `last_stable_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int  # of its marker
    last_stable_offset: int  # no transaction at or above it was complete when the marker was appended


def encode_aborted(entries: Iterable[AbortedTxn]) -> bytes:
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


def decode_aborted(data: bytes, base_offset: int) -> list[AbortedTxn] | None:
    """None if the file is damaged and must be rebuilt."""
    if len(data) % ENTRY_SIZE:
        return None
    entries: list[AbortedTxn] = []
    last_offset = base_offset - 1
    for version, *fields in _ENTRY.iter_unpack(data):
        entry = AbortedTxn(*fields)
        if (
            version > _VERSION
            or version < 0
            or entry.last_offset <= last_offset
            or entry.first_offset > entry.last_offset
        ):
            return None
        entries.append(entry)
        last_offset = entry.last_offset
    return entries
