"""Coordinator partition of a group or transactional id, by Java's string hash, as in Kafka."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)  # for every request of a group or transactional id
def java_hash(text: str) -> int:
    """`String.hashCode()` of Java: over UTF-16 code units, wrapped to a signed 32-bit integer."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        encoded = text.encode("utf-16-le", "surrogatepass")
        for at in range(0, len(encoded), 2):
            value = (31 * value + (encoded[at] | encoded[at + 1] << 8)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for(key: str, partition_count: int) -> int:
    """`partition_count` must be positive."""
    value = java_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count
