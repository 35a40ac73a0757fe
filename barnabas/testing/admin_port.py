"""The admin port: faults and brokers of a cluster over HTTP on 127.0.0.1, for tests in any language. Off unless a user switches it on.

Driven by: sockets, in the kit's thread; h11 parses and prints HTTP/1.1. Emits: whole requests to `AdminRoutes`, one of a connection at a
time; JSON answers.

A web page must not reach it. A browser names the page in `Origin`, and after DNS rebinding the page's own name in `Host`: a request with
an `Origin`, or with a `Host` other than this machine's, is refused.

A request that changes something runs to its end when its client goes away; one that only reads or waits ends with its client.

Invariants: every connection has a deadline at each moment, its own or that of the work for its request. Its size is bounded: head, body,
bytes that come early, answer that is not read. A turn of the loop parses EVENTS_PER_TURN events of a connection at most.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, cast

from barnabas.network_port import Listener
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.scope import Scope
from barnabas.testing.admin_routes import AdminRoutes, Refusal
from barnabas.testing.errors import KitError
from barnabas.testing.faults.document import DOCUMENT_BYTES_MAX
from barnabas.testing.ports import HOST, checked_admin_port

try:
    import h11
except ImportError:
    raise KitError("the admin port needs the package h11: pip install 'barnabas[lab]'") from None

__all__ = ["AdminPort"]

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 64
HEAD_BYTES_MAX: Final = 16 * 1024
EARLY_BYTES_MAX: Final = 64 * 1024  # of later requests, while one is answered
EVENTS_PER_TURN: Final = 64
REQUEST_S: Final = 10.0  # from the first byte of a request to its last
IDLE_S: Final = 60.0  # between two requests, and for a client to read its answer
LINGER_S: Final = 2.0  # a client that is refused has this time to read why
LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")


class AdminPort:
    """See the module. Made by `open`."""

    def __init__(self, routes: AdminRoutes) -> None:
        self.routes = routes
        self.scope = Scope("admin port")
        self.connections: dict[_Connection, None] = {}
        self._listener: Listener | None = None
        self.number = 0

    @classmethod
    async def open(cls, routes: AdminRoutes, port: object) -> AdminPort:
        """Listens on 127.0.0.1; port 0 takes a free one. Raises KitError."""
        self = cls(routes)
        try:
            self._listener = await AsyncioNetwork().listen(lambda: _Connection(self), HOST, checked_admin_port(port))
        except OSError as error:
            raise KitError(f"admin_port={port}: {error.strerror}; choose another one, or 0 for a free one") from None
        self.number = self._listener.address[1]
        return self

    @property
    def url(self) -> str:
        """http://127.0.0.1:PORT"""
        return f"http://{HOST}:{self.number}"

    def close(self) -> None:
        """Closes the port and its connections."""
        if self._listener is not None:
            self._listener.close()
        self.scope.cancel()
        for each in list(self.connections):
            each.abort()


class _Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, port: AdminPort) -> None:
        self._port = port
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._request: h11.Request | None = None
        self._begun = False  # the first byte of a request has come
        self._body = bytearray()
        self._early = 0  # bytes that came while a request was answered
        self._work: asyncio.Task[None] | None = None
        self._refused = False  # what still comes is not read
        self._advance_due = False
        self._writable = True

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)
        if self._port.scope.stopping:  # it was accepted while the port closed
            self.abort()
            return
        full = max(len(self._port.connections), len(self._port.scope)) >= CONNECTIONS_MAX
        self._port.connections[self] = None
        self._within(IDLE_S)
        if full:
            self._refuse(Refusal(503, f"{CONNECTIONS_MAX} connections are open: close some"))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called by the loop."""
        self._transport = None
        self._port.connections.pop(self, None)
        self._end_timer()
        if self._work is not None and self._request is not None and self._request.method == b"GET":
            self._work.cancel()

    def pause_writing(self) -> None:
        """Called by the loop: the client leaves its answers unread."""
        self._writable = False

    def resume_writing(self) -> None:
        """Called by the loop: the client reads again."""
        self._writable = True
        self._next_request()

    def eof_received(self) -> bool:
        """Called by the loop: the client sends no more. Closes the connection; answers that are written still leave."""
        return False

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if self._refused:
            return
        if self._work is not None:
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
        """Ends the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- requests

    def _advance(self) -> None:
        """Takes what has come, at most EVENTS_PER_TURN events of it."""
        self._advance_due = False
        for _ in range(EVENTS_PER_TURN):
            if self._transport is None or self._work is not None or self._refused:
                return
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                self._refuse(Refusal(error.error_status_hint, f"this is no request of HTTP/1.1: {error}"))
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
        if isinstance(event, h11.Request):
            self._request = event
            refusal = _refusal(event)
            if refusal is not None:
                self._refuse(refusal)
        elif isinstance(event, h11.Data):
            self._body += event.data
            if len(self._body) > DOCUMENT_BYTES_MAX:
                self._refuse(Refusal(413, f"the body has more than {DOCUMENT_BYTES_MAX} bytes"))
        elif isinstance(event, h11.EndOfMessage) and self._request is not None:
            self._end_timer()
            self._work = self._port.scope.start(self._answer(self._request, bytes(self._body)), name="request")
        elif isinstance(event, h11.ConnectionClosed) and self._transport is not None:
            self._transport.close()

    async def _answer(self, request: h11.Request, body: bytes) -> None:
        try:
            status, value = await self._port.routes.answer(
                request.method.decode("latin-1"), request.target.decode("latin-1"), body
            )
            headers: Mapping[str, str] = {}
        except Refusal as refusal:
            status, value, headers = refusal.status, {"error": str(refusal)}, refusal.headers
        except Exception as error:  # the client gets it, and the port goes on
            log.exception("%s %s", request.method, request.target)
            status, value, headers = 500, {"error": f"{type(error).__name__}: {error}"}, {}
        self._work = None
        self._respond(status, value, headers)
        self._next_request()

    def _next_request(self) -> None:
        """Takes the next request once the answer before it is written."""
        if self._transport is None or self._work is not None or self._refused or not self._writable:
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

    def _respond(self, status: int, value: Any, headers: Mapping[str, str]) -> None:
        if self._transport is None:
            return
        body = json.dumps(value).encode() + b"\n"
        self._within(IDLE_S)
        self._send(
            h11.Response(
                status_code=status,
                reason=HTTPStatus(status).phrase,
                headers=[
                    ("content-type", "application/json"),
                    ("content-length", str(len(body))),
                    ("cache-control", "no-store"),
                    *headers.items(),
                ],
            )
        )
        self._send(h11.Data(data=body))
        self._send(h11.EndOfMessage())

    def _send(self, event: Any) -> None:
        data = self._http.send(event)
        if data and self._transport is not None:
            self._transport.write(data)

    def _refuse(self, refusal: Refusal) -> None:
        """Answers without reading the rest of the request, and closes; the client has time to read the answer."""
        if self._transport is None or self._refused:
            return
        self._refused = True
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._respond(refusal.status, {"error": str(refusal)}, {**refusal.headers, "connection": "close"})
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
            and self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE)
        ):
            self._refuse(Refusal(408, f"the request did not come within {REQUEST_S:g} s"))
        else:
            self.abort()


def _refusal(request: h11.Request) -> Refusal | None:
    """Why a request is not read further, by its head."""
    if request.http_version not in (b"1.0", b"1.1"):
        return Refusal(505, f"HTTP/{request.http_version.decode('latin-1')} is not served: use HTTP/1.1")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
    if "origin" in headers:
        return Refusal(403, "a web page may not use the admin port: the request has an Origin")
    host = headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name.lower() not in LOCAL_HOSTS:
        return Refusal(403, f"the Host {host[:100]!r} is not this machine's: use 127.0.0.1 or localhost")
    length = headers.get("content-length", "0")
    if len(length) > len(str(DOCUMENT_BYTES_MAX)) or int(length) > DOCUMENT_BYTES_MAX:
        return Refusal(413, f"the body has more than {DOCUMENT_BYTES_MAX} bytes")
    return None
