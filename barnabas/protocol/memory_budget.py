"""MemoryBudget: memory shared by connections, without I/O. One budget for frames, one for unread responses."""

from __future__ import annotations

from typing import Final, Protocol

ORDINARY_BUFFER_BYTES: Final = 64 * 1024  # of a connection, before it counts against the budget
ANSWER_BYTES_LEAST: Final = 128 * 1024  # of records that a Fetch may always request, whatever other peers leave unread
SWEEPS_MAX: Final = 6  # of a frame that has room while others wait: 30 s, after which Kafka's clients give a request up


class Holder(Protocol):
    """A connection, as the budget sees it."""

    @property
    def reserved_bytes(self) -> int:
        """Bytes of its incomplete frame and of held frames."""
        ...

    @property
    def receives(self) -> bool:
        """Whether its frame is incomplete."""
        ...

    def on_room(self) -> None:
        """Others have released room: it asks again."""
        ...

    def evict(self) -> None:
        """Must close: others need its room."""
        ...


class MemoryBudget:
    """Byte budgets of connections.

    A frame above an ordinary buffer reserves its whole length before more is read. Frames wait for room in request
    order. Above `unread_bytes_max`, Fetch responses get short and connections with unread responses are not served.

    Args:
        frame_bytes_max: of all incomplete and held frames together. One frame alone may be larger.
        unread_bytes_max: of all responses that peers leave unread, together.
        ordinary_bytes: of a connection, not counted.
        evicts: a frame evicts the oldest holders instead of waiting: for unauthenticated peers.
    """

    def __init__(
        self,
        frame_bytes_max: int,
        unread_bytes_max: int,
        *,
        ordinary_bytes: int = ORDINARY_BUFFER_BYTES,
        evicts: bool = False,
    ) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._unread_bytes_max = unread_bytes_max
        self.ordinary_bytes = ordinary_bytes
        self._evicts = evicts
        self.unread_bytes = 0
        self.frame_bytes = 0
        self._unread: dict[Holder, int] = {}
        self._large: dict[Holder, int] = {}  # bytes reserved by each holder, oldest first
        self._waiting: dict[Holder, None] = {}  # for room, in order of arrival
        self._sweeps: dict[Holder, int] = {}  # that a holder has seen while others waited
        self._feeding = False

    @property
    def is_crowded(self) -> bool:
        return self.unread_bytes > self._unread_bytes_max

    def answer_bytes_max(self, wanted: int) -> int:
        """Record bytes that one response may carry; fewer while peers leave responses unread."""
        return min(wanted, max(self._unread_bytes_max - self.unread_bytes, ANSWER_BYTES_LEAST))

    def on_unread(self, holder: Holder, size_bytes: int) -> None:
        """A peer leaves `size_bytes` unread; 0 if it reads again."""
        self.unread_bytes += size_bytes - self._unread.pop(holder, 0)
        if size_bytes:
            self._unread[holder] = size_bytes

    def room_for(self, holder: Holder) -> bool:
        """Whether a connection may read. If not, its `on_room` is called later."""
        wanted, held = holder.reserved_bytes, self._large.get(holder, 0)
        if wanted <= self.ordinary_bytes:
            self.forget(holder)
            return True
        if wanted > held:
            while self._evicts and self._large and self.frame_bytes - held + wanted > self._frame_bytes_max:
                oldest = next(iter(self._large))
                if oldest is holder:
                    break
                oldest.evict()
                self.forget(oldest)
            first = next(iter(self._waiting), holder) is holder
            fits = self.frame_bytes - held + wanted <= self._frame_bytes_max or self.frame_bytes == held
            if not (first and fits):
                self._waiting[holder] = None
                return False
        self._waiting.pop(holder, None)
        self._large[holder] = wanted
        self.frame_bytes += wanted - held
        if wanted < held:
            self._feed()
        return True

    def release(self, holder: Holder) -> None:
        self.on_unread(holder, 0)
        self.forget(holder)

    def sweep(self) -> None:
        """Called every 5 s: evicts connections with overdue frames if others wait for room."""
        before, self._sweeps = self._sweeps, {}
        if not self._waiting:
            return
        for holder in list(self._large):
            seen = self._sweeps[holder] = before.get(holder, 0) + 1
            if seen > SWEEPS_MAX and holder.receives:
                holder.evict()

    def forget(self, holder: Holder) -> None:
        waits = holder in self._waiting
        if waits:
            del self._waiting[holder]
        if holder in self._large or waits:
            self.frame_bytes -= self._large.pop(holder, 0)
            self._sweeps.pop(holder, None)
            self._feed()

    def _feed(self) -> None:
        if self._feeding:
            return
        self._feeding = True
        while self._waiting:
            first = next(iter(self._waiting))
            first.on_room()
            if next(iter(self._waiting), None) is first:  # rejected again
                break
        self._feeding = False
