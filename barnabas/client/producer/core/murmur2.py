"""Kafka's murmur2 hash, which assigns keys to partitions as Java's producer does (librdkafka's default is CRC32).
mypyc compiles this module if possible (setup.py).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import i64  # an int in Python, a machine word in mypyc; bits above 32 are masked off


def murmur2(data: bytes) -> int:
    """32-bit and unsigned, with Kafka's seed."""
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
    """Partition of a key in Java's default partitioner, with `partition_count` ≥ 1."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
