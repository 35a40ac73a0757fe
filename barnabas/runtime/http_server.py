"""HTTP/1.1 server for the test kit's admin port and a node's metrics, with bounded memory and deadlines.
At CONNECTIONS_MAX a new connection evicts the oldest one that waits for its client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
REQUEST_S: Final = 10.0  # from the first byte of a request to its last
IDLE_S: Final = 60.0  # between two requests, and for a client to read a part of its response
LINGER_S: Final = 2.0  # for a client that sends no more, or is rejected, to read the response


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
        clients: a task for each connection; a GET ends with its client.
        scope: the changes; they complete although their clients disconnect.
    """

    def __init__(self, service: Service, name: str) -> None:
        self.service = service
        self.scope = Scope(name)
        self.clients = Scope(f"{name} clients")
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
        self.clients.cancel()
        self.scope.cancel()
        for each in list(self.connections):
            each.abort()


class _Connection(asyncio.Protocol):
    """One client. A task reads its requests and writes the responses."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._method = ""  # of the present request
        self._answering = False
        self._early = 0  # bytes received while a request is answered
        self._refused = False  # later data is not read

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
        self._task = server.clients.start(self._serve(full=full), name="client")

    def connection_lost(self, exc: BaseException | None) -> None:
        self._server.connections.pop(self, None)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def eof_received(self) -> bool:
        """The client sends no more, and has perhaps left. It gets the responses of the next LINGER_S."""
        if not self._refused:
            self._http.receive_data(b"")
            self._arrived.set()
            asyncio.get_running_loop().call_later(LINGER_S, self.abort)
        return True

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._answering:
            self._early += len(data)
            if self._early > EARLY_BYTES_MAX:
                self.abort()
                return
        self._http.receive_data(data)
        self._arrived.set()

    def abort(self) -> None:
        self._server.connections.pop(self, None)
        self._transport.abort()

    @property
    def waits_for_client(self) -> bool:
        """Whether the client must send the rest of a request, or read its response."""
        return not self._answering or not self._writable.is_set()

    # -- requests

    async def _serve(self, *, full: bool) -> None:
        try:
            if full:
                raise HttpRefusal(503, f"{CONNECTIONS_MAX} connections are open: close some")
            while self._http.our_state is h11.IDLE and await self._begun():
                await self._exchange()
            self._transport.close()
        except HttpRefusal as refusal:
            with contextlib.suppress(TimeoutError):
                await self._refuse(refusal)
            self.abort()
        except TimeoutError:  # the client sends no request, or does not read its response
            self.abort()

    async def _begun(self) -> bool:
        """Waits for the first byte of a request; False if none follows. Raises TimeoutError."""
        async with asyncio.timeout(IDLE_S):
            while not any(self._http.trailing_data):
                await self._more()
        return bool(self._http.trailing_data[0])

    async def _exchange(self) -> None:
        """Reads a request and writes its response. Raises HttpRefusal, TimeoutError."""
        try:
            async with asyncio.timeout(REQUEST_S):
                request = await self._request()
        except TimeoutError:
            raise HttpRefusal(408, f"the request did not come within {REQUEST_S:g} s") from None
        except h11.RemoteProtocolError as error:
            raise HttpRefusal(error.error_status_hint, f"this is no request of HTTP/1.1: {error}") from None
        self._answering, self._early = True, 0
        if request.method in ("GET", "HEAD"):
            answer = await self._answer(request)
        else:  # a change completes although its client disconnects
            answer = await asyncio.shield(self._server.scope.start(self._answer(request), name="change"))
        await self._respond(answer)
        self._answering = False
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()

    async def _request(self) -> HttpRequest:
        """Raises HttpRefusal, h11.RemoteProtocolError."""
        service = self._server.service
        head = await self._event()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        self._method = head.method.decode("latin-1")
        request = HttpRequest(self._method, head.target.decode("latin-1"), headers)
        refusal = _wrong_version(head.http_version) or service.refusal(request)
        if refusal is not None:
            raise refusal
        most = service.body_bytes_max
        too_large = HttpRefusal(413, f"the body has more than {most} bytes")
        length = headers.get("content-length", "0")
        if len(length) > len(str(most)) or int(length) > most:
            raise too_large
        body = bytearray()
        while isinstance(event := await self._event(), h11.Data):
            body += event.data
            if len(body) > most:
                raise too_large
            await asyncio.sleep(0)  # a chunk may have one byte: others get their turn
        return replace(request, body=bytes(body))

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                self._send(h11.InformationalResponse(status_code=100, headers=[]))
            await self._more()
        return event

    async def _more(self) -> None:
        self._arrived.clear()
        await self._arrived.wait()

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        service = self._server.service
        try:
            return await service.answer(request)
        except HttpRefusal as refusal:
            return service.told(refusal)
        except Exception as error:  # the client gets it, and the server continues
            log.exception("HTTP request failed: method=%s target=%s", request.method, request.target)
            return service.told(HttpRefusal(500, f"{type(error).__name__}: {error}"))

    # -- answers

    async def _respond(self, answer: HttpAnswer) -> None:
        """Writes a response as fast as the client reads. Raises TimeoutError."""
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
        for number, piece in enumerate(() if self._method == "HEAD" else answer.body):
            if number:
                await asyncio.sleep(0)  # others get their turn
            self._send(h11.Data(data=piece))
            await self._drained()
        self._send(h11.EndOfMessage())
        await self._drained()

    async def _drained(self) -> None:
        async with asyncio.timeout(IDLE_S):
            await self._writable.wait()

    def _send(self, event: Any) -> None:
        data = self._http.send(event)
        if data:
            self._transport.write(data)

    async def _refuse(self, refusal: HttpRefusal) -> None:
        """Responds without reading the rest of the request, and gives the client time to read. Raises TimeoutError."""
        self._refused = True
        told = self._server.service.told(refusal)
        await self._respond(replace(told, headers={**told.headers, "connection": "close"}))
        if self._transport.can_write_eof():
            self._transport.write_eof()
        await asyncio.sleep(LINGER_S)


def _wrong_version(version: bytes) -> HttpRefusal | None:
    if version in (b"1.0", b"1.1"):
        return None
    return HttpRefusal(505, f"HTTP/{version.decode('latin-1')} is not served: use HTTP/1.1")
