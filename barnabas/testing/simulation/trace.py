"""Trace: a running hash over everything that happened, so that two runs can be compared by one line.

Driven by: the loop (timers), the network (deliveries) and the disks (changes), through `note`.
Emits: `digest`; the last events in words, for the report of a failure; all of them where a log is asked for.

Invariants: what is noted depends on the seed alone: no ids, addresses, hash orders or wall clock go in.
"""

from __future__ import annotations

import hashlib
from collections import deque

__all__ = ["Trace"]


class Trace:
    """The history of one simulated run.

    Args:
        keep: how many of the last events stay readable; None keeps all, to compare two runs event by event.
    """

    __slots__ = ("_hash", "_last", "events")

    def __init__(self, *, keep: int | None = 40) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._last: deque[str] = deque(maxlen=keep)
        self.events = 0

    def note(self, now_ns: int, event: str) -> None:
        """Adds one event at a virtual time."""
        line = f"{now_ns} {event}"
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self._last.append(line)
        self.events += 1

    @property
    def digest(self) -> str:
        """The hash of all events so far, in hexadecimal."""
        return self._hash.hexdigest()

    def last(self) -> list[str]:
        """The last events, oldest first: virtual nanoseconds and what happened."""
        return list(self._last)
