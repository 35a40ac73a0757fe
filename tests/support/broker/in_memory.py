"""A connection to a node without a socket: the test decides when its bytes arrive, many connections in one turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from struct import pack
from typing import Any

from barnabas.broker.front.connection import Connection
from barnabas.broker.node.node import Node


class InMemory(asyncio.Transport):
    """One connection.

    Attributes:
        reading: whether the node reads it.
        written: the answers, one entry for each write.
    """

    def __init__(self, node: Node, client_id: str, listener: str | None = None) -> None:
        super().__init__()
        self.reading = True
        self.written: list[bytes] = []
        self._client_id = client_id.encode()
        listener = listener or node.config.inter_broker_listener
        node.server.quotas.opened(listener, 0)
        self._connection = Connection(node.server, listener)
        self._connection.connection_made(self)

    def sends(self, api_key: int, version: int, body: bytes = b"") -> None:
        """A request arrives whole; its header has no tags."""
        header = pack(">hhih", api_key, version, 1, len(self._client_id)) + self._client_id
        self.receive(pack(">i", len(header) + len(body)) + header + body)

    def receive(self, data: bytes) -> None:
        """Bytes arrive in this turn, also if the node does not read them."""
        while data:
            room = memoryview(self._connection.get_buffer(-1))
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self._connection.buffer_updated(count)
            data = data[count:]

    def end(self) -> None:
        """The client closes the connection."""
        self._connection.connection_lost(None)

    # -- the transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered here."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def writelines(self, parts: Iterable[Any]) -> None:
        self.written.append(b"".join(parts))

    def close(self) -> None:
        self.end()

    def abort(self) -> None:
        self.end()
