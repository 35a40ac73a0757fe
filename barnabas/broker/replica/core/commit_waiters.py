"""CommitWaiters: callbacks that wait until a replica's high watermark has reached an offset."""

from __future__ import annotations

import heapq

from barnabas.broker.api.call import Done
from barnabas.errors import BrokerError


class CommitWaiters:
    """The callbacks of one replica, in the order of their offsets, then of their arrival.

    A callback may change its replica: append, fail it, add another callback, which waits for the next call.
    """

    __slots__ = ("_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Done[None]]] = []  # by next offset, then arrival
        self._sequence = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, next_offset: int, done: Done[None]) -> None:
        """Calls `done(None)` once everything below `next_offset` is committed, or `done(error)` if it is refused."""
        self._sequence += 1
        heapq.heappush(self._heap, (next_offset, self._sequence, done))

    def release(self, high_watermark: int) -> None:
        # Read again for each callback: one that fails the replica refuses all others and replaces the heap.
        while self._heap and self._heap[0][0] <= high_watermark:
            heapq.heappop(self._heap)[2](None)

    def refuse(self, error: BrokerError) -> None:
        waiting, self._heap = sorted(self._heap, key=lambda entry: entry[:2]), []
        for _, _, done in waiting:
            done(error)
