"""Connection: serves one client connection: the asyncio protocol around `protocol/connection.ServerConnection`.

The core decides which request is served when, in which order answers leave, and whether to read on. This shell parses
the request header, runs the handler and writes. A request that need not wait is answered inside `buffer_updated`: no
task, no future, no queue. Requests of a login are served in a later turn (`Slices.later_for_login`). A request that waits has a slot in the core until its `Pending` is resolved. A large request
(`large_requests`) blocks the later ones.

A throttled client (KIP-219) is muted: nothing is served or read until the throttle time is over.

A client may leave while requests that it has sent are held. They may be Produce requests with acks=0, whose client waits for no answer.
As in Kafka they are served (`ServerConnection.has_work`), and answered if the client has closed only its own side; but requests that
only read are dropped. Then the connection ends. It reads nothing more, so its memory does not grow. A login that is not complete ends.

A closed connection sends the rest of its answers, for UNSENT_MS at most: it is not counted any more, so it must not keep its socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeVar, cast

from barnabas.broker.api.access import FULL_ACCESS, Access
from barnabas.broker.api.call import Answer, AnyPending, Call, Computed, Pending
from barnabas.broker.api.principal import Principal
from barnabas.broker.api.request_header import absent_client_id, decoded_client_id, skip_tags
from barnabas.broker.api.router import Route
from barnabas.broker.front.connection_host import ConnectionHost
from barnabas.broker.front.large_requests import (
    COMPUTED_PER_UNIT,
    SHORT_FRAME_BYTES,
    LargeRequest,
    count_decoding,
)
from barnabas.broker.front.quota_enforcement import Charge
from barnabas.broker.front.response_slot import ResponseSlot
from barnabas.broker.scheduling.slices import ARRIVALS_COUNTED, UNITS_PER_ARRIVAL, WorkResult, advance
from barnabas.broker.scheduling.timers import Timer
from barnabas.broker.security.server_login import ServerLogin
from barnabas.errors import BarnabasError, InvariantViolated, LargeMessage, RemoteProtocolError
from barnabas.loggers import logger
from barnabas.ports import Buffer
from barnabas.protocol.connection import REQUESTS_PER_TURN, WRITE_BUFFER_HIGH, ServerConnection, kept_frame
from barnabas.protocol.messages.metadata import ApiVersionsRequest
from barnabas.protocol.registry import API_VERSIONS_KEY, PRODUCE_KEY, Api
from barnabas.protocol.schema import Message
from barnabas.runtime.network import peer_has_left
from barnabas.work import UNITS_PER_SLICE, Steps

if TYPE_CHECKING:
    from barnabas.protocol.messages.produce import ProduceRequest

log = logger("kafka.network.SocketServer")

_HEADER: Final = Struct(">hhih")  # API key, version, correlation id, length of the client id
RECEIVED_BYTES_PER_UNIT: Final = 8_192  # of a frame that is not complete
READ_BYTES: Final = 256 * 1024  # of a usual read of a large frame
ARRIVALS_MASK: Final = ARRIVALS_COUNTED - 1
UNSENT_MS: Final = 10_000  # for a client to read the last answers after this node has closed its connection

T = TypeVar("T")


class Connection(asyncio.BufferedProtocol):
    """One client's connection.

    Attributes:
        core: decides what is served and read.
        listener_name: the listener that accepted it.
        active: bytes were received since the last sweep of idle connections.
    """

    __slots__ = (
        "_client_id_bytes",
        "_continue_due",
        "_flush_due",
        "_muted_until_ms",
        "_on_close",
        "_slices",
        "_transport",
        "_turn",
        "_unmute_timer",
        "_unread_before",
        "_unsent_timer",
        "access",
        "active",
        "client_host",
        "client_id",
        "client_port",
        "core",
        "get_buffer",
        "listener_name",
        "login",
        "number",
        "router",
        "server",
        "silent_since_ms",
        "software",
    )

    def __init__(self, server: ConnectionHost[Connection], listener_name: str = "") -> None:
        self.server = server
        self.login: ServerLogin | None = None  # of a connection whose listener asks for one
        self.listener_name = listener_name  # the peer's listener; answers give broker addresses of the same one
        self.number = server.next_number()  # in the order of acceptance, over all listeners of the server
        self.client_host = "?"
        self.client_port = 0
        self.access: Access = FULL_ACCESS
        self.software = ("", "")  # name and version that the client has sent in ApiVersions
        self.silent_since_ms = server.reactor.clock.monotonic_ms()
        self.active = True
        reader = server.frame_reader(listener_name)
        self.core = ServerConnection(reader, server.budget_of(listener_name), self._apply_limits, self._evicted)
        self.get_buffer = reader.get_buffer  # type: ignore[method-assign,assignment]  # one call less on every read
        self.router = server.router
        self.client_id: str | None = None  # of its last request
        self._client_id_bytes = b""
        self._slices = server.slices
        self._transport: asyncio.Transport | None = None  # None before the connection is accepted, and after it broke
        self._turn = False  # requests are being served: answers are written, and limits applied, at the end
        self._flush_due = False
        self._continue_due = False
        self._unread_before = 0  # written bytes that the peer had not read at the last check
        self._muted_until_ms = 0
        self._unmute_timer: Timer | None = None
        self._unsent_timer: Timer | None = None
        self._on_close: list[Callable[[], None]] = []

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self.core.closed

    def on_close(self, callback: Callable[[], None]) -> None:
        """Calls back once after the client has left or this node has closed the connection, at the end of that wake-up; soon if
        that was before.
        """
        core = self.core
        (self.server.reactor.soon if core.closed or core.ended else self._on_close.append)(callback)

    # -- throttling

    def mute(self, throttle_ms: int) -> None:
        """Serves and reads nothing for a time: the client exceeds a quota. Answers still leave."""
        until_ms = self.server.reactor.clock.monotonic_ms() + throttle_ms
        if self.core.closed or until_ms <= self._muted_until_ms:
            return
        self._end_mute()
        self._muted_until_ms = until_ms
        self._unmute_timer = self.server.reactor.call_later(throttle_ms, self._unmute)
        self.core.mute()
        if not self._turn:
            self._apply_limits()

    def _unmute(self) -> None:
        self._unmute_timer = None
        self.core.unmute()
        self._apply_limits()

    def _end_mute(self) -> None:
        """Ends the timer."""
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
            self._unmute_timer = None

    # -- what the core decides

    def _end_turn(self) -> None:
        """Writes the answers that are ready, and reads on or not."""
        self._turn = False
        out = self.core.end_turn()
        if out:
            self._write(out)
        if self.core.limited:
            self._apply_limits()

    def _write(self, out: list[Buffer]) -> None:
        transport = self._transport
        if transport is None:
            return
        if len(out) == 1:
            transport.write(out[0])
        else:
            transport.writelines(out)
        if self.core.writing_paused:
            self.core.pause_writing(transport.get_write_buffer_size())

    def _flush_soon(self) -> None:
        """Writes at the end of this wake-up."""
        if not self._turn and not self._flush_due:
            self._flush_due = True
            self.server.reactor.soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        self._end_turn()

    def go_on(self) -> None:
        """A frame that has blocked the connection is served: writes its answer and serves the next ones."""
        self._flush_soon()
        self._unblock()

    def _unblock(self, reserved_bytes: int = 0) -> None:
        self.core.unblock(reserved_bytes)
        if not self._turn:
            self._apply_limits()

    def _apply_limits(self) -> None:
        """Serves the held requests that may continue; reads only while there is room for more. Ends if the client has left and
        nothing is left to serve.
        """
        core = self.core
        if core.closed:
            return
        if core.may_serve_held and not self._continue_due:
            self._continue_due = True
            (self._slices.later if self._has_logged_in() else self._slices.later_for_login)(self._continue)
        transport = self._transport
        if core.ended:
            if not core.has_work:
                self._end(transport)
            return
        if transport is None:
            return
        reading = core.may_read()
        if reading != core.reading:
            core.reading = reading
            if reading:
                core.silent = False
                transport.resume_reading()
            else:
                transport.pause_reading()

    # -- the peer

    def pause_writing(self) -> None:
        """Called by the loop: the peer leaves its answers unread."""
        self.core.pause_writing(self._transport.get_write_buffer_size() if self._transport is not None else 0)
        self._apply_limits()

    def resume_writing(self) -> None:
        """Called by the loop: the peer reads again."""
        self._unread_before = 0
        self.core.resume_writing()
        self._apply_limits()

    def eof_received(self) -> bool:
        """Called by the loop, perhaps twice: the client sends no more. Returns whether the connection stays open for what is left to
        serve.
        """
        return self._left()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called by the loop: the connection is gone. Drops requests that have had no effect, but serves what is held."""
        self._transport = None
        if self._unsent_timer is not None:
            self._unsent_timer.cancel()
            self._unsent_timer = None
        if self._left():
            self.core.resume_writing()  # no peer leaves answers unread
            self._apply_limits()
        else:
            self._shut()

    def has_left(self) -> bool:
        """Whether the client is known to have left. A connection that is not being read learns it only from this question; then it drops
        the requests that only read."""
        if not self.core.reading and not self.core.ended and peer_has_left(self._transport):
            self.core.drop_reads()
            return True
        return self.core.ended

    def _left(self) -> bool:
        """The client has left. Returns whether something is left to serve."""
        core = self.core
        if core.closed or not core.has_work or not self.server.serving or not self._has_logged_in():
            return False
        if not core.ended:
            core.end()
            self._call_back()
        return True

    # -- the end

    def close(self, reason: str, *, level: int = logging.WARNING) -> None:
        """Closes from our side with one log line; answers that are ready are still sent."""
        if self.core.closed:
            return
        log.log(
            level,
            "Connection is closed by this node: connection=%r listener=%s reason=%s",
            self,
            self.listener_name,
            reason,
        )
        self._end(self._transport)

    def _end(self, transport: asyncio.Transport | None) -> None:
        out = self.core.end_turn()
        self._shut()
        if transport is not None:
            if self.core.writing_paused:
                transport.abort()  # a client that reads no answers would keep the socket open
                return
            if out:
                transport.writelines(out)
            transport.close()
            if transport.get_write_buffer_size():
                self._unsent_timer = self.server.reactor.call_later(UNSENT_MS, transport.abort)

    def abort(self) -> None:
        """Closes at once without sending ready answers: the node stops."""
        self._shut()
        if self._transport is not None:
            self._transport.abort()

    def is_idle(self) -> bool:
        """Whether nothing was received and no request waited since the last call, or the peer has read none of its answers."""
        active, self.active = self.active, False
        if self.core.writing_paused and self._transport is not None:
            unread = self._transport.get_write_buffer_size()
            before, self._unread_before = self._unread_before, unread
            return 0 < before <= unread
        return not active and not self.core.waits

    def _shut(self) -> None:
        if self.core.closed:
            return
        self._turn = False
        self.core.close()
        self._end_mute()
        self._ended()
        self._call_back()

    def _call_back(self) -> None:
        on_close, self._on_close = self._on_close, []
        for callback in on_close:
            self.server.reactor.soon(callback)

    def __repr__(self) -> str:
        return f"{self.client_host}:{self.client_port}"

    @property
    def apis(self) -> Mapping[int, Api]:
        """The APIs that its listener serves, by key."""
        return self.server.router.apis

    def begin(self) -> None:
        """The node is ready: serves the requests that waited for it."""
        self._unblock()

    # -- asyncio

    def connection_accepted(self, transport: asyncio.BaseTransport) -> None:
        """Called before a TLS handshake; a connection without TLS begins with `connection_made`."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("?", 0)
        self.client_host, self.client_port = str(peer[0]), int(peer[1])
        self.server.on_connected(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop: a client connected, and the TLS handshake is complete."""
        if self._transport is None:
            self.connection_accepted(transport)
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        if not self.server.serving:
            self.core.block()
        try:
            self.authenticated(self.server.principal_of(self.listener_name, transport))
        except BarnabasError as error:
            self.close(f"its certificate gives no principal: {error}", level=logging.INFO)
            return
        self.login = self.server.begin_login(self, self.listener_name)
        if not self._has_logged_in():
            self._pause_reading()

    def authenticated(self, principal: Principal) -> None:
        """The client has proved who it is, or its listener asks for no proof."""
        self.access = self.server.access(principal, self.client_host)

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop: bytes arrived in the buffer from `get_buffer`."""
        self.active = True
        core = self.core
        core.silent = False
        try:
            frames = core.reader.received(nbytes)
        except RemoteProtocolError as error:
            # No request came before: the client may try again forever, as one with TLS at a listener without TLS.
            repeated = not self._client_id_bytes and not self.server.rejection_log.is_due(
                (self.client_host, self.listener_name, str(error))
            )
            self.close(str(error), level=logging.DEBUG if repeated else logging.WARNING)
            return
        if not frames:
            if nbytes > RECEIVED_BYTES_PER_UNIT or core.receives or not self._has_logged_in():
                self._received_part(nbytes)
            return
        slices = self._slices
        login = self.router is not self.server.router
        if not login:
            slices.arrivals += 1
            if not slices.arrivals & ARRIVALS_MASK:
                slices.count_arrivals()
        self._turn = True
        for frame in frames:
            if login or slices.turn_is_over:
                core.hold(frame)
            elif core.admits(frame):
                try:
                    self._serve(frame)
                except Exception as error:
                    self._failed(error)
        self._turn = False  # as _end_turn, which would be one call more for every request
        out = core.end_turn()
        if out:
            self._write(out)
        if core.limited:
            self._apply_limits()
        if login:
            self._pause_reading()

    def _received_part(self, size_bytes: int) -> None:
        """Part of a frame has arrived: reads the next part now, or in a later turn if this one is over. A login waits for its turn."""
        self._apply_limits()
        self._slices.count(size_bytes // RECEIVED_BYTES_PER_UNIT)
        if self._slices.turn_is_over or not self._has_logged_in():
            self._pause_reading()

    def _pause_reading(self) -> None:
        """Reads the next bytes in a later turn. A connection that has not logged in reads only in its places: strangers may be thousands."""
        if self.core.reading and self._transport is not None:
            self.core.reading = False
            self._transport.pause_reading()
            if not self._continue_due:  # which reads on, too
                (self._slices.later if self._has_logged_in() else self._slices.later_for_login)(self._read_on)

    def _read_on(self) -> None:
        self._slices.count(READ_BYTES // RECEIVED_BYTES_PER_UNIT)
        self._apply_limits()

    def _evicted(self) -> None:
        self.close("its incomplete request takes memory that others wait for", level=logging.INFO)

    # -- serving

    def _serve(self, frame: memoryview) -> None:
        """Runs the handler of one request: answers it, or gives it a slot. Raises RemoteProtocolError, InvariantViolated."""
        try:
            api_key, version, correlation, client_id_length = _HEADER.unpack_from(frame)
        except Exception:
            self._without_header(frame)
            return
        router = self.router
        quotas = self.server.client_quotas
        began_s = quotas.now_s() if quotas.active else 0.0
        route = router.routes.get(api_key << 16 | version)
        if route is None:
            route = self._new_route(frame, api_key, version, correlation)
            if route is None:
                return
        route.requests, route.began_ns = route.requests + 1, 0  # not 0 before if the last one measured was malformed
        if not route.requests & route.measured:
            route.begin()
        position = 10
        if client_id_length > 0:
            position += client_id_length
            client_id_bytes = bytes(frame[10:position])
            if client_id_bytes != self._client_id_bytes:
                self.client_id = decoded_client_id(client_id_bytes, client_id_length)
                self._client_id_bytes = client_id_bytes
            client_id = self.client_id
        else:
            client_id = absent_client_id(client_id_length)
        if route.tagged:
            position = skip_tags(frame, position)
        try:
            if len(frame) > SHORT_FRAME_BYTES and self._has_logged_in():
                count_decoding(self._slices, api_key, len(frame))
            request, _ = route.decode(frame, position)
        except LargeMessage:
            self._decode_large(route, correlation, frame, position, client_id)
            return
        call = Call(request, version, api_key, client_id, self, self.client_host)
        charge = quotas.charge(self, route, call, len(frame) - position, began_s) if quotas.active else None
        response = router.answer(route, call)
        while response is not None and not isinstance(response, Message):
            if isinstance(response, Pending):
                if not response.resolved:
                    self._await_answer(route, correlation, response, charge, call, len(frame))
                    return
                response = response.response
            elif isinstance(response, Computed):
                if response.takes_long:
                    self._large(route, correlation, 0, charge, call).go_on(response)
                    return
                self._slices.count(response.elements // COMPUTED_PER_UNIT)
                response = response.compute()
            else:
                rest = self._advanced(response)
                if not isinstance(rest, WorkResult):
                    self._large(route, correlation, 0, charge, call).go_on(rest)
                    return
                if rest.units > UNITS_PER_SLICE // REQUESTS_PER_TURN:
                    self.core.count_long(rest.units * REQUESTS_PER_TURN // UNITS_PER_SLICE)
                response = rest.result
        if response is not None and not self.core.closed:
            self.core.answer((charge or route).frame(correlation, response))
        elif charge is not None:
            charge.unanswered()
        if route.began_ns:
            route.answered()

    def _new_route(self, frame: memoryview, api_key: int, version: int, correlation: int) -> Route | None:
        """Makes the route of an API version; None: ApiVersions in an unknown version, or a raw token, which are answered here; or a
        request after the end of its session."""
        known = api_key & 0x7FFF  # without framing.CUT
        if self.login is not None and (self.login.took_raw_token(frame) or self.login.refuses(known)):
            return None
        if known != api_key:
            self._refuse_cut(self.router.route(known, version), frame, correlation)
            return None
        low, high = self.server.api_versions_range
        if api_key != API_VERSIONS_KEY or low <= version <= high:
            return self.router.route(api_key, version)
        first, quotas = self.router.route(API_VERSIONS_KEY, 0), self.server.client_quotas
        call = Call[Message](ApiVersionsRequest(), 0, api_key, self.client_id, self, self.client_host)
        charge = quotas.charge(self, first, call, len(frame), quotas.now_s()) if quotas.active else None
        self.core.answer((charge or first).frame(correlation, self.server.unsupported_api_versions()))
        return None

    def _refuse_cut(self, route: Route, frame: memoryview, correlation: int) -> None:
        """Answers a request whose frame is larger than its API may have."""
        position = 10 + max(0, _HEADER.unpack_from(frame)[3])
        if route.tagged:
            position = skip_tags(frame, position)
        response = route.refusal(
            lambda request: Call(request, route.version, route.api_key, self.client_id, self, self.client_host),
            frame,
            position,
            "a request of this API has at most 8 MiB unless socket.request.max.bytes is set",
        )
        self.core.answer(route.frame(correlation, response))

    def _without_header(self, frame: memoryview) -> None:
        if self.login is None or not self.login.took_raw_token(frame):
            raise RemoteProtocolError(f"a frame of {len(frame)} bytes has no room for a request header")

    def _decode_large(
        self, route: Route, correlation: int, frame: memoryview, position: int, client_id: str | None
    ) -> None:
        if not self._has_logged_in():  # large requests are served after the login only
            raise RemoteProtocolError("too many tagged fields in a request of a login") from None
        charge_for = self.server.client_quotas.charging(self, route)
        self._large(route, correlation, len(frame)).decode(
            self.router, kept_frame(frame), position, client_id, self, self.client_host, charge_for
        )

    def _advanced(self, work: Steps[T]) -> WorkResult[T] | Steps[T]:
        """Runs the first slice of a handler's work, if the present turn has time for it."""
        slices = self._slices
        if slices.turn_is_over:
            return work
        rest = advance(work)
        slices.count(rest.units if isinstance(rest, WorkResult) else UNITS_PER_SLICE)
        return rest

    def _failed(self, error: BaseException) -> None:
        """A request cannot be answered: closes the connection."""
        if isinstance(error, RemoteProtocolError):
            self.close(str(error))
        elif isinstance(error, InvariantViolated):
            self.close("the node stops")
            self.server.reactor.fatal(error)
        else:
            log.error("Request failed: connection=%r", self, exc_info=error)
            self.close("internal error")

    # -- requests that wait

    def _large(
        self,
        route: Route,
        correlation: int,
        frame_bytes: int,
        charge: Charge | None = None,
        call: Call[Message] | None = None,
    ) -> LargeRequest:
        """A large request, decoded if `call` is given: holds the later requests of this connection until its answer is ready to be
        written.
        """
        slot = ResponseSlot(route, correlation, charge)
        slot.unanswerable = _unanswerable(route, call)
        self.core.open(slot)
        self.core.block(frame_bytes)

        def cancel() -> None:
            request.cancel()
            self._unblock(frame_bytes)

        def answered(parts: list[Buffer]) -> None:
            self._fill(slot, parts)
            self._unblock(frame_bytes)

        request = LargeRequest(self._slices, route, correlation, answered, self._failed, charge)
        slot.cancel = cancel
        return request

    def _await_answer(
        self,
        route: Route,
        correlation: int,
        pending: AnyPending,
        charge: Charge | None,
        call: Call[Message],
        frame_bytes: int,
    ) -> None:
        if self.core.closed:
            return
        if charge is not None:
            charge.pause()
        slot = ResponseSlot(route, correlation, charge)
        slot.cancel = pending.closed
        slot.unanswerable = _unanswerable(route, call)
        self.core.open(slot)
        unblock: Callable[[], None] | None = None
        if pending.blocks:
            self.core.block(frame_bytes)
            unblock = partial(self._unblock, frame_bytes)
        pending.attach(partial(self._answered, slot), unblock)

    def _answered(self, slot: ResponseSlot, response: Answer) -> None:
        """A waiting request has its answer: sends all answers that are ready in order at the end of this wake-up."""
        if self.core.closed:
            return
        while response is not None and not isinstance(response, Message):
            if isinstance(response, Pending):
                if not response.resolved:  # it waits once more
                    slot.cancel = response.closed
                    response.attach(partial(self._answered, slot), None)
                    return
                response = response.response
            elif isinstance(response, Computed) and not response.takes_long:
                response = response.compute()
            else:
                rest = response if isinstance(response, Computed) else self._advanced(response)
                if not isinstance(rest, WorkResult):
                    filled = partial(self._fill, slot)
                    request = LargeRequest(
                        self._slices, slot.route, slot.correlation, filled, self._failed, slot.charge
                    )
                    slot.cancel = request.cancel
                    request.go_on(rest)
                    return
                response = rest.result
        parts: list[Buffer] = []
        try:
            if slot.charge is not None:
                slot.charge.go_on()
            if response is not None:
                parts = (slot.charge or slot.route).frame(slot.correlation, response)
            elif slot.charge is not None:
                slot.charge.unanswered()
        except Exception as error:
            self._failed(error)
        else:
            self._fill(slot, parts)

    def _fill(self, slot: ResponseSlot, parts: list[Buffer]) -> None:
        if slot.timing is not None:
            slot.route.finish(slot.timing)
        self.core.fill(slot, parts)
        self._flush_soon()

    def _continue(self) -> None:
        """A turn for held requests."""
        self._continue_due = False
        self._turn = True
        self.has_left()
        while (frame := self.core.next_held()) is not None:
            try:
                self._serve(frame)
            except Exception as error:
                self._failed(error)
            if self._has_logged_in():
                self._slices.count(UNITS_PER_ARRIVAL)
                if self._slices.turn_is_over:
                    break
        self._end_turn()

    # -- the end

    def _has_logged_in(self) -> bool:
        return self.router is self.server.router

    def _ended(self) -> None:
        if self.login is not None:
            self.login.stop()
            self.login = None  # it has a reference to this connection: the collector does not visit frozen cycles
        self.server.on_disconnected(self)


def _unanswerable(route: Route, call: Call[Message] | None) -> bool:
    """Whether a request gets no answer; any Produce request may be one before it is decoded."""
    return route.api_key == PRODUCE_KEY and (call is None or cast("ProduceRequest", call.request).acks == 0)
