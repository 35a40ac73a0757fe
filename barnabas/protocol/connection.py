"""ServerConnection: decides when a server serves a connection's requests and when it sends their answers, without I/O.

The shell serves frames in turns. In a turn it offers each frame of a read (`admits`) or takes held frames
(`next_held`), and serves those that it gets. Then it ends the turn and writes the answers (`end_turn`).

Invariants:
- Requests are served in the order of the connection. A request that waits before its effect blocks the later ones: they
  are held. A held frame is a copy, so that it does not keep a buffer of other frames in memory (`kept_frame`).
- Answers leave in the order of their requests, in whatever order they are ready.
- A turn serves at most REQUESTS_PER_TURN requests, so that other connections get theirs.
- No request is served while the peer leaves more than WRITE_BUFFER_HIGH bytes of answers unread, or while it leaves any
  unread and all connections together have used their budget.
- The connection reads on only while the frames that it holds, its requests without answer and the budget of all
  connections allow it.
- After the peer has ended its side nothing is read. Of what was received, requests that only read are dropped, and the others
  are served as before; then `has_work` is False.
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
WRITE_BUFFER_HIGH: Final = 1024 * 1024  # bytes of answers a peer may leave unread before its requests are held


class Slot:
    """The place of one answer in the order of its connection.

    Attributes:
        cancel: drops the request that waits; called if the connection closes before `fill`.
        only_reads: the request has no effect: it is dropped when its peer leaves.
        unanswerable: the request gets no answer (Produce with acks=0): its peer expects its effect also after it has left.
    """

    __slots__ = ("cancel", "only_reads", "parts", "size_bytes", "unanswerable")

    def __init__(self) -> None:
        self.cancel: Callable[[], None] | None = None
        self.only_reads = False
        self.unanswerable = False
        self.parts: list[Buffer] | None = None  # None: not answered yet
        self.size_bytes = 0  # bytes that count as unread answers of the peer


def kept_frame(frame: memoryview) -> Buffer:
    """Returns the frame for use after its call: a copy, or the view itself if the frame is most of its buffer."""
    return frame if len(frame) >= LARGE_FRAME_BYTES else bytes(frame)


class ServerConnection:
    """The server's side of one connection. The module docstring describes it.

    Args:
        reader: splits the received bytes into frames.
        budget: the memory that all connections of the server share.
        on_room: called when a connection that may not read on has room again.
        on_evicted: called when the connection must close because others need its room.

    Attributes:
        closed: the connection is closed: nothing is served, held or written.
        ended: the peer sends no more.
        reading: whether the shell reads; the shell sets it after `may_read`.
        writing_paused: whether the peer leaves its answers unread.
        limited: whether reading may have to pause or to continue, or held requests may be served. Set by `end_turn`.
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
        self.writing_paused = False
        self.limited = False
        self._budget = budget
        self._on_room = on_room
        self._on_evicted = on_evicted or _nothing
        self._blocked = 0  # BLOCKED, MUTED or both: no request is served
        self._held: deque[Buffer] = deque()  # frames that may not be served yet
        self._held_bytes = 0
        self._served = 0  # requests in this turn, long ones counted as several
        self._slots: deque[Slot] = deque()  # empty unless an answer waits: then all later answers queue behind it
        self._out: list[Buffer] = []  # answers to write, in order
        self._unwritten_bytes = (
            0  # of answers that are not written; small answers count only while they wait for others
        )
        self._out_bytes = 0  # the part of them that is in _out
        self._unread_bytes = 0  # written and not read by the peer, while writing is paused

    # -- requests

    def admits(self, frame: memoryview) -> bool:
        """Whether the request is to be served now. If not, its frame is held."""
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
        """Holds the request: it is served in a later turn."""
        if not self.closed:
            self._held.append(kept_frame(frame))
            self._held_bytes += len(frame)

    def next_held(self) -> memoryview | None:
        """The next held frame, to be served now; None if no more may be served in this turn."""
        if self._served >= REQUESTS_PER_TURN or not self.may_serve_held:
            return None
        self._served += 1
        frame = self._held.popleft()
        self._held_bytes -= len(frame)
        return memoryview(frame)

    def count_long(self, requests: int) -> None:
        """Counts the present request as this number of further requests, because it took as long."""
        self._served += requests

    def block(self, reserved_bytes: int = 0) -> None:
        """The request being served waits before its effect, and keeps `reserved_bytes` of its frame."""
        self._blocked |= BLOCKED
        self._held_bytes += reserved_bytes

    def unblock(self, reserved_bytes: int = 0) -> None:
        """It has had its effect, and releases the bytes that it has kept."""
        if not self.closed:
            self._blocked &= ~BLOCKED
            self._held_bytes -= reserved_bytes

    def mute(self) -> None:
        """Serves and reads nothing until `unmute`: the client exceeds a quota."""
        self._blocked |= MUTED

    def unmute(self) -> None:
        """The throttle time is over."""
        if not self.closed:
            self._blocked &= ~MUTED

    # -- answers

    def answer(self, parts: list[Buffer]) -> None:
        """Answers the request being served: to write at the end of the turn, or after earlier answers."""
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
        """Keeps the place of the request being served, to be answered later by `fill`."""
        self._slots.append(slot)

    def fill(self, slot: Slot, parts: list[Buffer]) -> None:
        """Answers a request that has waited; no parts for a request without an answer (acks=0).

        Raises:
            LocalProtocolError: it was answered before.
        """
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
        """Ends a turn; returns the answers to write now, in order."""
        self._served = 0
        self.limited = not (
            self.reading
            and not self._held
            and self._blocked < MUTED
            and (not self._slots or len(self._slots) < INFLIGHT_REQUESTS_MAX)
        )
        reader, ordinary = self.reader, self._budget.ordinary_bytes
        if reader.allocated_bytes > ordinary or reader.wanted_bytes > ordinary:
            reader.release()
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
        """The peer leaves `unread_bytes` of written answers unread, too many to write on. Repeated calls update the
        number.
        """
        self.writing_paused = True
        self._unread_bytes = unread_bytes
        self._count_unread()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self.writing_paused = False
        self._unread_bytes = 0
        self._count_unread()

    def end(self) -> None:
        """The peer sends no more: nothing is read, and an incomplete frame is dropped."""
        self.ended = True
        self.reading = False
        self.reader.end()
        self.drop_reads()
        self._budget.room_for(self)

    def drop_reads(self) -> None:
        """The peer has left, and perhaps not all that it has sent is read: drops what was received and only reads."""
        self._held_bytes -= sum(map(len, self._held))
        self._held = deque(frame for frame in self._held if int.from_bytes(frame[:2]) not in READS)
        self._held_bytes += sum(map(len, self._held))
        for slot in [slot for slot in self._slots if slot.only_reads]:
            cancel, slot.cancel = slot.cancel, None
            if cancel is not None:
                cancel()
                self.fill(slot, [])

    def _weigh(self, slot: Slot, parts: list[Buffer]) -> None:
        """Counts an answer that waits for earlier answers, as soon as it is made."""
        slot.size_bytes = sum(map(len, parts))
        self._unwritten_bytes += slot.size_bytes
        self._count_unread()

    def _count_unread(self) -> None:
        if not self.closed:
            self._budget.on_unread(self, self._unwritten_bytes + self._unread_bytes)

    @property
    def _is_full(self) -> bool:
        """Whether unwritten answers have reached their limit: then no more requests are served until some are written."""
        return self._unwritten_bytes > WRITE_BUFFER_HIGH or (self._unwritten_bytes > 0 and self._budget.is_crowded)

    # -- what the shell does next

    @property
    def may_serve_held(self) -> bool:
        """Whether a held request may be served in the next turn."""
        return bool(self._held) and not self._blocked and not self.writing_paused and not self._is_full

    def may_read(self) -> bool:
        """Whether the shell is to read on. A connection that may not calls `on_room` when the shared budget has room
        again.
        """
        # While a request blocks, a little is still read: a peer's close is noticed only by reading.
        return (
            self._budget.room_for(self)
            and not self.ended
            and not self.writing_paused
            and not self._blocked & MUTED
            and self._held_bytes < HELD_BYTES_MAX
            and len(self._slots) + len(self._held) < INFLIGHT_REQUESTS_MAX
        )

    def on_room(self) -> None:
        """Called by the budget: others have released memory."""
        self._on_room()

    def evict(self) -> None:
        """Called by the budget: others need the memory of this connection."""
        self._on_evicted()

    @property
    def receives(self) -> bool:
        """Whether a frame above an ordinary buffer is incomplete."""
        return self.reader.wanted_bytes > self._budget.ordinary_bytes

    def count_in(self, budget: MemoryBudget) -> None:
        """Counts the connection in another budget from now on."""
        self._budget.release(self)
        self._budget = budget

    @property
    def unanswered(self) -> Iterable[Slot]:
        """The places of the answers that are not written yet."""
        return self._slots

    @property
    def held_requests(self) -> int:
        """The number of requests that may not be served yet."""
        return len(self._held)

    @property
    def has_work(self) -> bool:
        """Whether a request is held, or one without an answer waits before its effect: they are served although the peer has left."""
        if self._held or not self._blocked & BLOCKED:
            return bool(self._held)
        return any(slot.unanswerable and slot.parts is None for slot in self._slots)

    @property
    def waits(self) -> bool:
        """Whether a request is held or unanswered, or the client is throttled."""
        return bool(self._slots or self._held or self._blocked & MUTED)

    @property
    def reserved_bytes(self) -> int:
        """Bytes held for this connection: the frame under construction, its whole length, and the frames not served yet."""
        reader = self.reader
        return max(reader.allocated_bytes, reader.wanted_bytes) + self._held_bytes

    def close(self) -> None:
        """Drops held requests, requests that wait and answers that are not written."""
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
