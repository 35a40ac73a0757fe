"""Deadlines of one shard: keyed, moved often, mostly never reached.

Driven by: `set`, `cancel`, and `pop` with the present time.
Emits: the keys that are due, earliest first; `earliest_ms` says when to look again.

A heartbeat moves its member's deadline on: that is one dictionary write. The heap holds at most one useful entry a key, the one
it was first given; when its time comes and the deadline has moved on meanwhile, it is pushed again.

Invariants: each key with a deadline has a heap entry that is not later than it; equal deadlines come in the order of arrival.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Deadlines"]

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """Deadlines in monotonic milliseconds, by key."""

    __slots__ = ("_due", "_heap", "_queued", "_sequence")

    def __init__(self) -> None:
        self._due: dict[K, int] = {}
        self._queued: dict[K, int] = {}  # deadline of the key's live heap entry
        self._heap: list[tuple[int, int, K]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def get(self, key: K) -> int | None:
        """The key's deadline, None where it has none."""
        return self._due.get(key)

    def set(self, key: K, deadline_ms: int) -> None:
        """Sets or moves the key's deadline."""
        self._due[key] = deadline_ms
        queued = self._queued.get(key)
        if queued is None or deadline_ms < queued:
            self._push(key, deadline_ms)

    def cancel(self, key: K) -> None:
        """Forgets the key's deadline; harmless where it has none."""
        self._due.pop(key, None)

    def earliest_ms(self) -> int | None:
        """When `pop` may next return something; it may also find nothing then. None: never."""
        if not self._due:
            self._heap.clear()
            self._queued.clear()
            return None
        return self._heap[0][0]

    def pop(self, now_ms: int) -> K | None:
        """The earliest key that is due at `now_ms`, which has no deadline afterwards; None where none is."""
        while self._heap and self._heap[0][0] <= now_ms:
            queued_ms, _, key = heapq.heappop(self._heap)
            if self._queued.get(key) != queued_ms:
                continue  # superseded by an earlier entry
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
