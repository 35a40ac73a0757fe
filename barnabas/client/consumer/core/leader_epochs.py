"""Leader epochs of the records fetched from one partition, to find truncations (KIP-320, KIP-279)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from barnabas.limits import EPOCHS_REMEMBERED_MAX


class LeaderEpochHistory:
    """Leader epochs up to a fetch position, strictly increasing. An entry has the first fetched offset of an epoch."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []

    @property
    def latest(self) -> int:
        """Epoch of the last record before the fetch position; −1 unknown."""
        return self._epochs[-1] if self._epochs else -1

    def begin(self, epoch: int = -1, offset: int = 0) -> None:
        """Clears the history; `epoch` ≥ 0 becomes that of the record before `offset`."""
        self._epochs.clear()
        self._starts.clear()
        if epoch >= 0 and offset > 0:
            self._epochs.append(epoch)
            self._starts.append(offset - 1)

    def note(self, epoch: int, offset: int) -> None:
        """The records from `offset` on have `epoch`. An epoch that is not newer is ignored."""
        if epoch > self.latest:
            self._epochs.append(epoch)
            self._starts.append(offset)
            if len(self._epochs) > EPOCHS_REMEMBERED_MAX:
                del self._epochs[0], self._starts[0]

    def before(self, offset: int) -> int:
        index = bisect_left(self._starts, offset)
        return self._epochs[index - 1] if index else -1

    def covers(self, offset: int) -> bool:
        return bool(self._starts) and offset > self._starts[0]

    def cut(self, offset: int) -> None:
        index = bisect_left(self._starts, offset)
        del self._epochs[index:], self._starts[index:]

    def divergence(self, epoch: int, end_offset: int) -> int:
        """First offset where the logs may differ, if the leader's last common epoch `epoch` ends at `end_offset`."""
        index = bisect_right(self._epochs, epoch)
        return min(end_offset, self._starts[index]) if index < len(self._starts) else end_offset
