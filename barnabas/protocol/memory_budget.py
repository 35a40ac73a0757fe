"""MemoryBudget: the memory that all connections of a server share, without I/O.

Driven by: `ServerConnection`, which names the bytes that it holds. Emits: whether a connection may read on, and how
long answers may be.

Two budgets. Frames under construction and frames that wait: a connection with more than an ordinary buffer reads only
while all of them fit, but the oldest one always continues, so that all complete. Answers that peers leave unread: above
the budget Fetch answers get short, and connections with unread answers are served no more requests.
"""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["ORDINARY_BUFFER_BYTES", "Holder", "MemoryBudget"]

ORDINARY_BUFFER_BYTES: Final = 1024 * 1024  # of a connection, before it counts against the budget
ANSWER_BYTES_LEAST: Final = 128 * 1024  # of records that a Fetch may always request, whatever other peers leave unread


class Holder(Protocol):
    """A connection, as the budget uses it."""

    @property
    def reserved_bytes(self) -> int:
        """Bytes of its frame under construction and of its frames that wait."""
        ...

    def on_room(self) -> None:
        """It was refused room, and other connections have released some."""
        ...


class MemoryBudget:
    """The byte budgets of all connections of a server.

    Args:
        frame_bytes_max: of all frames under construction and frames that wait, together.
        unread_bytes_max: of all answers that peers leave unread, together.

    Attributes:
        unread_bytes: bytes of answers that peers leave unread, together.
    """

    def __init__(self, frame_bytes_max: int, unread_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._unread_bytes_max = unread_bytes_max
        self.unread_bytes = 0
        self._unread: dict[Holder, int] = {}
        self._large: dict[Holder, int] = {}  # bytes reserved by holders with more than an ordinary buffer, oldest first
        self._starved: dict[Holder, None] = {}  # large frames that wait for room, in order of arrival

    @property
    def is_crowded(self) -> bool:
        """Whether peers leave more unread than the budget."""
        return self.unread_bytes > self._unread_bytes_max

    def answer_bytes_max(self, wanted: int) -> int:
        """How many bytes of records one answer may carry; fewer while peers leave answers unread."""
        return min(wanted, max(self._unread_bytes_max - self.unread_bytes, ANSWER_BYTES_LEAST))

    def on_unread(self, holder: Holder, size_bytes: int) -> None:
        """A peer leaves `size_bytes` of its answers unread; 0 if it reads again."""
        self.unread_bytes += size_bytes - self._unread.pop(holder, 0)
        if size_bytes:
            self._unread[holder] = size_bytes

    def room_for(self, holder: Holder) -> bool:
        """Whether a connection may read on. If not, its `on_room` is called when others have released room."""
        reserved = holder.reserved_bytes
        if reserved <= ORDINARY_BUFFER_BYTES:
            if self._large.pop(holder, None) is not None:
                self._feed_starved()
            return True
        self._large[holder] = reserved
        if sum(self._large.values()) <= self._frame_bytes_max or next(iter(self._large)) is holder:
            return True
        self._starved[holder] = None
        return False

    def release(self, holder: Holder) -> None:
        """A connection ended."""
        self.on_unread(holder, 0)
        self._starved.pop(holder, None)
        if self._large.pop(holder, None) is not None:
            self._feed_starved()

    def _feed_starved(self) -> None:
        starved, self._starved = self._starved, {}
        for holder in starved:
            holder.on_room()
