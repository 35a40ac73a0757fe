"""MemoryBudget: memory shared by connections, without I/O. One budget for frames, one for unread responses."""

from __future__ import annotations

from typing import Final, Protocol

ORDINARY_BUFFER_BYTES: Final = 64 * 1024  # of a connection, before it counts against the budget
ANSWER_BYTES_LEAST: Final = 128 * 1024  # of records that a Fetch may always request, whatever other peers leave unread
SMALL_FRAME_BYTES: Final = 1280 * 1024  # a usual Produce request (max.request.size is 1 MiB) and what is held before it
SWEEP_MS: Final = 1_000
SWEEPS_MAX: Final = (
    30  # of a frame that has room while others wait: 30 s, after which Kafka's clients give a request up
)
SWEEPS_EXTRA: Final = 2  # by which a frame may be late: packets are lost


class Holder(Protocol):
    """A connection, as the budget sees it."""

    @property
    def reserved_bytes(self) -> int:
        """Bytes of its incomplete frame and of held frames."""
        ...

    @property
    def arrived(self) -> float:
        """The part of its incomplete frame that has arrived; 1 if none is incomplete, or if its client is throttled."""
        ...

    def stalls(self) -> bool:
        """Whether nothing has arrived since the last call, although the connection is read."""
        ...

    def on_room(self) -> None:
        """Others have released room: it asks again."""
        ...

    def evict(self) -> None:
        """Must close: others need its room."""
        ...


class _Share:
    """Room for small frames, or for large ones."""

    __slots__ = ("bytes_max", "feeding", "used_bytes", "waiting")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.waiting: dict[Holder, None] = {}  # in order of arrival
        self.feeding = False


class MemoryBudget:
    """Byte budgets of connections.

    A frame above an ordinary buffer reserves its whole length before more is read. Frames wait for room in request
    order; small ones have a share of their own and never wait for large ones. No connections wait for each other: what
    one holds while it waits are whole frames, which are served. Above `unread_bytes_max`, Fetch responses get short and
    connections with unread responses are not served.

    Args:
        frame_bytes_max: of all incomplete and held frames together. One frame alone in its share may be larger.
        unread_bytes_max: of all responses that peers leave unread, together.
        small_bytes_max: of `frame_bytes_max`, for frames up to SMALL_FRAME_BYTES only; 0: all frames share everything.
        ordinary_bytes: of a connection, not counted.
        evicts: a frame evicts the oldest holders instead of waiting: for unauthenticated peers.
    """

    def __init__(
        self,
        frame_bytes_max: int,
        unread_bytes_max: int,
        *,
        small_bytes_max: int = 0,
        ordinary_bytes: int = ORDINARY_BUFFER_BYTES,
        evicts: bool = False,
    ) -> None:
        self._unread_bytes_max = unread_bytes_max
        self.ordinary_bytes = ordinary_bytes
        self._evicts = evicts
        self.unread_bytes = 0
        self.frame_bytes = 0
        self._unread: dict[Holder, int] = {}
        self._large: dict[Holder, int] = {}  # bytes reserved by each holder, oldest first
        self._sweeps: dict[Holder, int] = {}  # that a holder has seen while others waited
        large = _Share(frame_bytes_max - small_bytes_max)
        self._shares = (_Share(small_bytes_max) if small_bytes_max else large, large)

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
        share, former = self._share(wanted), self._share(held)
        if wanted > held:
            while self._evicts and self._large and share.used_bytes - held + wanted > share.bytes_max:
                oldest = next(iter(self._large))
                if oldest is holder:
                    break
                oldest.evict()
                self.forget(oldest)
            own_bytes = held if former is share else 0
            first = next(iter(share.waiting), holder) is holder
            fits = share.used_bytes - own_bytes + wanted <= share.bytes_max or share.used_bytes == own_bytes
            if not (first and fits):
                share.waiting[holder] = None
                self._end_waiting(holder, but=share)
                return False
        self._reserve(holder, wanted, held)
        self._end_waiting(holder)
        if wanted < held or former is not share:
            self._feed(former)
        return True

    def release(self, holder: Holder) -> None:
        self.on_unread(holder, 0)
        self.forget(holder)

    def sweep(self) -> None:
        """Called every SWEEP_MS: evicts connections whose frames stall or arrive too slowly, if others wait for their room."""
        before, self._sweeps = self._sweeps, {}
        for holder, held in list(self._large.items()):
            arrived = holder.arrived
            if arrived == 1 or holder.reserved_bytes > held or not self._share(held).waiting:
                continue
            seen = self._sweeps[holder] = before.get(holder, 0) + 1
            stalls = holder.stalls() and seen > 1
            if stalls or arrived * SWEEPS_MAX < seen - SWEEPS_EXTRA:
                holder.evict()

    def forget(self, holder: Holder) -> None:
        held = self._large.get(holder, 0)
        if held:
            self._reserve(holder, 0, held)
            del self._large[holder]
            self._sweeps.pop(holder, None)
        self._end_waiting(holder)
        if held:
            self._feed(self._share(held))

    def _share(self, size_bytes: int) -> _Share:
        return self._shares[size_bytes > SMALL_FRAME_BYTES]

    def _reserve(self, holder: Holder, size_bytes: int, held: int) -> None:
        self._large[holder] = size_bytes
        self.frame_bytes += size_bytes - held
        self._share(held).used_bytes -= held
        self._share(size_bytes).used_bytes += size_bytes

    def _end_waiting(self, holder: Holder, but: _Share | None = None) -> None:
        for share in self._shares:
            if share is not but and holder in share.waiting:
                del share.waiting[holder]
                self._feed(share)

    def _feed(self, share: _Share) -> None:
        if share.feeding:
            return
        share.feeding = True
        while share.waiting:
            first = next(iter(share.waiting))
            first.on_room()
            if next(iter(share.waiting), None) is first:  # rejected again
                break
        share.feeding = False
