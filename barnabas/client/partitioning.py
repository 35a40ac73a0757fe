"""Which partition a record goes to: murmur2 of its key, or a sticky choice where it has none.

Keys: Kafka's murmur2 (seed 0x9747b28c), sign bit cleared, modulo the number of partitions, so that keys land where Java's
producer puts them. librdkafka's default is CRC32 instead. Without a key: one partition takes `batch_size` bytes, then
another is drawn, weighted towards partitions with fewer waiting batches (KIP-480, KIP-794).

Invariants: no clock; randomness only from the Rng port, so a seeded run draws the same partitions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from barnabas.ports import Rng

__all__ = ["StickyPartitioner", "murmur2", "partition_for_key"]

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 of `data`, as an unsigned int."""
    length = len(data)
    h = _SEED ^ length
    words = length >> 2
    for k in struct.unpack_from(f"<{words}I", data):
        k = (k * _M) & _MASK
        h = ((h * _M) & _MASK) ^ (((k ^ (k >> 24)) * _M) & _MASK)
    rest = length & 3
    if rest:
        h ^= int.from_bytes(data[words << 2 :], "little")
        h = (h * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of `key` in a topic of `partition_count` (≥ 1) partitions: Java's default partitioner."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitioner:
    """The partition of one topic's records that have no key.

    Args:
        batch_size: bytes that a partition takes before another is drawn.
        rng: draws it.
    """

    __slots__ = ("_batch_size", "_rng", "current", "room_bytes")

    def __init__(self, batch_size: int, rng: Rng) -> None:
        self._batch_size = batch_size
        self._rng = rng
        self.current = -1  # −1 = none drawn yet
        self.room_bytes = (
            0  # what `current` still takes; the caller counts it down. Not positive: another is to be drawn
        )

    def choose(self, available: Sequence[int], waiting: Sequence[int]) -> int:
        """The partition to use now.

        Args:
            available: partitions that have a leader, at least one.
            waiting: batches waiting for each of them, in the same order.
        """
        if self.room_bytes <= 0 or self.current not in available:
            self.room_bytes = self._batch_size
            self.current = self._draw(available, waiting)
        return self.current

    def _draw(self, available: Sequence[int], waiting: Sequence[int]) -> int:
        # KIP-794: the weight of a partition is (longest queue + 1 − its own queue), so an empty one is drawn most often.
        top = max(waiting) + 1
        total = sum(top - length for length in waiting)
        pick = self._rng.randrange(total)
        for partition, length in zip(available, waiting, strict=True):
            pick -= top - length
            if pick < 0:
                return partition
        return available[-1]
