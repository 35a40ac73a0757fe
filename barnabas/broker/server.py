"""Server: all client connections of a node, what they may reserve together, and which of them fell silent.

Driven by: the node (`bind`, `accept`, `serve`, `close`, `abort`), connections that come and go, a timer.
Emits: connections that read, pause and end.

Addresses are bound first and refuse connections until `accept`; what connects then is served once the node is ready. Frames under construction of all
connections share a byte budget: who would exceed it waits, but the oldest large frame always goes on, so that all come to an
end. Answers that peers leave unread have a budget too: above it Fetch answers get small. Silent connections give back their buffers and are closed after `connections.max.idle.ms`.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.config import Endpoint
from barnabas.broker.connection import ORDINARY_BUFFER_BYTES, Connection
from barnabas.broker.router import Pending, Router
from barnabas.limits import FRAME_BYTES_SMALL_MAX, UNREAD_ANSWER_BYTES_MAX
from barnabas.ports import Listener
from barnabas.protocol.registry import API, API_VERSIONS_KEY, PRODUCE_KEY

if TYPE_CHECKING:
    from barnabas.broker.node import Node

__all__ = ["Server"]

ANSWER_BYTES_LEAST: Final = 128 * 1024  # of records that a Fetch may always ask for, whatever others leave unread
SWEEP_MS: Final = 5_000  # between looks at which connections are silent


class Server:
    """All client connections of a node."""

    def __init__(self, node: Node, router: Router) -> None:
        self.node = node
        self.router = router
        self.connections: dict[Connection, None] = {}
        self.serving = False
        self.opening = Pending(blocks=True)  # what connections wait for that came before the node was ready
        self.request_bytes_max = node.config.get_int("socket.request.max.bytes")
        self.api_versions_range = API[API_VERSIONS_KEY].versions
        self.addresses: dict[str, tuple[str, int]] = {}  # really bound, by the listener's name
        self._listeners: list[Listener] = []
        self._numbers = itertools.count(1)
        self._budget_bytes = 2 * self.request_bytes_max  # of all connections together
        self.unread_bytes = 0  # of all connections together
        self._unread: dict[Connection, int] = {}
        self._starved: dict[Connection, None] = {}  # large frames that wait for room, in order of arrival
        self._large: dict[Connection, int] = {}  # bytes reserved by connections with more than an ordinary buffer

    async def bind(self, endpoint: Endpoint) -> tuple[str, int]:
        """Takes an address; connections are refused until `accept`. Returns the one really bound. OSError where it is taken."""
        listener = await self.node.network.listen(
            lambda: Connection(self, endpoint.name), endpoint.host, endpoint.port, accept=False
        )
        self._listeners.append(listener)
        self.addresses[endpoint.name] = listener.address
        return listener.address

    async def accept(self) -> None:
        """Takes connections, not yet requests. OSError where an address is taken."""
        for listener in self._listeners:
            await listener.accept()

    def serve(self) -> None:
        """The node is ready: requests that came meanwhile, and all later ones, are served."""
        self.serving = True
        self._sweep_later()
        self.opening.resolve(None)
        for connection in list(self.connections):
            connection.begin()

    def abort(self) -> None:
        """Accepts no more and cuts every connection: the node is gone."""
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.abort()

    def close(self) -> None:
        """Accepts no more and closes every connection; answers that are ready still leave."""
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.close("the broker stops", level=logging.DEBUG)

    def frame_limit(self, api_key: int) -> int:
        """Largest frame in bytes for a request of this API."""
        return self.request_bytes_max if api_key == PRODUCE_KEY else min(FRAME_BYTES_SMALL_MAX, self.request_bytes_max)

    def unsupported_api_versions(self) -> Any:
        """The body that a client gets which asks for ApiVersions in a version that we do not know."""
        from barnabas.broker.handlers.metadata import unsupported_api_versions

        return unsupported_api_versions(self.api_versions_range)

    def next_number(self) -> int:
        """Connections are numbered as they are accepted."""
        return next(self._numbers)

    def on_connected(self, connection: Connection) -> None:
        """A connection was made."""
        self.connections[connection] = None

    def on_disconnected(self, connection: Connection) -> None:
        """A connection ended: what it had reserved is free for others."""
        self.connections.pop(connection, None)
        self.on_unread(connection, 0)
        self._starved.pop(connection, None)
        if self._large.pop(connection, None) is not None:
            self._feed_starved()

    def on_unread(self, connection: Connection, size_bytes: int) -> None:
        """A peer leaves that much of its answers unread; 0: it reads again, or is gone."""
        self.unread_bytes += size_bytes - self._unread.pop(connection, 0)
        if size_bytes:
            self._unread[connection] = size_bytes

    def answer_bytes_max(self, wanted: int) -> int:
        """How many bytes of records one answer may carry: less where peers leave theirs unread."""
        return min(wanted, max(UNREAD_ANSWER_BYTES_MAX - self.unread_bytes, ANSWER_BYTES_LEAST))

    def room_for(self, connection: Connection) -> bool:
        """Whether the byte budget lets this connection go on reading. The oldest large frame always may, so that all come to an end."""
        reserved = connection.reserved_bytes
        if reserved <= ORDINARY_BUFFER_BYTES:
            if self._large.pop(connection, None) is not None:
                self._feed_starved()
            return True
        self._large[connection] = reserved
        if sum(self._large.values()) <= self._budget_bytes or next(iter(self._large)) is connection:
            return True
        self._starved[connection] = None
        return False

    def _feed_starved(self) -> None:
        starved, self._starved = self._starved, {}
        for connection in starved:
            connection.settle()

    def _sweep_later(self) -> None:
        self.node.call_later(SWEEP_MS, self._sweep)

    def _sweep(self) -> None:
        """Silent connections give back their buffers, and are closed after `connections.max.idle.ms`."""
        now_ms = self.node.clock.monotonic_ms()
        idle_ms_max = self.node.config.get_int("connections.max.idle.ms")
        for connection in list(self.connections):
            if connection.active or connection.waits:
                connection.active = False
                connection.silent_since_ms = now_ms
                continue
            connection.rest()
            if 0 <= idle_ms_max <= now_ms - connection.silent_since_ms:
                connection.close(f"idle for {idle_ms_max} ms (connections.max.idle.ms)", level=logging.INFO)
        self._sweep_later()
