"""LinkConnection: one connection of a broker that the kit can cut, slow down or break, and that costs nothing until then.

As long as both flows are free, both sides call each other's own methods: the attributes here are those methods. A flow that is not free
puts a `Pipe` between them.

Invariants: bytes keep their order over every change. During a cut neither side learns anything of the other, not even its end: a
connection that one side has left stays open until the cut ends, and is reset then.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from barnabas.ports import Buffer, Rng
from barnabas.testing.world.pipe import FREE, Flow, Pipe

BUFFER_BYTES: Final = 65_536  # of one read while a flow is not free
WRITE_HIGH: Final = 65_536  # as asyncio's default
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: the close of the socket is a reset


class LinkTransport(asyncio.Transport):
    """The transport that the broker's protocol sees. Its slots are methods of the real one while the flow out is free."""

    __slots__ = ("get_write_buffer_size", "link", "real", "write", "writelines")

    def __init__(self, link: LinkConnection, real: asyncio.Transport) -> None:
        self.link = link
        self.real = real

    def use_real(self) -> None:
        """Writes go to the real transport."""
        self.write = self.real.write  # type: ignore[method-assign]  # a slot: no call more for each write
        self.writelines = self.real.writelines  # type: ignore[method-assign]  # as above
        self.get_write_buffer_size = self.real.get_write_buffer_size  # type: ignore[method-assign]  # as above

    def use_pipe(self) -> None:
        """Writes go through the pipe."""
        self.write = self.link.send  # type: ignore[method-assign]  # as above
        self.writelines = self._write_all  # type: ignore[method-assign]  # as above
        self.get_write_buffer_size = self.link.unwritten  # type: ignore[method-assign]  # as above

    def _write_all(self, list_of_data: Iterable[Buffer]) -> None:
        self.link.send(b"".join(list_of_data))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.real.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self.link.left or self.real.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.link.write_high = WRITE_HIGH if high is None else high
        self.real.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self.real.get_write_buffer_limits()

    def pause_reading(self) -> None:
        self.link.want_reading(False)

    def resume_reading(self) -> None:
        self.link.want_reading(True)

    def is_reading(self) -> bool:
        return self.link.wanted

    def can_write_eof(self) -> bool:
        return False

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.link.inner

    def close(self) -> None:
        self.link.close()

    def abort(self) -> None:
        self.link.abort()


class LinkConnection(asyncio.BufferedProtocol):
    """See the module.

    Args:
        inner: the broker's protocol.
        made: called when the connection is made, before `inner` learns it; gives it its flows.
        gone: called when nothing of it is left.
    """

    def __init__(
        self,
        inner: asyncio.BaseProtocol,
        rng: Rng,
        made: Callable[[LinkConnection], None],
        gone: Callable[[LinkConnection], None],
    ) -> None:
        self.inner = inner
        self._rng = rng
        self._made = made
        self._gone = gone
        self._real: asyncio.Transport | None = None
        self._real_full = False  # the real transport's buffer is full
        self._real_lost = False  # the loop has ended the real connection
        self._told_end = False  # inner knows the end
        self._reading = True  # of the real transport
        self._write_paused = False  # by our pipe
        self._buffer: bytearray | None = None
        self.left = False  # inner has closed it
        self.wanted = True  # inner wants to read
        self.write_high = WRITE_HIGH
        self.inbound: Pipe | None = None
        self.outbound: Pipe | None = None
        self.heard: Callable[[bytes], bool] | None = None
        self.age_timer: asyncio.TimerHandle | None = None
        self._reset = (-1.0, 0)  # seconds to wait, and how often that was written
        self._receive_directly()  # now, because uvloop takes the methods before connection_made

    # -- from the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The real connection is open."""
        self._real = cast(asyncio.Transport, transport)
        self.transport = LinkTransport(self, self._real)
        self.transport.use_real()
        self._made(self)
        self.inner.connection_made(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The real connection has ended; inner learns it after the bytes before it, or after the cut."""
        self._real_lost = True
        if self.outbound is not None:
            self.outbound.drop()
        pipe = self.inbound
        if pipe is None or self.left or (pipe.empty and not pipe.flow.cut):
            self._tell_end(exc)
        else:
            pipe.end(lambda: self._tell_end(exc))

    def eof_received(self) -> bool:
        """The other side sends no more."""
        pipe = self.inbound
        if pipe is None or (pipe.empty and not pipe.flow.cut):
            return self._inner_eof()
        pipe.end(self._late_eof, pipe.flow.slow_close_s)
        return True

    def pause_writing(self) -> None:
        """The real transport's buffer is full."""
        self._real_full = True
        if not self._write_paused and not self._told_end:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        """The real transport's buffer has room."""
        self._real_full = False
        if not self._write_paused and not self._told_end:
            self.inner.resume_writing()

    # -- from inner

    def send(self, data: Buffer) -> None:
        """Writes through the pipe."""
        pipe = self.outbound
        if pipe is None or self.left or self._real_lost:
            return
        pipe.put(bytes(data))
        self._check_room()

    def unwritten(self) -> int:
        """Bytes that are not written to the socket yet."""
        waiting = 0 if self.outbound is None else self.outbound.size
        return waiting + (0 if self._real is None or self._real_lost else self._real.get_write_buffer_size())

    def want_reading(self, wanted: bool) -> None:
        """Inner takes bytes, or takes none for now."""
        self.wanted = wanted
        pipe = self.inbound
        if pipe is not None:
            pipe.stopped = not wanted
            if wanted:
                pipe.resume()
        self._set_reading()

    def close(self) -> None:
        """Inner closes the connection; what it has written still goes."""
        if self.left or self._real is None:
            return
        self.left = True
        pipe = self.outbound
        if pipe is None or self._real_lost:
            self._real.close()
            if self._real_lost:
                self._tell_end_soon()  # it came after bytes that inner does not want any more
            return
        pipe.end(self._real.close, pipe.flow.slow_close_s)
        if pipe.flow.cut:
            self._tell_end_soon()

    def abort(self) -> None:
        """Inner drops the connection; the other side learns it unless it is cut off."""
        if self._real is None:
            return
        self.left = True
        pipe = self.outbound
        if pipe is not None:
            pipe.drop()
        if pipe is not None and pipe.flow.cut and not self._real_lost:
            pipe.end(self._real.abort)
            self._tell_end_soon()
        else:
            self._real.abort()
            if self._real_lost:
                self._tell_end_soon()

    # -- from the network

    def listen_for_client(self, heard: Callable[[bytes], bool]) -> None:
        """Calls `heard` with received bytes before inner gets them, until it returns True."""
        self.heard = heard
        self._receive_here()
        self._renew()

    def shape(self, outward: Flow, inward: Flow) -> None:
        """Gives both directions their flows."""
        if outward is not FREE and self.outbound is None:
            self._begin_outbound()
        if inward is not FREE and self.inbound is None:
            self._begin_inbound()
        for pipe, flow in ((self.outbound, outward), (self.inbound, inward)):
            if pipe is not None and pipe.flow != flow:
                pipe.shape(flow)
        self._arm_reset(outward, inward)
        self._settle()
        self._set_reading()

    def end_now(self) -> None:
        """The host ends: closes the socket whatever the flows are."""
        for pipe in (self.inbound, self.outbound):
            if pipe is not None:
                pipe.drop()
        if self.age_timer is not None:
            self.age_timer.cancel()
        if self._real is not None and not self._real_lost:
            self._real.abort()

    def reset(self) -> None:
        """Ends the connection by a reset, as seen from both sides."""
        if self._real is None or self._real_lost:
            return
        connected = self._real.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._real.abort()

    # -- private

    def _receive_directly(self) -> None:
        inner = self.inner
        if isinstance(inner, asyncio.BufferedProtocol) and self.heard is None:
            self.get_buffer = inner.get_buffer  # type: ignore[method-assign]  # a slot: no call more for each read
            self.buffer_updated = inner.buffer_updated  # type: ignore[method-assign]  # as above
        else:
            self._receive_here()

    def _receive_here(self) -> None:
        self.get_buffer = self._own_buffer  # type: ignore[method-assign]  # as above
        self.buffer_updated = self._received  # type: ignore[method-assign]  # as above

    def _own_buffer(self, sizehint: int) -> bytearray:
        if self._buffer is None:
            self._buffer = bytearray(BUFFER_BYTES)
        return self._buffer

    def _received(self, nbytes: int) -> None:
        data = bytes(memoryview(self._buffer or b"")[:nbytes])
        if self.heard is not None and self.heard(data):
            self.heard = None
        pipe = self.inbound
        if pipe is None:
            self._feed(data)
            self._settle()
        else:
            pipe.put(data)
            self._set_reading()

    def _feed(self, data: bytes) -> None:
        """Gives received bytes to inner."""
        if self._told_end or self.left:
            return
        inner = self.inner
        if not isinstance(inner, asyncio.BufferedProtocol):
            cast(asyncio.Protocol, inner).data_received(data)
            return
        view = memoryview(data)
        while view and not self._told_end and not self.left:
            buffer = memoryview(inner.get_buffer(len(view)))
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            buffer.release()
            view = view[count:]
            inner.buffer_updated(count)

    def _begin_outbound(self) -> None:
        pipe = self.outbound = self._new_pipe(self._write_out)
        pipe.on_limit = self._close_real
        self.transport.use_pipe()

    def _begin_inbound(self) -> None:
        pipe = self.inbound = self._new_pipe(self._feed_and_go_on)
        pipe.on_limit = self._close_real
        pipe.stopped = not self.wanted
        self._receive_here()
        self._renew()

    def _new_pipe(self, deliver: Callable[[bytes], None]) -> Pipe:
        return Pipe(asyncio.get_running_loop(), self._rng, deliver, self.reset)

    def _settle(self) -> None:
        """Takes pipes away that nothing needs any more."""
        outbound, inbound = self.outbound, self.inbound
        if outbound is not None and outbound.idle and not self.left:
            self.outbound = None
            self.transport.use_real()
        if inbound is not None and inbound.idle:
            self.inbound = None
        if self.inbound is None and not self._real_lost and self.heard is None:
            before = self.buffer_updated
            self._receive_directly()
            if self.buffer_updated != before:
                self._renew()

    def _renew(self) -> None:
        """uvloop keeps the methods of its protocol; this makes it look again."""
        if self._real is not None and not self._real_lost:
            self._real.set_protocol(self)

    def _write_out(self, data: bytes) -> None:
        if self._real is not None and not self._real_lost:
            self._real.write(data)
        self._check_room()

    def _feed_and_go_on(self, data: bytes) -> None:
        self._feed(data)
        self._set_reading()

    def _check_room(self) -> None:
        """Tells inner whether it may write on."""
        pipe = self.outbound
        if pipe is None or self._told_end:
            return
        if not self._write_paused and pipe.size > self.write_high:
            self._write_paused = True
            if not self._real_full:
                self.inner.pause_writing()
        elif self._write_paused and pipe.size <= self.write_high // 4:
            self._write_paused = False
            if not self._real_full:
                self.inner.resume_writing()

    def _set_reading(self) -> None:
        """Reads while bytes can be taken. During a cut they stay in the kernel's buffer."""
        pipe = self.inbound
        wanted = self.wanted if pipe is None else not pipe.flow.cut and not pipe.is_full
        if self._real is None or self._real_lost or self._real.is_closing() or wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            self._real.resume_reading()
        else:
            self._real.pause_reading()

    def _close_real(self) -> None:
        if self._real is not None:
            self._real.close()

    def _inner_eof(self) -> bool:
        eof_received = getattr(self.inner, "eof_received", None)
        return bool(not self._told_end and eof_received is not None and eof_received())

    def _late_eof(self) -> None:
        if not self._inner_eof():
            self._close_real()

    def _tell_end(self, exc: Exception | None) -> None:
        if not self._told_end:
            self._told_end = True
            self.inner.connection_lost(exc)
        if self._real_lost:
            if self.age_timer is not None:
                self.age_timer.cancel()
            self._gone(self)

    def _tell_end_soon(self) -> None:
        """Inner has left a connection that is cut off: for it the connection ends now."""
        asyncio.get_running_loop().call_soon(self._tell_end, None)

    def _arm_reset(self, outward: Flow, inward: Flow) -> None:
        wait_s = min((each.reset_s for each in (outward, inward) if each.reset_s >= 0), default=-1.0)
        wanted = (wait_s, outward.resets + inward.resets)
        if wanted == self._reset:
            return
        self._reset = wanted
        if self.age_timer is not None:
            self.age_timer.cancel()
            self.age_timer = None
        if wait_s >= 0:
            self.age_timer = asyncio.get_running_loop().call_later(wait_s, self.reset)
