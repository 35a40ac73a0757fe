"""A client's TCP connection, cut into Kafka's frames: the asyncio protocol under `client/transport.py` and `broker/peers.py`.

Driven by: the loop. Emits: `on_socket_open`, `on_socket_bytes` and `on_socket_lost` to its owner, until it is detached; from then on
nothing of it reaches the owner any more.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from barnabas.protocol.connection import FrameReader

__all__ = ["FramedSocket", "SocketOwner"]


class SocketOwner(Protocol):
    """Whose connection it is."""

    def on_socket_open(self) -> None:
        """The connection is made."""
        ...

    def on_socket_bytes(self, reader: FrameReader, count: int) -> None:
        """`count` bytes were received into the reader's buffer."""
        ...

    def on_socket_lost(self) -> None:
        """The other side, or the network, ended it."""
        ...


class FramedSocket(asyncio.BufferedProtocol):
    """One TCP connection of an owner.

    Args:
        reader: gives the buffer, cuts the frames.
    """

    def __init__(self, owner: SocketOwner, reader: FrameReader) -> None:
        self.owner: SocketOwner | None = owner
        self.transport: asyncio.Transport | None = None
        self.reader = reader

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
        if self.owner is not None:
            self.owner.on_socket_lost()

    def detach(self) -> None:
        """Ends the connection, unheard."""
        self.owner = None
        if self.transport is not None:
            self.transport.abort()
