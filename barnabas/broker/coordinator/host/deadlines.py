"""Deadlines of one shard, by key."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """Deadlines in monotonic ms. A heartbeat moves its member's deadline by one dictionary write.

    The heap has one valid entry for each key, not later than its deadline; when it is due and the deadline was moved, it is pushed again.
    Equal deadlines come in the order of arrival.
    """

    __slots__ = ("_due", "_heap", "_queued", "_sequence")

    def __init__(self) -> None:
        self._due: dict[K, int] = {}
        self._queued: dict[K, int] = {}  # deadline of the key's valid heap entry
        self._heap: list[tuple[int, int, K]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def get(self, key: K) -> int | None:
        return self._due.get(key)

    def set(self, key: K, deadline_ms: int) -> None:
        self._due[key] = deadline_ms
        queued = self._queued.get(key)
        if queued is None or deadline_ms < queued:
            self._push(key, deadline_ms)

    def cancel(self, key: K) -> None:
        self._due.pop(key, None)

    def earliest_ms(self) -> int | None:
        """When to call `pop` next; it may find nothing then. None without deadlines."""
        if not self._due:
            self._heap.clear()
            self._queued.clear()
            return None
        return self._heap[0][0]

    def pop(self, now_ms: int) -> K | None:
        """Removes and returns the earliest key that is due at `now_ms`; None if no key is due."""
        while self._heap and self._heap[0][0] <= now_ms:
            queued_ms, _, key = heapq.heappop(self._heap)
            if self._queued.get(key) != queued_ms:
                continue  # replaced by an earlier entry
            del self._queued[key]
            deadline_ms = self._due.get(key)
            if deadline_ms is None:
                continue
            if deadline_ms > now_ms:
                self._push(key, deadline_ms)
                continue
            del self._due[key]
            return key
        return None

    def _push(self, key: K, deadline_ms: int) -> None:
        self._sequence += 1
        self._queued[key] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, self._sequence, key))
