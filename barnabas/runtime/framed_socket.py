"""FramedSocket: an asyncio protocol that splits a TCP connection's bytes into Kafka's frames."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Protocol

from barnabas.protocol.framing import FrameReader


class SocketOwner(Protocol):
    """Gets a connection's events."""

    def on_socket_open(self) -> None:
        """The connection is open."""
        ...

    def on_socket_bytes(self, reader: FrameReader, count: int) -> None:
        """`count` bytes were received into the reader's buffer."""
        ...

    def on_socket_lost(self) -> None:
        """The peer or the network closed the connection."""
        ...


class FramedSocket(asyncio.BufferedProtocol):
    """One TCP connection; `owner` gets its events until `detach`.

    `reader` provides the receive buffer and splits it into frames.
    """

    def __init__(self, owner: SocketOwner, reader: FrameReader) -> None:
        self.owner: SocketOwner | None = owner
        self.transport: asyncio.Transport | None = None
        self.reader = reader
        self.error: Exception | None = None  # why the connection ended, if the loop knows a reason

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # asyncio types it for datagrams and pipes as well
        if self.owner is not None:
            self.owner.on_socket_open()
        else:
            self.detach()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self.owner is not None:
            self.owner.on_socket_bytes(self.reader, nbytes)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        if self.owner is not None:
            self.owner.on_socket_lost()

    def detach(self) -> None:
        """Aborts the connection without an event."""
        self.owner = None
        if self.transport is not None:
            self.transport.abort()

    def abandon(self) -> None:
        """Ends the connection of a closed event loop: the peer sees it now, the transport closes the socket later."""
        self.owner = None
        transport, self.transport = self.transport, None
        if transport is not None:
            with suppress(OSError, TypeError):  # it ended before; uvloop has closed it
                transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
