"""The network: one of the four ports of Barnabas to the operating system. The other three are in `ports`.

It has a module of its own because its connections are asyncio's: only shells use it, and cores may import `ports`.
`barnabas.runtime.network` has the real network, `barnabas.testing.simulation.network` the simulated one.
"""

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
        """Accepts connections from now on, after `listen` with `accept=False`. OSError if the address is in use."""
        ...

    def pause(self) -> None:
        """Accepts no connections until `resume`; new ones wait. A call within `factory` takes effect after its connection."""
        ...

    def resume(self) -> None:
        """Accepts connections again, waiting ones first."""
        ...

    def close(self) -> None:
        """Stops accepting; open connections stay."""
        ...


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """Options of a listener's sockets. Simulated networks ignore those of sockets.

    Attributes:
        backlog: connections that the kernel keeps before they are accepted (at most net.core.somaxconn on Linux).
        send_buffer_bytes, receive_buffer_bytes: SO_SNDBUF and SO_RCVBUF of its connections; -1: the kernel's default.
        descriptors_left: descriptors that the listener leaves free for other listeners, besides those reserved for files.
        tls: the context of each new connection, asked when its handshake begins; None: no TLS. With TLS a protocol gets
            `connection_made` after the handshake, and `connection_accepted(transport)` before it if it has that method.
            Simulated networks refuse it.
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
        """Serves each connection by a new `factory()`. Without `accept`, connections are refused until `Listener.accept`.
        OSError if the address is in use."""
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
        """Connects to a listener, with TLS if there is a context. The caller sets the time-out (`asyncio.timeout`).

        Args:
            server_name: the name or address that the other side's certificate must be for; by default `host`.

        Raises:
            OSError: nothing listens there; ssl.SSLError is one, with a text for people.
        """
        ...
