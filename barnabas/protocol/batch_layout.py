"""Record batch header v2 (KIP-98): fields, offsets, sizes and attribute bits, stated only here."""

from __future__ import annotations

from struct import Struct
from typing import Final

# (field, struct code), big-endian and without gaps.
FIELDS: Final = (
    ("base_offset", "q"),  # offset of the first record
    ("batch_length", "i"),  # bytes after this field
    ("leader_epoch", "i"),  # of the leader that appended the batch; -1 from a client
    ("magic", "b"),  # 2
    ("crc", "I"),  # CRC-32C of all bytes after this field
    ("attributes", "h"),
    ("last_offset_delta", "i"),  # offset of the last record − base_offset
    ("base_timestamp", "q"),  # ms since the Unix epoch; with a delete horizon, the horizon
    ("max_timestamp", "q"),  # ms since the Unix epoch
    ("producer_id", "q"),  # -1 without one
    ("producer_epoch", "h"),
    ("base_sequence", "i"),
    ("record_count", "i"),
)


def offset_of(field: str) -> int:
    position = 0
    for name, code in FIELDS:
        if name == field:
            return position
        position += Struct(">" + code).size
    raise KeyError(field)


def struct_of(*fields: str) -> Struct:
    """These fields, from the header's first byte on; for `unpack_from` only: `pack_into` would zero skipped fields."""
    unknown = set(fields) - {name for name, _ in FIELDS}
    if unknown:
        raise KeyError(*sorted(unknown))
    return Struct(">" + "".join(code if name in fields else f"{Struct('>' + code).size}x" for name, code in FIELDS))


def _struct_between(first: str, last: str) -> Struct:
    """A Struct of neighbouring fields, both ends included, at the offset of `first`."""
    names = [name for name, _ in FIELDS]
    return Struct(">" + "".join(code for _, code in FIELDS[names.index(first) : names.index(last) + 1]))


HEADER: Final = struct_of(*(name for name, _ in FIELDS))
UP_TO_CRC: Final = _struct_between("base_offset", "crc")
EXTENT: Final = struct_of("base_offset", "batch_length", "magic", "last_offset_delta")  # where a batch begins and ends
FROM_ATTRIBUTES: Final = _struct_between("attributes", "record_count")

# Bound methods: looking up the method of an imported name costs 30 ns more in CPython 3.11.
# `unpack_*(buffer, position)` returns a tuple, `pack_*(buffer, position, …)` writes in place, at the first field's position.
unpack_header: Final = HEADER.unpack_from
unpack_extent: Final = EXTENT.unpack_from
unpack_batch_length: Final = _struct_between("batch_length", "batch_length").unpack_from
unpack_crc: Final = _struct_between("crc", "crc").unpack_from
pack_up_to_crc: Final = UP_TO_CRC.pack_into
pack_from_attributes: Final = FROM_ATTRIBUTES.pack_into
pack_base_offset: Final = _struct_between("base_offset", "base_offset").pack_into
pack_leader_epoch: Final = _struct_between("leader_epoch", "leader_epoch").pack_into
pack_crc: Final = _struct_between("crc", "crc").pack_into
pack_attributes: Final = _struct_between("attributes", "attributes").pack_into
pack_max_timestamp: Final = _struct_between("max_timestamp", "max_timestamp").pack_into

BATCH_LENGTH_OFFSET: Final = offset_of("batch_length")
LEADER_EPOCH_OFFSET: Final = offset_of("leader_epoch")
MAGIC_OFFSET: Final = offset_of("magic")
CRC_OFFSET: Final = offset_of("crc")
ATTRIBUTES_OFFSET: Final = offset_of("attributes")
MAX_TIMESTAMP_OFFSET: Final = offset_of("max_timestamp")

HEADER_SIZE: Final = HEADER.size
LENGTH_OVERHEAD: Final = LEADER_EPOCH_OFFSET  # base_offset and batch_length, which batch_length does not count
BATCH_LENGTH_MIN: Final = HEADER_SIZE - LENGTH_OVERHEAD  # of a batch without records
CRC_COVERS_FROM: Final = ATTRIBUTES_OFFSET  # up to the end of the batch

MAGIC: Final = 2
NO_TIMESTAMP: Final = -1

# Bits of the attributes.
COMPRESSION_MASK: Final = 0x07  # number of the codec
ATTRIBUTE_LOG_APPEND_TIME: Final = 0x08
ATTRIBUTE_TRANSACTIONAL: Final = 0x10
ATTRIBUTE_CONTROL: Final = 0x20
ATTRIBUTE_DELETE_HORIZON: Final = 0x40  # base_timestamp is the delete horizon (KIP-534)

# Timestamp types.
CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
