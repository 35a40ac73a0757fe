"""SimTransport: one end of a simulated TCP connection.

Bytes arrive once, in order, after the link's latency; some segments are split in two. At most WINDOW_BYTES are in transit or
unread. The rest waits in the write buffer, whose high-water mark pauses the writer. `close` sends the buffered bytes and
then an end of file. `abort` and the death of the process send a reset.

Invariants: callbacks run in the context of the process that owns the end, so they stop with it. connection_lost is called
once, as the last callback.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from barnabas.ports import Buffer
from barnabas.testing.simulation.process import current_process
from barnabas.testing.world.pipe import Pipe

if TYPE_CHECKING:
    from barnabas.testing.simulation.loop import SimLoop

WINDOW_BYTES = 256 * 1024  # in transit or unread by the receiver: the size of a socket's buffers
HIGH_WATER_BYTES = 64 * 1024  # asyncio's default
_EOF = b""


class Carrier(Protocol):
    """The methods of the network that a transport calls."""

    loop: SimLoop

    def address(self, host: str) -> str:
        """The internet address of a machine."""
        ...

    def pipe(self, target: SimTransport) -> Pipe:
        """What carries bytes to an end."""
        ...

    def is_alive(self, transport: SimTransport) -> bool:
        """Whether the end belongs to a running process and an open connection."""
        ...

    def send(self, source: SimTransport, segment: bytes) -> None:
        """Sends a segment, or an end of file, to the other end."""
        ...

    def reset(self, source: SimTransport) -> None:
        """Sends a reset to the other end."""
        ...

    def forget(self, transport: SimTransport) -> None:
        """Removes a closed end."""
        ...


class SimTransport(asyncio.Transport):
    """One end of a connection. See the module. `SimNetwork` creates ends in pairs."""

    def __init__(
        self,
        network: Carrier,
        local: tuple[str, int],
        remote: tuple[str, int],
        context: contextvars.Context,
    ) -> None:
        super().__init__()
        self.local = local
        self.remote = remote
        self.context = context
        self.peer: SimTransport | None = None
        self.inbound = network.pipe(self)  # in transit to this end
        self._network = network
        self._protocol: asyncio.BaseProtocol | None = None
        self._outgoing = bytearray()  # written, beyond the window
        self._unread = 0  # bytes sent that the other end has not consumed
        self._arrived: deque[bytes] = deque()  # delivered here, not consumed yet
        self._high = HIGH_WATER_BYTES
        self._low = HIGH_WATER_BYTES // 4
        self._writing_paused = False
        self._reading_paused = False
        self._consuming = False
        self._eof_written = False
        self._eof_sent = False
        self._closing = False
        self._lost = False
        self._gone = False  # connection_lost was called

    # -- asyncio.Transport -------------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`peername` and `sockname` are (address, port); there is no socket."""
        end = {"peername": self.remote, "sockname": self.local}.get(name)
        return default if end is None else (self._network.address(end[0]), end[1])

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        if self._protocol is None:
            raise RuntimeError("the transport has no protocol yet")
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Sends the buffered bytes, then an end of file."""
        if self._closing or not self._network.is_alive(self):
            return
        self._closing = True
        self._arrived.clear()
        self._eof_written = True
        self._pump()

    def abort(self) -> None:
        """Drops the buffered bytes and resets the connection."""
        if self._lost or not self._network.is_alive(self):
            return
        self._network.reset(self)
        self.lose(None)

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    def pause_reading(self) -> None:
        self._check_usable()
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._check_usable()
        if self._reading_paused:
            self._reading_paused = False
            if self._arrived:
                self._network.loop.call_soon(self._consume, context=self.context)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Marks in bytes; a low mark alone implies a high one of four times as much, as in asyncio."""
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        self._check_water()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return (self._low, self._high)

    def get_write_buffer_size(self) -> int:
        return len(self._outgoing)

    def write(self, data: Buffer) -> None:
        """Copies `data` and sends it, unless this end is closing or its process is dead.

        Raises:
            RuntimeError: connection_lost has been called.
        """
        self._check_usable()
        if self._eof_written or self._closing or not self._network.is_alive(self):
            return
        if data:
            self._outgoing += data
            self._pump()
            self._check_water()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Half-closes the connection: the other end gets an end of file after the buffered bytes."""
        self._check_usable()
        self._eof_written = True
        self._pump()

    # -- between the ends --------------------------------------------------------------------------------------------

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Connects the protocol; runs in this end's context."""
        self._protocol = protocol
        protocol.connection_made(self)
        if self._arrived:
            self._network.loop.call_soon(self._consume, context=self.context)

    def arrive(self, segment: bytes) -> None:
        """Handles a segment, or an end of file, that reaches this end. Runs in this end's context."""
        if self._lost or self._closing:
            if segment and self.peer is not None:
                self.peer.consumed(len(segment))  # a closing reader discards later bytes
            return
        self._arrived.append(segment)
        self._consume()

    def arrive_reset(self) -> None:
        """Handles a reset by the other end. Runs in this end's context."""
        self._arrived.clear()
        self.lose(ConnectionResetError("connection reset by peer"))

    def consumed(self, count: int) -> None:
        """Notes that the other end has read `count` bytes, which opens the window."""
        self._unread -= count
        if not self._lost and self._network.is_alive(self):
            self._pump()
            self._check_water()

    def lose(self, error: Exception | None) -> None:
        """Closes this end: connection_lost follows in the next turn of the loop."""
        if self._lost:
            return
        self._lost = True
        self._closing = True
        self._outgoing.clear()
        self._network.forget(self)
        if self._protocol is not None:
            self._network.loop.call_soon(self._tell_lost, self._protocol, error, context=self.context)

    def _tell_lost(self, protocol: asyncio.BaseProtocol, error: Exception | None) -> None:
        self._gone = True
        protocol.connection_lost(error)

    def _check_usable(self) -> None:
        """Raises RuntimeError after connection_lost, as uvloop does. asyncio allows such calls, but the stricter rule finds more."""
        process = current_process(self.context)
        if self._gone and (process is None or process.alive):
            raise RuntimeError(f"the transport {self.local} → {self.remote} was used after connection_lost")

    def _pump(self) -> None:
        room = WINDOW_BYTES - self._unread
        if self._outgoing and room > 0:
            segment = bytes(memoryview(self._outgoing)[:room])
            del self._outgoing[: len(segment)]
            self._unread += len(segment)
            self._network.send(self, segment)
        if self._eof_written and not self._outgoing and not self._eof_sent:
            self._eof_sent = True
            self._network.send(self, _EOF)
        if self._closing and self._eof_sent:
            self.lose(None)

    def _check_water(self) -> None:
        if self._protocol is None or self._lost:
            return
        size = len(self._outgoing)
        if not self._writing_paused and size > self._high:
            self._writing_paused = True
            self._protocol.pause_writing()
        elif self._writing_paused and size <= self._low:
            self._writing_paused = False
            # in its own turn and context: this call runs in the other end's context
            self._network.loop.call_soon(self._protocol.resume_writing, context=self.context)

    def _consume(self) -> None:
        """Passes arrived bytes to the protocol while it reads."""
        # The protocol paused and resumed within a callback; or `begin` was not called yet.
        if self._consuming or self._protocol is None:
            return
        self._consuming = True
        try:
            while self._arrived and not self._reading_paused and not self._closing:
                segment = self._arrived.popleft()
                if segment == _EOF:
                    if not self.get_protocol().eof_received():  # type: ignore[attr-defined] # of both kinds of protocol
                        self.close()
                else:
                    self._give(segment)
        finally:
            self._consuming = False

    def _give(self, segment: bytes) -> None:
        protocol = self.get_protocol()
        if not isinstance(protocol, asyncio.BufferedProtocol):
            if self.peer is not None:
                self.peer.consumed(len(segment))
            protocol.data_received(segment)  # type: ignore[attr-defined] # what is not buffered is a Protocol
            return
        rest = memoryview(segment)
        while rest and not self._closing:
            if self._reading_paused or protocol is not self._protocol:
                self._arrived.appendleft(bytes(rest))
                return
            buffer = memoryview(protocol.get_buffer(len(rest)))
            count = min(len(buffer), len(rest))
            if count == 0:
                raise RuntimeError("get_buffer() returned an empty buffer")
            buffer[:count] = rest[:count]
            rest = rest[count:]
            if self.peer is not None:
                self.peer.consumed(count)
            protocol.buffer_updated(count)
