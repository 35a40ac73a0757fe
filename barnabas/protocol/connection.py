"""ServerConnection: order and backpressure of a connection's requests and responses, without I/O.
In each turn the shell offers frames (`admits`) or takes held ones (`next_held`), serves them and calls `end_turn`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from barnabas.errors import LocalProtocolError
from barnabas.limits import INFLIGHT_REQUESTS_MAX
from barnabas.ports import Buffer
from barnabas.protocol.framing import FrameReader
from barnabas.protocol.memory_budget import MemoryBudget
from barnabas.protocol.registry import READS

REQUESTS_PER_TURN: Final = 32  # of one connection: at most 2 ms
HELD_BYTES_MAX: Final = 64 * 1024  # of held frames, before reading pauses
LARGE_FRAME_BYTES: Final = 64 * 1024  # from this size a frame has a buffer that is at most four times as large
LARGE_ANSWER_BYTES: Final = 64 * 1024  # from this size every answer counts as unread until it is written
BLOCKED: Final = 1  # a request waits before its effect
MUTED: Final = 2  # the client is throttled
WRITE_BUFFER_HIGH: Final = 1024 * 1024  # bytes of responses a peer may leave unread before its requests are held


class Slot:
    """Slot of one response in the connection's output order.

    Attributes:
        cancel: drops the pending request; called if the connection closes before `fill`.
        only_reads: the request has no effect: it is dropped when its peer leaves.
        unanswerable: no response (Produce with acks=0): the peer expects its effect even after disconnecting.
    """

    __slots__ = ("cancel", "only_reads", "parts", "size_bytes", "unanswerable")

    def __init__(self) -> None:
        self.cancel: Callable[[], None] | None = None
        self.only_reads = False
        self.unanswerable = False
        self.parts: list[Buffer] | None = None  # None: not answered yet
        self.size_bytes = 0  # bytes that count as unread responses of the peer


def kept_frame(frame: memoryview) -> Buffer:
    """A frame to keep after the call: a copy, or the view itself if the frame is most of its buffer."""
    return frame if len(frame) >= LARGE_FRAME_BYTES else bytes(frame)


class ServerConnection:
    """The server's side of one connection.

    Requests are served in order; one that blocks before its effect holds the later ones (as copies). Responses leave in
    request order. A turn serves at most REQUESTS_PER_TURN requests. Above WRITE_BUFFER_HIGH unread bytes, or with any
    unread and the shared budget used up, nothing is served. After the peer's end, only requests with an effect are
    served.

    Args:
        on_room: called when a connection that may not read has room again.
        on_evicted: called when the connection must close because others need its room.

    Attributes:
        ended: the peer sends no more.
        reading: whether the shell reads; the shell sets it after `may_read`.
        silent: nothing has arrived since the last call of `stalls`; the shell resets it when bytes arrive and when it reads again.
        writing_paused: whether the peer leaves its responses unread.
        limited: whether reading may pause or continue, or held requests may be served. Set by `end_turn`.
    """

    __slots__ = (
        "_blocked",
        "_budget",
        "_held",
        "_held_bytes",
        "_on_evicted",
        "_on_room",
        "_out",
        "_out_bytes",
        "_served",
        "_slots",
        "_unread_bytes",
        "_unwritten_bytes",
        "closed",
        "ended",
        "limited",
        "reader",
        "reading",
        "silent",
        "writing_paused",
    )

    def __init__(
        self,
        reader: FrameReader,
        budget: MemoryBudget,
        on_room: Callable[[], None],
        on_evicted: Callable[[], None] | None = None,
    ) -> None:
        self.reader = reader
        self.closed = False
        self.ended = False
        self.reading = True
        self.silent = False
        self.writing_paused = False
        self.limited = False
        self._budget = budget
        self._on_room = on_room
        self._on_evicted = on_evicted or _nothing
        self._blocked = 0  # BLOCKED, MUTED or both: no request is served
        self._held: deque[Buffer] = deque()  # frames that may not be served yet
        self._held_bytes = 0
        self._served = 0  # requests in this turn, long ones counted as several
        self._slots: deque[Slot] = deque()  # empty unless a response waits: then all later responses queue behind it
        self._out: list[Buffer] = []  # responses to write, in order
        # of responses that are not written; small responses count only while they wait for others
        self._unwritten_bytes = 0
        self._out_bytes = 0  # the part of them that is in _out
        self._unread_bytes = 0  # written and not read by the peer, while writing is paused

    # -- requests

    def admits(self, frame: memoryview) -> bool:
        """Whether to serve the request now. Otherwise its frame is held."""
        if (
            self._blocked
            or self._held
            or self._served >= REQUESTS_PER_TURN
            or self.writing_paused
            or (self._unwritten_bytes and self._is_full)
        ):
            self.hold(frame)
            return False
        self._served += 1
        return True

    def hold(self, frame: memoryview) -> None:
        if not self.closed:
            self._held.append(kept_frame(frame))
            self._held_bytes += len(frame)

    def next_held(self) -> memoryview | None:
        """The next held frame to serve; None if this turn may serve no more."""
        if self._served >= REQUESTS_PER_TURN or not self.may_serve_held:
            return None
        self._served += 1
        frame = self._held.popleft()
        self._held_bytes -= len(frame)
        return memoryview(frame)

    def count_long(self, requests: int) -> None:
        """Charges the present request as this number of further ones, because it took as long."""
        self._served += requests

    def block(self, reserved_bytes: int = 0) -> None:
        """The request being served blocks before its effect and keeps `reserved_bytes` of its frame."""
        self._blocked |= BLOCKED
        self._held_bytes += reserved_bytes

    def unblock(self, reserved_bytes: int = 0) -> None:
        """The request has had its effect and releases its bytes."""
        if not self.closed:
            self._blocked &= ~BLOCKED
            self._held_bytes -= reserved_bytes

    def mute(self) -> None:
        """Pauses serving and reading until `unmute`: the client exceeds a quota."""
        self._blocked |= MUTED

    def unmute(self) -> None:
        if not self.closed:
            self._blocked &= ~MUTED

    # -- answers

    def answer(self, parts: list[Buffer]) -> None:
        """Responds to the request being served, at the end of the turn or after earlier responses."""
        if self._slots:
            slot = Slot()
            slot.parts = parts
            self._slots.append(slot)
            self._weigh(slot, parts)
            return
        self._out += parts
        if len(parts) > 1 or len(parts[0]) >= LARGE_ANSWER_BYTES:
            size_bytes = sum(map(len, parts))
            if size_bytes >= LARGE_ANSWER_BYTES:
                self._unwritten_bytes += size_bytes
                self._out_bytes += size_bytes
                self._count_unread()

    def open(self, slot: Slot) -> None:
        """Reserves the slot of the request being served, for a later `fill`."""
        self._slots.append(slot)

    def fill(self, slot: Slot, parts: list[Buffer]) -> None:
        """Completes a pending request; no parts for acks=0. Raises LocalProtocolError if it is complete."""
        if slot.parts is not None:
            raise LocalProtocolError("a request was answered twice")
        slot.cancel = None
        slot.parts = parts
        if self.closed:
            return
        slots = self._slots
        if slots[0] is not slot or len(parts) > 1 or (parts and len(parts[0]) >= LARGE_ANSWER_BYTES):
            self._weigh(slot, parts)
        while slots:
            ready = slots[0].parts
            if ready is None:
                break
            self._out += ready
            self._out_bytes += slots.popleft().size_bytes

    def end_turn(self) -> list[Buffer]:
        """Returns the responses to write now, in order."""
        self._served = 0
        self.limited = not (
            self.reading
            and not self._held
            and self._blocked < MUTED
            and (not self._slots or len(self._slots) < INFLIGHT_REQUESTS_MAX)
        )
        reader, budget = self.reader, self._budget
        if reader.allocated_bytes > budget.ordinary_bytes or reader.wanted_bytes > budget.ordinary_bytes:
            reader.release()
            self.limited = True
        elif budget.frame_bytes:  # perhaps of frames that were held and are served now
            self.limited = True
        out = self._out
        if out:
            self._out = []
            if self._unwritten_bytes:
                self._unwritten_bytes -= self._out_bytes
                self._out_bytes = 0
                self._count_unread()
        return out

    # -- the peer

    def pause_writing(self, unread_bytes: int) -> None:
        """Pauses because the peer leaves `unread_bytes` of written responses unread. Repeated calls update the number."""
        self.writing_paused = True
        self._unread_bytes = unread_bytes
        self._count_unread()

    def resume_writing(self) -> None:
        self.writing_paused = False
        self._unread_bytes = 0
        self._count_unread()

    def end(self) -> None:
        """The peer sends no more. An incomplete frame is dropped."""
        self.ended = True
        self.reading = False
        self.reader.end()
        self.drop_reads()
        self._budget.room_for(self)

    def drop_reads(self) -> None:
        """The peer has disconnected: drops what was received and only reads."""
        self._held_bytes -= sum(map(len, self._held))
        self._held = deque(frame for frame in self._held if int.from_bytes(frame[:2]) not in READS)
        self._held_bytes += sum(map(len, self._held))
        for slot in [slot for slot in self._slots if slot.only_reads]:
            cancel, slot.cancel = slot.cancel, None
            if cancel is not None:
                cancel()
                self.fill(slot, [])

    def _weigh(self, slot: Slot, parts: list[Buffer]) -> None:
        slot.size_bytes = sum(map(len, parts))
        self._unwritten_bytes += slot.size_bytes
        self._count_unread()

    def _count_unread(self) -> None:
        if not self.closed:
            self._budget.on_unread(self, self._unwritten_bytes + self._unread_bytes)

    @property
    def _is_full(self) -> bool:
        return self._unwritten_bytes > WRITE_BUFFER_HIGH or (self._unwritten_bytes > 0 and self._budget.is_crowded)

    # -- next steps of the shell

    @property
    def may_serve_held(self) -> bool:
        return bool(self._held) and not self._blocked and not self.writing_paused and not self._is_full

    def may_read(self) -> bool:
        """Whether the shell may read. If not, `on_room` is called when the shared budget has room."""
        # While a request blocks, a little is still read: only reading notices a peer's close.
        return (
            self._budget.room_for(self)
            and not self.ended
            and not self.writing_paused
            and not self._blocked & MUTED
            and self._held_bytes < HELD_BYTES_MAX
            and len(self._slots) + len(self._held) < INFLIGHT_REQUESTS_MAX
        )

    def on_room(self) -> None:
        self._on_room()

    def evict(self) -> None:
        self._on_evicted()

    @property
    def receives(self) -> bool:
        """Whether a frame above an ordinary buffer is incomplete."""
        return self.reader.wanted_bytes > self._budget.ordinary_bytes

    @property
    def arrived(self) -> float:
        """The part of an incomplete frame above an ordinary buffer that has arrived; 1 without one, or while muted."""
        if not self.receives or self._blocked & MUTED:
            return 1
        return self.reader.buffered_bytes / self.reader.wanted_bytes

    def stalls(self) -> bool:
        silent, self.silent = self.silent, self.reading
        return silent and self.reading

    def count_in(self, budget: MemoryBudget) -> None:
        self._budget.release(self)
        self._budget = budget

    @property
    def unanswered(self) -> Iterable[Slot]:
        return self._slots

    @property
    def held_requests(self) -> int:
        return len(self._held)

    @property
    def has_work(self) -> bool:
        """Whether requests with an effect remain: they are served although the peer has disconnected."""
        if self._held or not self._blocked & BLOCKED:
            return bool(self._held)
        return any(slot.unanswerable and slot.parts is None for slot in self._slots)

    @property
    def waits(self) -> bool:
        return bool(self._slots or self._held or self._blocked & MUTED)

    @property
    def reserved_bytes(self) -> int:
        """Bytes held for this connection: the incomplete frame at its whole length, and frames not served yet."""
        reader = self.reader
        return max(reader.allocated_bytes, reader.wanted_bytes) + self._held_bytes

    def close(self) -> None:
        self.closed = True
        self._blocked |= BLOCKED
        self._held.clear()
        self._held_bytes = 0
        self._out = []
        slots, self._slots = self._slots, deque()
        for slot in slots:
            cancel, slot.cancel = slot.cancel, None
            if cancel is not None:
                cancel()
        self._budget.release(self)
        self._on_room = self._on_evicted = _nothing  # the shell and its core must not keep each other in memory


def _nothing() -> None:
    """A closed connection needs no room."""
