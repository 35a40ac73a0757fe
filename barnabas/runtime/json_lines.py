"""JSON lines over a socket between a process and its child."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from typing import Any, Final

LINE_BYTES_MAX: Final = 64 * 1024 * 1024  # a longer line ends the connection


class JsonLines(asyncio.Protocol):
    """One end of the link, created by `open`."""

    def __init__(self, connected: socket.socket, on_value: Callable[[Any], None], on_end: Callable[[], None]) -> None:
        self._socket = connected
        self._on_value = on_value
        self._on_end = on_end
        self._transport: asyncio.WriteTransport | None = None
        self._unfinished = bytearray()

    @classmethod
    async def open(
        cls, connected: socket.socket, on_value: Callable[[Any], None], on_end: Callable[[], None]
    ) -> JsonLines:
        """Takes over a connected AF_UNIX stream socket."""
        connected.setblocking(False)
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_unix_connection(lambda: cls(connected, on_value, on_end), sock=connected)
        return protocol

    def send(self, value: Any) -> None:
        """Written before this returns, unless the peer is slow; no effect after the end."""
        if self._transport is None or self._transport.is_closing():
            return
        data, sent = json.dumps(value).encode() + b"\n", 0
        if not self._transport.get_write_buffer_size():
            with contextlib.suppress(OSError):  # the socket is full, or has ended, which the transport notices
                sent = self._socket.send(data)
        if sent < len(data):
            self._transport.write(data[sent:])

    def close(self) -> None:
        """Ends the link; sent values still leave."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # asyncio types it for datagrams and pipes as well

    def data_received(self, data: bytes) -> None:
        *lines, rest = (self._unfinished + data).split(b"\n")
        self._unfinished = bytearray(rest)
        for line in lines:
            self._on_value(json.loads(line))
        if len(self._unfinished) > LINE_BYTES_MAX:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_end()
