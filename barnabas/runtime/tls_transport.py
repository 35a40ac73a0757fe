"""TlsConnection: TLS between a plain transport and a protocol, for asyncio and uvloop.
The loops' own TLS keeps 512 KiB of buffers for each connection, and starts a handshake with the first byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any, Final, cast

from barnabas.errors import RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.runtime.tls_errors import explained
from barnabas.runtime.tls_handshakes import HANDSHAKE_TIMEOUT_S, RECORD_BYTES, HandshakeGate, has_first_record

READ_BYTES: Final = 256 * 1024
_SHARES_BUFFER: Final = sys.platform != "win32"  # Windows' loop reads into several buffers at once

SLICE_BYTES: Final = 64 * 1024  # encrypted bytes in OpenSSL's buffers at once: those buffers never shrink
ENCRYPTED_RECORD_BYTES: Final = RECORD_BYTES + 2048 + 5  # the most that TLS 1.2 allows; TLS 1.3 allows less
TURN_BYTES: Final = 2 * 1024 * 1024  # encrypted in one turn of the loop: about 2 ms
WRITE_HIGH: Final = 256 * 1024  # of the plain transport
_ALERT: Final = b"\x15\x03\x03\x00\x02\x02\x50"  # internal_error, which Java's TLS sends to a client that speaks no TLS
_NOTHING: Final = memoryview(b"")


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_BYTES))


_shared: Final = _OfThread()


def receive_buffer() -> memoryview:
    return _shared.view if _SHARES_BUFFER else memoryview(bytearray(READ_BYTES))


class _State(Enum):
    FIRST_MESSAGE = auto()  # a server waits for the client's first message
    HANDSHAKE = auto()
    OPEN = auto()
    CLOSING = auto()  # writes the rest
    CLOSED = auto()


class TlsConnection(asyncio.BufferedProtocol, asyncio.Transport):
    """One connection; protocol of the plain transport, transport of the application's protocol.

    Before the end of the handshake the application gets no data. No turn encrypts more than TURN_BYTES; unread data
    stays unencrypted.

    Args:
        application: gets `connection_made` after the handshake; as a server's also `connection_accepted` before it, if
            it has that method: with this transport, which can then only be aborted or closed.
        context: called when the handshake begins.
        server_name: of a client: host name or address of the certificate.
        gate: of a server.

    Attributes:
        established: of a client: done after the handshake; OSError if it fails.
    """

    def __init__(
        self,
        application: asyncio.BaseProtocol,
        context: Callable[[], ssl.SSLContext],
        *,
        server_name: str | None = None,
        gate: HandshakeGate | None = None,
    ) -> None:
        self.set_protocol(application)
        self._context = context
        self._server_name = server_name
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self.established: asyncio.Future[None] | None = self._loop.create_future() if gate is None else None
        self._state = _State.FIRST_MESSAGE if gate is not None else _State.HANDSHAKE
        self._first = bytearray()  # of the client's first message
        self._plain: asyncio.Transport | None = None
        self._incoming = self._outgoing = cast(ssl.MemoryBIO, None)
        self._object = cast(ssl.SSLObject, None)
        self._decrypt: Callable[[int, memoryview], int]  # into a buffer, one record at most: gives a count
        self._received = receive_buffer()
        self._deadline: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._backlog: deque[Buffer] = deque()  # written by the application, not encrypted yet
        self._backlog_bytes = 0
        self._blocked = False  # the plain transport has enough to write
        self._pump_due = False
        self._paused = False  # the application does not read
        self._application_waits = False  # asked to pause writing
        self._high = 64 * 1024
        self._low = 16 * 1024

    @staticmethod
    async def opened(protocol: asyncio.BaseProtocol) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Waits for the handshake of a client's connection. Raises OSError if it failed."""
        connection = cast(TlsConnection, protocol)
        try:
            await cast("asyncio.Future[None]", connection.established)
        except BaseException:
            connection.abort()
            raise
        return connection, connection.get_protocol()

    # -- the plain transport's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._plain = plain = cast(asyncio.Transport, transport)
        plain.set_write_buffer_limits(high=WRITE_HIGH)
        if self._gate is None:
            self.begin_handshake()
            return
        self._deadline = self._loop.call_later(HANDSHAKE_TIMEOUT_S, self._overdue)
        accepted = getattr(self._application, "connection_accepted", None)
        if accepted is not None:
            accepted(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        received = self._received[:nbytes]
        state = self._state
        if state is _State.OPEN:
            self._read(received)
        elif state is _State.FIRST_MESSAGE:
            self._first_message(received)
        elif state is _State.HANDSHAKE and self._plain is not None:
            self._incoming.write(received)
            if self._gate is None:
                self.go_on_handshake()
            else:
                self._plain.pause_reading()
                self._gate.go_on(self)

    def eof_received(self) -> bool:
        """The peer sends no more. Returns whether the application has work left, and closes later."""
        return self._state is _State.OPEN and bool(self._application.eof_received())

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self._pump()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._gate is not None and self._state is _State.HANDSHAKE:
            self.fail("the other side closed the connection")
        self._end_handshake()
        unfinished = self._state in (_State.FIRST_MESSAGE, _State.HANDSHAKE)
        self._state = _State.CLOSED
        self._plain = None
        self._backlog.clear()
        self._backlog_bytes = 0
        error, self._error = self._error if exc is None else exc, None  # its traceback has frames of this connection
        if self.established is not None and not self.established.done():
            if not isinstance(error, OSError) or isinstance(error, ConnectionResetError):
                error = ConnectionResetError(
                    "the other side closed the connection during the TLS handshake: is its listener PLAINTEXT?"
                )
            self.established.set_exception(error)
            return
        if unfinished and self.established is not None:
            return  # the client gave up
        self._application.connection_lost(cast("Exception | None", error))

    # -- the handshake

    def _first_message(self, received: memoryview) -> None:
        """Waits for the whole first record before TLS state is created for the client."""
        self._first += received
        plain, gate = self._plain, self._gate
        if plain is None or gate is None:
            return
        try:
            whole = has_first_record(self._first)
        except RemoteProtocolError as error:
            plain.write(_ALERT)
            self.fail(str(error))
            return
        if whole:
            plain.pause_reading()
            gate.enter(self)

    def begin_handshake(self) -> None:
        plain = self._plain
        if plain is None:
            return
        self._state = _State.HANDSHAKE
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self._object = self._context().wrap_bio(
                self._incoming, self._outgoing, server_side=self._gate is not None, server_hostname=self._server_name
            )
            self._decrypt = cast("Callable[[int, memoryview], int]", self._object.read)
        except (ssl.SSLError, ValueError) as error:
            self._error = error if isinstance(error, OSError) else OSError(str(error))
            self.fail(str(error))
            return
        self._incoming.write(self._first)
        self._first = bytearray()
        self.go_on_handshake()

    def go_on_handshake(self) -> None:
        if self._plain is None or self._state is not _State.HANDSHAKE:
            return
        self._plain.resume_reading()
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._error = error
            self._flush()  # the alert
            self.fail(explained(error))
        else:
            self._flush()
            self._open()

    def _open(self) -> None:
        self._end_handshake()
        self._state = _State.OPEN
        self._acknowledge()
        if self.established is not None:
            if self.established.done():  # the caller gave up
                self.abort()
                return
            self.established.set_result(None)
        self._application.connection_made(self)
        self._read(_NOTHING)  # data after the end of the handshake

    def _acknowledge(self) -> None:
        # Without session tickets no response carries the acknowledgement of the client's last message, and Nagle's
        # algorithm would hold its first request for 40 ms.
        option = getattr(socket, "TCP_QUICKACK", None)  # Linux
        connected = None if self._plain is None or self._gate is None else self._plain.get_extra_info("socket")
        if option is not None and connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, 1)

    def _overdue(self) -> None:
        got = "its first message" if self._first or self._object is None else "the handshake"
        self.fail(f"{got} was not complete after {HANDSHAKE_TIMEOUT_S:g} s")

    def fail(self, reason: str) -> None:
        """Ends a connection after a failed handshake; written bytes leave."""
        plain, gate = self._plain, self._gate
        if plain is None or self._state is _State.CLOSED:
            return
        self._end_handshake()
        if gate is not None:
            peer = plain.get_extra_info("peername") or ("?", 0)
            gate.failed(str(peer[0]), int(peer[1]), reason)
            self._state = _State.CLOSED
        plain.close()

    def _end_handshake(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._gate is not None:
            self._gate.leave(self)

    # -- reading

    def _read(self, rest: memoryview) -> None:
        """Decrypts and delivers, one call of the application for each of its buffers."""
        done = False
        while not done and self._state is _State.OPEN and not self._paused:
            rest, done = self._read_buffer(rest)
        if rest and self._state is _State.OPEN:
            self._incoming.write(rest)
        if self._outgoing.pending:
            self._flush()  # a response of TLS itself, such as a key update

    def _read_buffer(self, rest: memoryview) -> tuple[memoryview, bool]:
        """Fills one buffer of the application. Returns the remaining encrypted bytes, and whether reading must stop."""
        incoming, decrypt = self._incoming, self._decrypt
        buffer = memoryview(self._application.get_buffer(-1) if self._buffered else bytearray(SLICE_BYTES))
        size, count, done, ended = len(buffer), 0, False, False
        failure: ssl.SSLError | None = None
        # With more bytes than `low` OpenSSL has a whole record; adding bytes would move them.
        low = ENCRYPTED_RECORD_BYTES if rest else 0
        while count < size:
            if incoming.pending <= low:
                if rest:
                    incoming.write(rest[:SLICE_BYTES])
                    rest = rest[SLICE_BYTES:]
                    low = ENCRYPTED_RECORD_BYTES if rest else 0
                elif count:  # before the first call OpenSSL may hold decrypted bytes
                    done = True
                    break
            try:
                got = decrypt(size, buffer[count:])
            except ssl.SSLWantReadError:
                if rest:
                    continue
                done = True
                break
            except ssl.SSLError as error:
                failure = error.with_traceback(None)  # it has this frame: a reference cycle
                break
            if not got:
                done = ended = True
                break
            count += got
        if count and self._buffered:
            self._application.buffer_updated(count)
        elif count:
            cast(asyncio.Protocol, self._application).data_received(bytes(buffer[:count]))
        if failure is not None:
            self._close_plain(failure)
        elif ended and self._state is _State.OPEN:
            (self.pause_reading if self._application.eof_received() else self.close)()  # nothing may follow
            return _NOTHING, True
        return rest, done

    def pause_reading(self) -> None:
        self._paused = True
        if self._plain is not None and not self._plain.is_closing():
            self._plain.pause_reading()

    def resume_reading(self) -> None:
        if not self._paused:
            return
        self._paused = False
        if self._plain is not None and not self._plain.is_closing():
            self._plain.resume_reading()
            self._loop.call_soon(self._read_pending)

    def _read_pending(self) -> None:
        if self._state is _State.OPEN and not self._paused:
            self._read(_NOTHING)

    def is_reading(self) -> bool:
        return not self._paused and self._state is _State.OPEN

    # -- writing

    def write(self, data: Buffer) -> None:
        if self._state is not _State.OPEN or not data:
            return
        if self._backlog or self._blocked or len(data) > RECORD_BYTES:
            self._queue([data], len(data))
            return
        try:
            size = self._object.write(data)  # less than all of it if the other side has negotiated short records
        except ssl.SSLError as error:
            self._close_plain(error)
            return
        self._flush()
        if size < len(data):
            self._queue([memoryview(data)[size:]], len(data) - size)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        parts = list(list_of_data)
        size = sum(map(len, parts))
        if size <= RECORD_BYTES:
            self.write(b"".join(parts))
        elif self._state is _State.OPEN:
            self._queue(parts, size)

    def _queue(self, parts: list[Buffer], size: int) -> None:
        self._backlog += parts
        self._backlog_bytes += size
        if not self._blocked and not self._pump_due:
            self._pump()
        if not self._application_waits and self._backlog_bytes and self.get_write_buffer_size() > self._high:
            self._application_waits = True
            self._application.pause_writing()

    def _pump(self) -> None:
        """Encrypts as much as the plain transport accepts now, at most TURN_BYTES."""
        self._pump_due = False
        if self._plain is None or self._state not in (_State.OPEN, _State.CLOSING):
            return
        backlog, outgoing, encrypt = self._backlog, self._outgoing, self._object.write
        left = TURN_BYTES
        try:
            while backlog and left > 0 and not self._blocked:
                plain = memoryview(self._next_plain())
                size = min(len(plain), left)
                at = 0
                while at < size and not self._blocked:
                    at += encrypt(plain[at:])
                    if outgoing.pending >= SLICE_BYTES:
                        self._flush()
                left -= at
                self._backlog_bytes -= at
                if at < len(plain):
                    backlog.appendleft(plain[at:])
        except ssl.SSLError as error:
            self._close_plain(error)
            return
        self._flush()
        if backlog:
            if not self._blocked and not self._pump_due:
                self._pump_due = True
                self._loop.call_soon(self._pump)
        elif self._state is _State.CLOSING:
            self._finish()
        if self._application_waits and not self._blocked and self._backlog_bytes <= self._low:
            self._application_waits = False
            self._application.resume_writing()

    def _next_plain(self) -> Buffer:
        """Next bytes to encrypt: small parts are joined to a record."""
        backlog = self._backlog
        first = backlog.popleft()
        size = len(first)
        if size >= RECORD_BYTES or not backlog:
            return first
        parts = [first]
        while backlog and size < RECORD_BYTES:
            part = backlog.popleft()
            room = RECORD_BYTES - size
            if len(part) > room:
                view = memoryview(part)
                backlog.appendleft(view[room:])
                part = view[:room]
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def _flush(self) -> None:
        if self._plain is not None and self._outgoing.pending:
            self._plain.write(self._outgoing.read())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low
        if self._plain is not None:
            self._plain.set_write_buffer_limits(high=min(self._high, WRITE_HIGH))

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._backlog_bytes + (self._plain.get_write_buffer_size() if self._plain is not None else 0)

    def can_write_eof(self) -> bool:
        return False

    # -- the end

    def close(self) -> None:
        if self._state is _State.OPEN:
            self._state = _State.CLOSING
            if not self._backlog:
                self._finish()
        elif self._state in (_State.FIRST_MESSAGE, _State.HANDSHAKE):
            self.abort()

    def _finish(self) -> None:
        """Sends close_notify, and closes."""
        with contextlib.suppress(ssl.SSLError):  # it waits for the other side's response, which is not needed
            self._object.unwrap()
        self._close_plain()

    def _close_plain(self, error: ssl.SSLError | None = None) -> None:
        self._error = error
        self._flush()
        self._state = _State.CLOSED
        self._backlog.clear()
        self._backlog_bytes = 0
        if self._plain is not None:
            self._plain.close()

    def abort(self) -> None:
        self._state = _State.CLOSED
        if self._plain is not None:
            self._plain.abort()

    def is_closing(self) -> bool:
        return self._state in (_State.CLOSING, _State.CLOSED)

    # -- about the connection

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._object if self._state is not _State.FIRST_MESSAGE else default
        return default if self._plain is None else self._plain.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._application

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._application = cast(asyncio.BufferedProtocol, protocol)
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)
