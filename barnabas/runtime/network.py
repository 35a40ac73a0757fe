"""The real network: TCP through the running asyncio or uvloop loop.

Nagle's algorithm is off on every socket: requests and answers are written whole, and a delayed last segment would cost 40 ms.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
from collections.abc import Callable

from barnabas.ports import Listener

__all__ = ["AsyncioNetwork", "TcpListener"]

ACCEPT_BACKLOG = 1_024  # connections waiting to be accepted: a fleet of clients reconnects at once after a restart


class TcpListener:
    """A bound server socket; see `barnabas.ports.Listener`."""

    __slots__ = ("_address", "_server")

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        host, port = server.sockets[0].getsockname()[:2]
        self._address = (str(host), int(port))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port really bound."""
        return self._address

    async def accept(self) -> None:
        """Accepts connections from here on. OSError where the address is taken."""
        await self._server.start_serving()
        for each in self._server.sockets:
            # uvloop says nothing when listen() fails.
            if each.fileno() < 0 or not each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(self._address))

    def close(self) -> None:
        """Stops accepting; open connections stay."""
        self._server.close()


class AsyncioNetwork:
    """The `Network` port over the running loop."""

    __slots__ = ()

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, accept: bool = True
    ) -> Listener:
        """Serves `factory()` per connection; host "" means every interface. OSError where the address is taken.

        A bound socket that does not listen yet refuses connections, and holds its port against most others.
        """
        loop = asyncio.get_running_loop()
        server = await loop.create_server(factory, host or None, port, backlog=ACCEPT_BACKLOG, start_serving=accept)
        for listening in server.sockets:
            # Accepted sockets inherit it on Linux; elsewhere both loops set it on each TCP transport they make.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return TcpListener(server)

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """OSError where nothing listens: ConnectionRefusedError where no address of the host has a listener. Time-outs are
        the caller's (`asyncio.timeout`)."""
        transport, protocol = await _connect(factory, host, port)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return transport, protocol


async def _connect(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
    """The first address of the host that answers. Both loops would put several failures into one OSError without errno."""
    loop = asyncio.get_running_loop()
    try:
        ipaddress.ip_address(host)
    except ValueError:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    else:
        return await loop.create_connection(factory, host, port)
    failures: list[OSError] = []
    for _, _, _, _, address in found:
        try:
            return await loop.create_connection(factory, str(address[0]), port)
        except OSError as error:
            failures.append(error)
    unlike_refused = [error for error in failures if not isinstance(error, ConnectionRefusedError)]
    raise [*unlike_refused, *failures][0]
