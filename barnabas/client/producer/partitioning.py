"""The sticky choice of a partition, for records without a key (those with one: `murmur2`).

One partition takes `batch_size` bytes, then another is drawn, weighted towards partitions with fewer waiting batches (KIP-480,
KIP-794).

Invariants: no clock; randomness only from the Rng port, so a seeded run draws the same partitions.
"""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.ports import Rng

__all__ = ["StickyPartitioner"]


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
        self.room_bytes = 0  # what `current` still takes; the caller counts it down. Not positive: draw another

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
