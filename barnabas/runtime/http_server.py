"""HTTP/1.1 server for the test kit's admin port and a node's metrics, with bounded memory and deadlines.
At CONNECTIONS_MAX a new connection evicts the oldest one that waits for its client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Protocol, cast

import h11

from barnabas.loggers import logger
from barnabas.network_port import Listener, Network
from barnabas.runtime.scope import Scope

log = logger("kafka.network.SocketServer")

CONNECTIONS_MAX: Final = 64
HEAD_BYTES_MAX: Final = 16 * 1024
EARLY_BYTES_MAX: Final = 64 * 1024  # of later requests, while one is answered
EVENTS_PER_TURN: Final = 64
WRITTEN_PER_TURN: Final = 256 * 1024
REQUEST_S: Final = 10.0  # from the first byte of a request to its last
IDLE_S: Final = 60.0  # between two requests, and for a client to read a part of its response
LINGER_S: Final = 2.0  # a client that is rejected has this time to read why


class HttpRefusal(Exception):
    """A rejected request.

    Attributes:
        status: of HTTP.
        headers: further headers of the response.
    """

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = dict(headers or {})


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A whole request. `headers` has names in lower case; the last of several values counts."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A response. `body` is sent piece by piece, as fast as the client reads."""

    status: int
    content_type: str
    body: Sequence[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)


class Service(Protocol):
    """Handler of a server's requests."""

    body_bytes_max: int  # of a request

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Why a request is not read further, by its head."""
        ...

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Response to a whole request. Raises HttpRefusal."""
        ...

    def told(self, refusal: HttpRefusal) -> HttpAnswer:
        """Response to a rejected request."""
        ...


class HttpServer:
    """A server, created by `open`.

    Attributes:
        address: the bound host and port.
        connections: the open connections.
        scope: the work for requests; a change completes although its client disconnects.
    """

    def __init__(self, service: Service, name: str) -> None:
        self.service = service
        self.scope = Scope(name)
        self.connections: dict[_Connection, None] = {}
        self._listener: Listener | None = None
        self.address = ("", 0)

    @classmethod
    async def open(cls, service: Service, network: Network, host: str, port: int, *, name: str) -> HttpServer:
        """Listens; port 0 selects a free one. Raises OSError if the address is in use or not of this machine."""
        self = cls(service, name)
        self._listener = await network.listen(lambda: _Connection(self), host, port)
        self.address = self._listener.address
        return self

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.scope.cancel()
        for each in list(self.connections):
            each.abort()


class _Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._request: HttpRequest | None = None
        self._begun = False  # the first byte of a request has come
        self._body = bytearray()
        self._early = 0  # bytes that came while a request was answered
        self._work: asyncio.Task[None] | None = None
        self._refused = False  # later data is not read
        self._advance_due = False
        self._writable = True
        self._unsent: deque[bytes] = deque()  # pieces of the present response
        self._send_due = False

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        server = self._server
        if server.scope.stopping:  # it was accepted while the server closed
            self.abort()
            return
        if len(server.connections) >= CONNECTIONS_MAX:
            oldest = next((each for each in server.connections if each.waits_for_client), None)
            if oldest is not None:
                oldest.abort()
        full = max(len(server.connections), len(server.scope)) >= CONNECTIONS_MAX
        server.connections[self] = None
        self._within(IDLE_S)
        if full:
            self._refuse(HttpRefusal(503, f"{CONNECTIONS_MAX} connections are open: close some"))

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        self._unsent.clear()
        self._server.connections.pop(self, None)
        self._end_timer()
        if self._work is not None and self._request is not None and self._request.method in ("GET", "HEAD"):
            self._work.cancel()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._send_on()

    def eof_received(self) -> bool:
        """The client sends no more. Closes after the written responses."""
        return False

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._work is not None or self._unsent:
            self._early += len(data)
            if self._early > EARLY_BYTES_MAX:
                self.abort()
                return
        elif not self._begun:
            self._begun = True
            self._within(REQUEST_S)
        self._http.receive_data(data)
        self._advance()

    def abort(self) -> None:
        self._server.connections.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    @property
    def waits_for_client(self) -> bool:
        """Whether the client must send the rest of a request, or read its response."""
        return self._work is None and not (self._unsent and self._writable)

    # -- requests

    @property
    def _answers(self) -> bool:
        return self._transport is None or self._work is not None or self._refused or bool(self._unsent)

    def _advance(self) -> None:
        """Handles received data, at most EVENTS_PER_TURN events."""
        self._advance_due = False
        for _ in range(EVENTS_PER_TURN):
            if self._answers:
                return
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                self._refuse(HttpRefusal(error.error_status_hint, f"this is no request of HTTP/1.1: {error}"))
                return
            if event is h11.NEED_DATA or event is h11.PAUSED:
                if self._http.they_are_waiting_for_100_continue:
                    self._send(h11.InformationalResponse(status_code=100, headers=[]))
                return
            self._on_event(event)
        if not self._advance_due:
            self._advance_due = True
            asyncio.get_running_loop().call_soon(self._advance)

    def _on_event(self, event: Any) -> None:
        service = self._server.service
        if isinstance(event, h11.Request):
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
            request = HttpRequest(event.method.decode("latin-1"), event.target.decode("latin-1"), headers)
            self._request = request
            refusal = _wrong_version(event.http_version) or service.refusal(request) or self._too_much(headers)
            if refusal is not None:
                self._refuse(refusal)
        elif isinstance(event, h11.Data):
            self._body += event.data
            if len(self._body) > service.body_bytes_max:
                self._refuse(self._large_body())
        elif isinstance(event, h11.EndOfMessage) and self._request is not None:
            self._end_timer()
            self._work = self._server.scope.start(self._answer(self._request, bytes(self._body)), name="request")
        elif isinstance(event, h11.ConnectionClosed) and self._transport is not None:
            self._transport.close()

    def _too_much(self, headers: Mapping[str, str]) -> HttpRefusal | None:
        length, most = headers.get("content-length", "0"), self._server.service.body_bytes_max
        return self._large_body() if len(length) > len(str(most)) or int(length) > most else None

    def _large_body(self) -> HttpRefusal:
        return HttpRefusal(413, f"the body has more than {self._server.service.body_bytes_max} bytes")

    async def _answer(self, request: HttpRequest, body: bytes) -> None:
        service = self._server.service
        try:
            answer = await service.answer(HttpRequest(request.method, request.target, request.headers, body))
        except HttpRefusal as refusal:
            answer = service.told(refusal)
        except Exception as error:  # the client gets it, and the server continues
            log.exception("HTTP request failed: method=%s target=%s", request.method, request.target)
            answer = service.told(HttpRefusal(500, f"{type(error).__name__}: {error}"))
        self._work = None
        self._respond(answer)
        self._send_on()

    def _next_request(self) -> None:
        if self._answers or not self._writable or self._transport is None:
            return
        if self._http.our_state is h11.MUST_CLOSE:
            self._transport.close()
        elif self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._request, self._body, self._early = None, bytearray(), 0
            self._http.start_next_cycle()
            self._begun = bool(self._http.trailing_data[0])
            self._within(REQUEST_S if self._begun else IDLE_S)
            self._advance()

    # -- answers

    def _respond(self, answer: HttpAnswer) -> None:
        """Writes the head; `_send_on` writes the rest."""
        if self._transport is None:
            return
        self._within(IDLE_S)
        self._send(
            h11.Response(
                status_code=answer.status,
                reason=HTTPStatus(answer.status).phrase,
                headers=[
                    ("content-type", answer.content_type),
                    ("content-length", str(sum(map(len, answer.body)))),
                    ("cache-control", "no-store"),
                    *answer.headers.items(),
                ],
            )
        )
        if self._request is None or self._request.method != "HEAD":
            self._unsent.extend(piece for piece in answer.body if piece)
        if not self._unsent:
            self._send(h11.EndOfMessage())

    def _send_on(self) -> None:
        """Writes pieces of the response while the client reads; then takes the next request."""
        self._send_due = False
        unsent = self._unsent
        if unsent and self._writable and self._transport is not None:
            self._within(IDLE_S)
            written = 0
            while unsent and self._writable and self._transport is not None:
                if written > WRITTEN_PER_TURN:
                    self._send_later()
                    return
                piece = unsent.popleft()
                written += len(piece)
                self._send(h11.Data(data=piece))
                if not unsent:
                    self._send(h11.EndOfMessage())
        self._next_request()

    def _send_later(self) -> None:
        if not self._send_due:
            self._send_due = True
            asyncio.get_running_loop().call_soon(self._send_on)

    def _send(self, event: Any) -> None:
        data = self._http.send(event)
        if data and self._transport is not None:
            self._transport.write(data)

    def _refuse(self, refusal: HttpRefusal) -> None:
        """Responds without reading the rest of the request, and closes after the client had time to read."""
        if self._transport is None or self._refused:
            return
        self._refused = True
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            told = self._server.service.told(refusal)
            self._respond(
                HttpAnswer(told.status, told.content_type, told.body, {**told.headers, "connection": "close"})
            )
            self._send_on()
        self._within(LINGER_S)
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    # -- time

    def _within(self, seconds: float) -> None:
        self._end_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._late)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if (
            self._begun
            and self._writable
            and not self._refused
            and not self._unsent
            and self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE)
        ):
            self._refuse(HttpRefusal(408, f"the request did not come within {REQUEST_S:g} s"))
        else:
            self.abort()


def _wrong_version(version: bytes) -> HttpRefusal | None:
    if version in (b"1.0", b"1.1"):
        return None
    return HttpRefusal(505, f"HTTP/{version.decode('latin-1')} is not served: use HTTP/1.1")
