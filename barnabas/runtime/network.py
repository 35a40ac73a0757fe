"""TCP network through the running asyncio or uvloop loop, with its own accept.
A listener can pause, and closes connections without a free descriptor instead of looping or closing itself.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.loggers import logger
from barnabas.network_port import PLAIN_LISTENER, Listener, ListenerOptions
from barnabas.runtime import descriptors
from barnabas.runtime.resolver import Resolver
from barnabas.runtime.scope import Scope

if TYPE_CHECKING:
    import ssl

log = logger("kafka.network.SocketServer")

ACCEPTS_PER_TURN: Final = 64  # connections accepted in one turn of the loop: about 2 ms
RETRY_S: Final = 0.1  # pause after accept() failed for lack of descriptors or memory
LOG_EVERY_S: Final = 1.0
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class TcpListener:
    """Bound server sockets of one address; see `barnabas.network_port.Listener`.

    `reserved` returns the descriptors that are kept for files at present.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Callable[[], asyncio.BaseProtocol],
        options: ListenerOptions,
        reserved: Callable[[], int],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._factory = factory if options.tls is None else _with_tls(factory, options.tls, options.on_tls_failure)
        self._options = options
        self._reserved = reserved
        self._scope = Scope("listener")
        self._accepting = False
        self._paused = False
        self._retry: asyncio.TimerHandle | None = None  # after an accept() that failed
        self._refused = 0  # connections closed for lack of descriptors since the last log line
        self._next_line_s = 0.0
        host, port = sockets[0].getsockname()[:2]
        self._address = (str(host), int(port))

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    async def accept(self) -> None:
        for each in self._sockets:
            each.listen(self._options.backlog)
        self._accepting = True
        self._watch()

    def pause(self) -> None:
        self._paused = True
        self._watch()

    def resume(self) -> None:
        self._paused = False
        self._watch()

    def close(self) -> None:
        self._accepting = False
        if self._retry is not None:
            self._retry.cancel()
        self._watch()
        for each in self._sockets:
            each.close()
        self._sockets = []

    def _watch(self) -> None:
        wanted = self._accepting and not self._paused and self._retry is None
        for each in self._sockets:
            if wanted:
                self._loop.add_reader(each.fileno(), self._take, each)
            else:
                self._loop.remove_reader(each.fileno())

    def _take(self, listening: socket.socket) -> None:
        room = descriptors.limit() - self._reserved() - self._options.descriptors_left
        for _ in range(ACCEPTS_PER_TURN):
            if self._paused or not self._accepting:
                return
            try:
                connected, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._retry_later(error)
                return
            if connected.fileno() >= room:  # the system gives the lowest free number: about that many are in use
                connected.close()
                self._refuse()
                continue
            connected.setblocking(False)
            self._scope.start(self._begin(connected, self._factory()), name="accepted")

    async def _begin(self, connected: socket.socket, protocol: asyncio.BaseProtocol) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, connected)
        except Exception as error:
            log.warning("Accepted connection could not be served: error=%r", error)
            connected.close()
            protocol.connection_lost(error)  # the factory has counted it as open

    def _retry_later(self, error: OSError) -> None:
        """Pauses for RETRY_S after a failed accept: the sockets stay readable, and the loop would be busy."""
        if error.errno not in _EXHAUSTED:
            log.error("Connection could not be accepted: host=%s port=%d error=%s", *self._address, error)
        else:
            self._refuse()
        self._retry = self._loop.call_later(RETRY_S, self._end_retry)
        self._watch()

    def _end_retry(self) -> None:
        self._retry = None
        self._watch()

    def _refuse(self) -> None:
        self._refused += 1
        now_s = self._loop.time()
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + LOG_EVERY_S
            log.warning(
                "Connections are refused for lack of descriptors (ulimit -n): host=%s port=%d count=%d allowed=%d "
                "kept_for_files=%d",
                *self._address,
                self._refused,
                descriptors.limit(),
                self._reserved(),
            )
            self._refused = 0


class AsyncioNetwork:
    """The `Network` port over the running loop.

    Args:
        reserved: descriptors to keep for files at present; connections that would use them are closed at once.
        resolver: of host names; by default a new one.
    """

    __slots__ = ("_reserved", "_resolver")

    def __init__(self, reserved: Callable[[], int] = int, *, resolver: Resolver | None = None) -> None:
        self._reserved = reserved
        self._resolver = resolver or Resolver()

    async def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        accept: bool = True,
        options: ListenerOptions = PLAIN_LISTENER,
    ) -> Listener:
        """Serves each connection by a new `factory()`. Host "" means every interface. OSError if the address is in use."""
        listener = TcpListener(await _bind(host, port, options), factory, options, self._reserved)
        if accept:
            try:
                await listener.accept()
            except BaseException:
                listener.close()
                raise
        return listener

    async def connect(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connects to a host, with TLS if `tls` is set. The caller sets the time-out (`asyncio.timeout`).

        Args:
            server_name: host or address of the peer's certificate; by default `host`.

        Raises:
            OSError: no connection; ConnectionRefusedError if no address of the host has a listener; ssl.SSLError if the
                TLS handshake failed.
        """
        if tls is not None:
            from barnabas.runtime.tls_transport import TlsConnection  # imported only if TLS is used

            transport, protocol = await self._connect(
                lambda: TlsConnection(factory(), lambda: tls, server_name=server_name or host), host, port
            )
        else:
            transport, protocol = await self._connect(factory, host, port)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            # Requests are written whole: Nagle's algorithm would delay a last segment by 40 ms.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return transport, protocol
        return await TlsConnection.opened(protocol)

    async def _connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connects to the first address that answers. Both loops would combine failures into one OSError without errno."""
        loop = asyncio.get_running_loop()
        try:
            ipaddress.ip_address(host)
        except ValueError:
            found = await self._resolver.addresses(host)
        else:
            return await loop.create_connection(factory, host, port)
        failures: list[OSError] = []
        for address in found:
            try:
                return await loop.create_connection(factory, address, port)
            except OSError as error:
                failures.append(error)
        unlike_refused = [error for error in failures if not isinstance(error, ConnectionRefusedError)]
        raise [*unlike_refused, *failures][0]


def peer_has_left(transport: asyncio.BaseTransport | None) -> bool:
    """Whether the peer has closed the connection or its side, even with unread data. False on systems that cannot tell."""
    connected = None if transport is None else transport.get_extra_info("socket")
    end_of_stream = getattr(select, "POLLRDHUP", 0)
    if connected is None or not end_of_stream or connected.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(connected.fileno(), end_of_stream)
    return bool(poll.poll(0))


def _with_tls(
    factory: Callable[[], asyncio.BaseProtocol],
    tls: Callable[[], ssl.SSLContext],
    on_failure: Callable[[], None] | None,
) -> Callable[[], asyncio.BaseProtocol]:
    from barnabas.runtime.tls_handshakes import HandshakeGate  # imported only if TLS is used
    from barnabas.runtime.tls_transport import TlsConnection

    gate = HandshakeGate(on_failure=on_failure)
    return lambda: TlsConnection(factory(), tls, gate=gate)


async def _bind(host: str, port: int, options: ListenerOptions) -> list[socket.socket]:
    """A socket for every address of the host, all on one port."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise OSError(
            errno.EADDRNOTAVAIL, f"cannot bind {host}:{port}: no address of this host is known ({reason})"
        ) from None
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                each = socket.socket(family, kind, protocol)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(found) > 1:
                    continue  # an IPv6 address, but the kernel has no IPv6
                raise
            sockets.append(each)
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # Accepted sockets inherit these on Linux; on other systems both loops set TCP_NODELAY on each transport.
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option, size in (
                (socket.SO_SNDBUF, options.send_buffer_bytes),
                (socket.SO_RCVBUF, options.receive_buffer_bytes),
            ):
                if size >= 0:
                    each.setsockopt(socket.SOL_SOCKET, option, size)
            bound = address if len(sockets) == 1 else (address[0], sockets[0].getsockname()[1], *address[2:])
            try:
                each.bind(bound)
            except OSError as error:
                reason = (error.strerror or "").lower()
                raise OSError(error.errno, f"cannot bind {bound[0]}:{bound[1]}: {reason}") from None
    except BaseException:
        for each in sockets:
            each.close()
        raise
    return sockets
