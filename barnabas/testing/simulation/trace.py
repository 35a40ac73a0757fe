"""Trace: a running hash over all events, which compares two runs by one value.

Invariants: events depend only on the seed, not on ids, addresses, hash orders or the wall clock.
"""

from __future__ import annotations

import hashlib
from collections import deque


class Trace:
    """The history of one simulated run.

    Args:
        keep: number of last events whose text is kept; None keeps all, to compare two runs event by event.
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
        """The last events, oldest first: virtual nanoseconds and text."""
        return list(self._last)
