"""Network port; separate from `ports` because its connections are asyncio's, which cores do not import."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import ssl


class Listener(Protocol):
    """A bound address."""

    @property
    def address(self) -> tuple[str, int]:
        """The bound host and port. Port 0 in `listen` selects a free port."""
        ...

    async def accept(self) -> None:
        """Accepts connections, after `listen` with `accept=False`. OSError if the address is in use."""
        ...

    def pause(self) -> None:
        """New connections wait until `resume`. A call within `factory` takes effect after its connection."""
        ...

    def resume(self) -> None:
        """Accepts connections again, waiting ones first."""
        ...

    def close(self) -> None:
        """Open connections stay."""
        ...


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """Options of a listener's sockets. Simulated networks ignore those of sockets.

    Attributes:
        backlog: connections that the kernel keeps before they are accepted (at most net.core.somaxconn on Linux).
        send_buffer_bytes, receive_buffer_bytes: SO_SNDBUF and SO_RCVBUF of its connections; -1: the kernel's default.
        descriptors_left: descriptors left free for other listeners, besides those reserved for files.
        tls: called for each connection's context when its handshake begins; None: no TLS. A protocol gets
            `connection_made` after the handshake, and `connection_accepted(transport)` before it if it has that method.
            Simulated networks reject it.
        on_tls_failure: called for each failed handshake.
    """

    backlog: int = 1_024
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    descriptors_left: int = 0
    tls: Callable[[], ssl.SSLContext] | None = None
    on_tls_failure: Callable[[], None] | None = None


PLAIN_LISTENER = ListenerOptions()


class Network(Protocol):
    """Streams between nodes and clients, driven by asyncio protocols (plain or buffered)."""

    async def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        accept: bool = True,
        options: ListenerOptions = ...,
    ) -> Listener:
        """Serves each connection by a new `factory()`, without `accept` after `Listener.accept`. Raises OSError."""
        ...

    async def connect(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connects, with TLS if `tls` is set, to a server named `server_name` (default `host`). Raises OSError."""
        ...
