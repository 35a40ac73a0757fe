"""Connection: serves one client connection as an asyncio protocol over the sans-IO framing.

Driven by: the loop (`get_buffer`, `buffer_updated`, `pause_writing`…) and answers of waiting requests.
Emits: frames to the router in the order of the connection; answers in the order of the requests, one write a wake-up.

The connection applies no Kafka rules. A request that need not wait is answered inside `buffer_updated`: no task, no future, no queue.
A request that waits before its effect holds the later requests of its connection, and reading pauses after HELD_BYTES_MAX. A request
that waits after its effect delays only later answers. Held frames are copies: views are valid only during their call.

Limits: a frame's length is checked before anything is allocated; a connection serves REQUESTS_PER_TURN requests a wake-up, and the
rest wait a turn; reading pauses while the peer reads no answers, while too many requests or bytes of answers wait, and while the
frames under construction of all connections exceed the node's byte budget.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from struct import Struct
from types import GeneratorType
from typing import Any, Final, Protocol, cast

from barnabas.broker.call import Call, Pending
from barnabas.broker.large_requests import LargeRequest
from barnabas.broker.reactor import Reactor
from barnabas.broker.request_header import skip_tags
from barnabas.broker.router import Route, Router
from barnabas.broker.slices import UNITS_PER_SLICE, Slices, advance
from barnabas.errors import InvariantViolated, LargeMessage, RemoteProtocolError
from barnabas.limits import INFLIGHT_REQUESTS_MAX
from barnabas.ports import Buffer
from barnabas.protocol.connection import FrameReader
from barnabas.protocol.registry import API_VERSIONS_KEY, Api

__all__ = ["ORDINARY_BUFFER_BYTES", "REQUESTS_PER_TURN", "Connection", "ConnectionHost"]

log = logging.getLogger(__name__)

ORDINARY_BUFFER_BYTES: Final = 1024 * 1024  # of a connection, before it counts against the byte budget
REQUESTS_PER_TURN: Final = 32  # of one connection a wake-up: at most 2 ms of the loop
HELD_BYTES_MAX: Final = 64 * 1024  # of frames that wait for an earlier request, before reading pauses
LARGE_ANSWER_BYTES: Final = 64 * 1024  # from this size every answer counts as unread until it is written
WRITE_BUFFER_HIGH: Final = 1024 * 1024  # bytes of answers a peer may leave unread before its requests are held

_HEADER: Final = Struct(">hhih")  # API key, version, correlation id, length of the client id


class _Slot:
    """A waiting answer's place in the order of its connection."""

    __slots__ = ("correlation", "parts", "pending", "route", "size_bytes")

    def __init__(self, route: Route, correlation: int) -> None:
        self.route = route
        self.correlation = correlation
        self.pending: Pending[Any] | None = None
        self.parts: list[Buffer] | None = None  # None: not answered yet
        self.size_bytes = 0  # bytes that count as unread answers of the peer


class ConnectionHost(Protocol):
    """What a connection needs from its server."""

    reactor: Reactor
    slices: Slices
    router: Router
    api_versions_range: tuple[int, int]
    serving: bool
    opening: Pending[None]  # blocks every connection until the server serves

    @property
    def is_crowded(self) -> bool:
        """Whether peers leave more unread than the budget of all connections."""
        ...

    def next_number(self) -> int:
        """The number of a new connection."""
        ...

    def frame_reader(self) -> FrameReader:
        """Splits the bytes of one connection into frames and limits their size."""
        ...

    def room_for(self, connection: Connection) -> bool:
        """Whether the byte budget of all connections lets this one continue reading."""
        ...

    def unsupported_api_versions(self) -> Any:
        """The answer to ApiVersions in an unknown version."""
        ...

    def on_connected(self, connection: Connection) -> None:
        """The connection was made."""
        ...

    def on_unread(self, connection: Connection, size_bytes: int) -> None:
        """The peer leaves `size_bytes` of its answers unread."""
        ...

    def on_disconnected(self, connection: Connection) -> None:
        """The connection ended."""
        ...


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    __slots__ = (
        "_blocked_by",
        "_client_id_bytes",
        "_continue_due",
        "_flush_due",
        "_held",
        "_held_bytes",
        "_on_close",
        "_out",
        "_out_bytes",
        "_reader",
        "_reading",
        "_router",
        "_slots",
        "_transport",
        "_turn",
        "_turn_requests",
        "_unread_before",
        "_unwritten_bytes",
        "_write_paused",
        "active",
        "client_host",
        "client_id",
        "client_port",
        "closed",
        "get_buffer",
        "listener_name",
        "number",
        "server",
        "silent_since_ms",
    )

    def __init__(self, server: ConnectionHost, listener_name: str = "") -> None:
        self.server = server
        self.listener_name = listener_name  # the peer's listener; answers give broker addresses of the same one
        self.number = server.next_number()  # in the order of acceptance, over all listeners of the server
        self.client_host = "?"
        self.client_port = 0
        self.closed = False
        self.silent_since_ms = server.reactor.clock.monotonic_ms()
        self.active = True  # bytes were received since the last sweep of idle connections
        self._router = server.router
        self._reader = server.frame_reader()
        self.get_buffer = self._reader.get_buffer  # type: ignore[method-assign,assignment]  # one call less on every read
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []  # answers to write at the end of this wake-up
        self._slots: deque[_Slot] = deque()  # empty unless an answer waits: then all later answers queue behind it
        self._held: deque[bytes] = deque()  # frames that may not be served yet
        self._held_bytes = 0
        self._unwritten_bytes = 0  # bytes of unwritten answers; small answers count only while they wait for others
        self._out_bytes = 0  # the part of them that is in _out
        self._unread_before = 0  # written bytes that the peer had not read at the last check
        self._blocked_by: Pending[Any] | None = None
        self.client_id: str | None = None  # of its last request
        self._client_id_bytes = b""
        self._turn = False  # inside buffer_updated or _continue, which write at their end
        self._turn_requests = 0  # served in it, long requests counted as several
        self._flush_due = False
        self._continue_due = False
        self._reading = True
        self._write_paused = False
        self._on_close: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"{self.client_host}:{self.client_port}"

    @property
    def apis(self) -> Mapping[int, Api]:
        """The APIs that its listener serves, by key."""
        return self._router.apis

    def begin(self) -> None:
        """The node is ready: serves the requests that waited for it."""
        if self._blocked_by is self.server.opening:
            self._unblocked()

    def on_close(self, callback: Callable[[], None]) -> None:
        """Calls back once after this connection ended, at the end of that wake-up; soon if it has ended already."""
        if self.closed:
            self.server.reactor.soon(callback)
        else:
            self._on_close.append(callback)

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop: a client connected."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.client_host, self.client_port = str(peer[0]), int(peer[1])
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        self.server.on_connected(self)
        if not self.server.serving:
            self._blocked_by = self.server.opening

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called by the loop: the client disconnected. Drops requests that have had no effect."""
        self._shut()
        self._transport = None

    def eof_received(self) -> bool:
        """Called by the loop: the client sends no more. Closes the connection, as Kafka does."""
        return False

    def pause_writing(self) -> None:
        """Called by the loop: the peer leaves its answers unread."""
        self._write_paused = True
        self._count_unread()
        self.settle()

    def resume_writing(self) -> None:
        """Called by the loop: the peer reads again."""
        self._write_paused = False
        self._unread_before = 0
        self._count_unread()
        self.settle()

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop: bytes arrived in the buffer from `get_buffer`."""
        self.active = True
        try:
            frames = self._reader.received(nbytes)
        except RemoteProtocolError as error:
            self.close(str(error))
            return
        if not frames:
            if self._reader.allocated_bytes > ORDINARY_BUFFER_BYTES:
                self.settle()
            return
        self._turn = True
        self._turn_requests = 0
        for frame in frames:
            if self.closed:
                return
            if (
                self._blocked_by is not None
                or self._held
                or self._turn_requests >= REQUESTS_PER_TURN
                or self._write_paused
                or (self._unwritten_bytes and self._is_full)
            ):
                self._held.append(bytes(frame))
                self._held_bytes += len(frame)
            else:
                self._turn_requests += 1
                self._serve(frame)
        self._turn = False
        if self._out:
            self._write()
        if self._reader.allocated_bytes > ORDINARY_BUFFER_BYTES:
            self._reader.release()
            self.settle()
        elif self._held or not self._reading or (self._slots and self._unsettled):
            self.settle()

    # -- serving

    def _serve(self, frame: memoryview) -> None:
        try:
            self._serve_frame(frame)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """A request cannot be answered: closes the connection."""
        if isinstance(error, RemoteProtocolError):
            self.close(str(error))
        elif isinstance(error, InvariantViolated):
            self.close("the node stops")
            self.server.reactor.fatal(error)
        else:
            log.error("request of %r failed", self, exc_info=error)
            self.close("internal error")

    def _serve_frame(self, frame: memoryview) -> None:
        try:
            api_key, version, correlation, client_id_length = _HEADER.unpack_from(frame)
        except Exception:
            raise RemoteProtocolError(f"a frame of {len(frame)} bytes has no room for a request header") from None
        router = self._router
        route = router.routes.get(api_key << 16 | version)
        if route is None:
            if api_key == API_VERSIONS_KEY and not self._serves_api_versions(version):
                self._answer_unknown_api_versions(correlation)
                return
            route = router.route(api_key, version)
        position = 10
        if client_id_length > 0:
            position += client_id_length
            client_id_bytes = bytes(frame[10:position])
            if client_id_bytes != self._client_id_bytes:
                if position > len(frame):
                    raise RemoteProtocolError(f"client id of {client_id_length} bytes exceeds its frame")
                try:
                    self.client_id = client_id_bytes.decode()
                except UnicodeDecodeError:
                    raise RemoteProtocolError("client id is not UTF-8") from None
                self._client_id_bytes = client_id_bytes
            client_id = self.client_id
        elif client_id_length < -1:
            raise RemoteProtocolError(f"client id of length {client_id_length}")
        else:
            client_id = None if client_id_length else ""
        if route.tagged:
            position = skip_tags(frame, position)
        try:
            request, _ = route.decode(frame, position)
        except LargeMessage:
            self._large(route, correlation, len(frame)).decode(
                router, bytes(frame), position, client_id, self, self.client_host
            )
            return
        call = Call(request, version, api_key, client_id, self, self.client_host)
        response = router.answer(route, call)
        while True:
            if response.__class__ is Pending:
                if not response.resolved:
                    if not self.closed:
                        self._await_answer(route, correlation, response)
                    return
                response = response.response
            elif response.__class__ is GeneratorType:
                ended = advance(response)
                if ended is None:
                    self._large(route, correlation, 0).go_on(response)
                    return
                self._turn_requests += ended.units * REQUESTS_PER_TURN // UNITS_PER_SLICE
                response = ended.result
            else:
                break
        if response is None or self.closed:
            return
        if self._slots:
            slot = _Slot(route, correlation)
            slot.parts = route.frame(correlation, response)
            self._slots.append(slot)
            self._weigh(slot)
        else:
            parts = route.frame(correlation, response)
            self._out += parts
            if route.by_parts or len(parts[0]) >= LARGE_ANSWER_BYTES:
                size_bytes = sum(map(len, parts))
                if size_bytes >= LARGE_ANSWER_BYTES:
                    self._unwritten_bytes += size_bytes
                    self._out_bytes += size_bytes
                    self._count_unread()

    def _large(self, route: Route, correlation: int, frame_bytes: int) -> LargeRequest:
        """A large request: holds the later requests of this connection until its answer is ready to be written."""
        slot = _Slot(route, correlation)
        hold: Pending[Any] = Pending(blocks=True)
        slot.pending = hold
        self._slots.append(slot)
        self._blocked_by = hold
        self._held_bytes += frame_bytes

        def answered(parts: list[Buffer]) -> None:
            self._held_bytes -= frame_bytes
            self._ready(slot, parts)
            self._unblocked()

        request = LargeRequest(self.server.slices, route, correlation, answered, self._failed)
        hold.on_closed = request.cancel
        return request

    def _weigh(self, slot: _Slot) -> None:
        """Counts an answer that waits for earlier answers, as soon as it is made."""
        slot.size_bytes = sum(map(len, slot.parts or ()))
        self._unwritten_bytes += slot.size_bytes
        self._count_unread()

    def _count_unread(self) -> None:
        """Tells the server how many bytes of answers this peer leaves unread, above a small allowance."""
        if not self.closed:
            unread = (
                self._transport.get_write_buffer_size() if self._write_paused and self._transport is not None else 0
            )
            self.server.on_unread(self, self._unwritten_bytes + unread)

    @property
    def _is_full(self) -> bool:
        """Whether unwritten answers have reached their limit: then no more requests are served until some are written."""
        return self._unwritten_bytes > WRITE_BUFFER_HIGH or (self._unwritten_bytes > 0 and self.server.is_crowded)

    def _await_answer(self, route: Route, correlation: int, pending: Pending[Any]) -> None:
        slot = _Slot(route, correlation)
        slot.pending = pending
        self._slots.append(slot)
        unblock: Callable[[], None] | None = None
        if pending.blocks:
            self._blocked_by = pending
            unblock = self._unblocked
        pending.attach(lambda response: self._answered(slot, response), unblock)

    def _answered(self, slot: _Slot, response: Any) -> None:
        """A waiting request has its answer: sends all answers that are ready in order at the end of this wake-up."""
        if self.closed:
            return
        if response.__class__ is GeneratorType:
            ended = advance(response)
            if ended is None:
                hold: Pending[Any] = Pending()
                slot.pending = hold
                request = LargeRequest(
                    self.server.slices, slot.route, slot.correlation, partial(self._ready, slot), self._failed
                )
                hold.on_closed = request.cancel
                request.go_on(response)
                return
            response = ended.result
            if response.__class__ is Pending:  # it waits once more
                slot.pending = response
                response.attach(partial(self._answered, slot), None)
                return
        try:
            parts = [] if response is None else slot.route.frame(slot.correlation, response)
        except Exception as error:
            self._failed(error)
        else:
            self._ready(slot, parts)

    def _ready(self, slot: _Slot, parts: list[Buffer]) -> None:
        if self.closed:
            return
        slot.pending = None
        slot.parts = parts
        slots = self._slots
        if slots[0] is not slot or (parts and (slot.route.by_parts or len(parts[0]) >= LARGE_ANSWER_BYTES)):
            self._weigh(slot)
        while slots and slots[0].parts is not None:
            ready = slots.popleft()
            self._out += cast("list[Buffer]", ready.parts)
            self._out_bytes += ready.size_bytes
        if not self._turn and not self._flush_due:
            self._flush_due = True
            self.server.reactor.soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._out and not self.closed:
            self._write()
        if self._unsettled:
            self.settle()

    @property
    def _unsettled(self) -> bool:
        """Whether reading may have to pause, or held requests may continue."""
        return bool(self._held) or not self._reading or len(self._slots) >= INFLIGHT_REQUESTS_MAX

    def _unblocked(self) -> None:
        self._blocked_by = None
        if not self._turn:
            self.settle()

    def _write(self) -> None:
        out, self._out = self._out, []
        transport = self._transport
        if transport is None:
            return
        if len(out) == 1:
            transport.write(out[0])
        else:
            transport.writelines(out)
        if self._unwritten_bytes or self._write_paused:
            self._unwritten_bytes -= self._out_bytes
            self._out_bytes = 0
            self._count_unread()

    def settle(self) -> None:
        """Serves the held requests that may continue; reads only while there is room for more."""
        if self.closed or self._transport is None:
            return
        free = self._blocked_by is None and not self._write_paused and not self._is_full
        if free and self._held and not self._continue_due:
            self._continue_due = True
            asyncio.get_running_loop().call_soon(self._continue)
        # While a request blocks, a little is still read: a peer's close is noticed only by reading.
        reading = (
            not self._write_paused
            and self._held_bytes < HELD_BYTES_MAX
            and len(self._slots) + len(self._held) < INFLIGHT_REQUESTS_MAX
            and self.server.room_for(self)
        )
        if reading != self._reading:
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _continue(self) -> None:
        self._continue_due = False
        self._turn = True
        self._turn_requests = 0
        while self._held and self._blocked_by is None and self._turn_requests < REQUESTS_PER_TURN and not self.closed:
            if self._write_paused or self._is_full:
                break
            self._turn_requests += 1
            frame = self._held.popleft()
            self._held_bytes -= len(frame)
            self._serve(memoryview(frame))
        self._turn = False
        if self.closed:
            return
        if self._out:
            self._write()
        self.settle()

    # -- ApiVersions in an unknown version

    def _serves_api_versions(self, version: int) -> bool:
        low, high = self.server.api_versions_range
        return low <= version <= high

    def _answer_unknown_api_versions(self, correlation: int) -> None:
        route = self._router.route(API_VERSIONS_KEY, 0)
        slot = _Slot(route, correlation)
        slot.parts = route.frame(correlation, self.server.unsupported_api_versions())
        if self._slots:
            self._slots.append(slot)
        else:
            self._out += slot.parts

    # -- the end

    def close(self, reason: str, *, level: int = logging.WARNING) -> None:
        """Closes from our side with one log line; answers that are ready are still sent."""
        if self.closed:
            return
        log.log(level, "closing the connection of %r: %s", self, reason)
        transport, out = self._transport, self._out
        self._out = []
        self._shut()
        if transport is not None:
            if self._write_paused:
                transport.abort()  # a client that reads no answers would keep the socket open
                return
            if out:
                transport.writelines(out)
            transport.close()

    def rest(self) -> None:
        """Releases the read buffer of a silent connection."""
        self._reader.release()

    def abort(self) -> None:
        """Closes at once without sending ready answers: the node stops."""
        transport = self._transport
        self._shut()
        if transport is not None:
            transport.abort()

    def is_idle(self) -> bool:
        """Whether nothing was received and no request waited since the last call; if the peer leaves answers unread, whether it read
        none of them."""
        active, self.active = self.active, False
        if self._write_paused and self._transport is not None:
            unread = self._transport.get_write_buffer_size()
            before, self._unread_before = self._unread_before, unread
            return 0 < before <= unread
        return not active and not self.waits

    @property
    def waits(self) -> bool:
        """Whether a request is held or unanswered."""
        return bool(self._slots or self._held)

    @property
    def reserved_bytes(self) -> int:
        """Bytes held for this connection: the buffer of the frame under construction and the frames not served yet."""
        return self._reader.allocated_bytes + self._held_bytes

    def _shut(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._turn = False
        self._held.clear()
        self._held_bytes = 0
        self._out = []
        self._blocked_by = None
        slots, self._slots = self._slots, deque()
        for slot in slots:
            if slot.pending is not None:
                slot.pending.closed()
        self.server.on_disconnected(self)
        on_close, self._on_close = self._on_close, []
        for callback in on_close:
            self.server.reactor.soon(callback)
