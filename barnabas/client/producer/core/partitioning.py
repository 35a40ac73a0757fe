"""Sticky partitioner for records without a key (KIP-480, KIP-794)."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.ports import Rng


class StickyPartitioner:
    """Draws another partition after `batch_size` bytes, one with few waiting batches more likely."""

    __slots__ = ("_batch_size", "_rng", "current", "room_bytes")

    def __init__(self, batch_size: int, rng: Rng) -> None:
        self._batch_size = batch_size
        self._rng = rng
        self.current = -1  # −1 before the first choice
        self.room_bytes = 0  # bytes left for `current`; the caller subtracts each record. If not positive, another partition is chosen

    def choose(self, available: Sequence[int], waiting: Sequence[int]) -> int:
        """The partition to use now; `waiting` counts the waiting batches of each of the `available` partitions (≥ 1)."""
        if self.room_bytes <= 0 or self.current not in available:
            self.room_bytes = self._batch_size
            self.current = self._draw(available, waiting)
        return self.current

    def _draw(self, available: Sequence[int], waiting: Sequence[int]) -> int:
        # KIP-794: the weight of a partition is longest queue + 1 − its own queue, so an empty queue is most likely.
        top = max(waiting) + 1
        total = sum(top - length for length in waiting)
        pick = self._rng.randrange(total)
        for partition, length in zip(available, waiting, strict=True):
            pick -= top - length
            if pick < 0:
                return partition
        return available[-1]
