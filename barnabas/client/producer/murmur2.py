"""Kafka's murmur2, by which keys find their partitions: a loop over the key's bytes that mypyc compiles where it can (setup.py).

Seed 0x9747b28c, sign bit cleared, modulo the number of partitions, so that keys land where Java's producer puts them;
librdkafka's default is CRC32 instead.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import i64  # an int to Python, a machine word to mypyc; what is above 32 bits is masked away

__all__ = ["murmur2", "partition_for_key"]


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 of `data`, as an unsigned int."""
    mask: i64 = 0xFFFFFFFF
    m: i64 = 0x5BD1E995
    length: i64 = len(data)
    h: i64 = (0x9747B28C ^ length) & mask
    words: i64 = length >> 2
    k: i64
    for k in struct.unpack_from(f"<{words}I", data):
        k = (k * m) & mask
        h = ((h * m) & mask) ^ (((k ^ (k >> 24)) * m) & mask)
    if length & 3:
        rest: i64 = int.from_bytes(data[words << 2 :], "little")
        h = ((h ^ rest) * m) & mask
    h = ((h ^ (h >> 13)) * m) & mask
    return h ^ (h >> 15)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of `key` in a topic of `partition_count` (≥ 1) partitions: Java's default partitioner."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
