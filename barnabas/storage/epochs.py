"""Leader epoch cache: the start offset of each leader epoch (KIP-101, KIP-279). Both strictly increase."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

NO_EPOCH = -1
NO_OFFSET = -1


class EpochCache:
    """Leader epochs of one partition. `dirty`: changed since the last write."""

    __slots__ = ("_epochs", "_starts", "dirty")

    def __init__(self, entries: Sequence[tuple[int, int]] = ()) -> None:
        self._epochs = [epoch for epoch, _ in entries]
        self._starts = [start for _, start in entries]
        self.dirty = False

    @property
    def latest_epoch(self) -> int:
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Adds an unknown `epoch`. Removes entries that contradict it (same or higher epoch or offset)."""
        epochs, starts = self._epochs, self._starts
        if epochs and epoch == epochs[-1] and start_offset >= starts[-1]:
            return
        if epoch < 0:
            return
        while epochs and (epochs[-1] >= epoch or starts[-1] >= start_offset):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(start_offset)
        self.dirty = True

    def end_offset_for_epoch(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Largest known epoch ≤ `epoch` and its exclusive end offset; (NO_EPOCH, NO_OFFSET) above all (KIP-279)."""
        if epoch == NO_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return NO_EPOCH, NO_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        index = bisect_right(self._epochs, epoch)
        if index == 0:
            return epoch, self._starts[0]
        return self._epochs[index - 1], self._starts[index]

    def epoch_for_offset(self, offset: int) -> int:
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Removes epochs that begin at or after `end_offset`."""
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
            self.dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Removes epochs that end at or before `start_offset`. The epoch that contains it begins there."""
        index = bisect_right(self._starts, start_offset) - 1
        if index < 0 or (index == 0 and self._starts[0] == start_offset):
            return
        del self._epochs[:index]
        del self._starts[:index]
        self._starts[0] = start_offset
        self.dirty = True

    def clear(self) -> None:
        self.dirty = self.dirty or bool(self._epochs)
        self._epochs.clear()
        self._starts.clear()
