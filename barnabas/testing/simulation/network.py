"""SimNetwork: machines joined by links of random latency, with the faults of the test kit's links.

Each direction of a connection is a `Pipe`, and each direction of a link has a `Flow`. A killed process's connections are reset; those of
a machine without power stay silent until it answers again, then they are reset.

Invariants: nothing is delivered to a dead process; one virtual time and one order for all.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import partial
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

from barnabas.errors import LocalProtocolError
from barnabas.network_port import PLAIN_LISTENER, Listener, ListenerOptions
from barnabas.ports import Buffer
from barnabas.testing.simulation.clock import SimRng
from barnabas.testing.simulation.loop import SimLoop
from barnabas.testing.simulation.process import check_alive, current_process
from barnabas.testing.world.pipe import Flow, Pipe

if TYPE_CHECKING:
    import ssl

_FIRST_ADDRESS = IPv4Address("10.0.0.1")
_LOCAL_NAMES = ("", "0.0.0.0", "127.0.0.1", "localhost", "::", "::1")
_EPHEMERAL_PORT_FIRST = 32_768
_SYN_RETRY_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # as Linux doubles them: 127 s in all
_SPLIT_ONE_IN = 16  # segments that arrive in two pieces: framing must not care
WINDOW_BYTES = 256 * 1024  # in transit or unread by the receiver: the size of a socket's buffers
HIGH_WATER_BYTES = 64 * 1024  # asyncio's default
_EOF = b""

LATENCY = Flow(latency_s=275e-6, jitter_s=225e-6)


class SimTransport(asyncio.Transport):
    """One end of a connection. `SimNetwork` creates ends in pairs.

    Bytes arrive once, in order, after the link's latency; some segments are split in two. At most WINDOW_BYTES are in transit or
    unread. The rest waits in the write buffer, whose high-water mark pauses the writer. `close` sends the buffered bytes and
    then an end of file. `abort` and the death of the process send a reset.

    Invariants: callbacks run in the context of the process that owns the end, so they stop with it. connection_lost is called
    once, as the last callback.
    """

    def __init__(
        self,
        network: SimNetwork,
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


class SimListener:
    """A bound port of a simulated machine."""

    def __init__(
        self,
        host: SimHost,
        port: int,
        factory: Callable[[], asyncio.BaseProtocol],
        context: contextvars.Context,
        name: str,
        accepting: bool,
    ) -> None:
        self._host = host
        self.accepting = accepting
        self._address = (name, port)
        self.port = port
        self.factory = factory
        self.context = context
        self.paused = False
        self.waiting: deque[SimTransport] = deque()  # connected while paused

    @property
    def address(self) -> tuple[str, int]:
        """Host and port really bound."""
        return self._address

    async def accept(self) -> None:
        """Accepts connections from here on."""
        self.accepting = True

    def pause(self) -> None:
        """Lets connections wait until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Accepts connections again, waiting ones first."""
        self.paused = False
        waiting, self.waiting = self.waiting, deque()
        for transport in waiting:
            self._host.take(transport, self)

    def close(self) -> None:
        """Stops accepting; open connections stay."""
        if self._host.listeners.get(self.port) is self:
            del self._host.listeners[self.port]


class SimHost:
    """A machine in the network: the Network port of the processes that run on it."""

    def __init__(self, network: SimNetwork, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.powered = True
        self.listeners: dict[int, SimListener] = {}
        self.transports: dict[SimTransport, None] = {}
        self._network = network
        self._next_port = _EPHEMERAL_PORT_FIRST

    def ephemeral_port(self) -> int:
        """A port that is not in use."""
        self._next_port += 1
        return self._next_port

    def take(self, transport: SimTransport, listener: SimListener) -> None:
        """Begins the listener's end of a connection in the next turn of the loop."""
        self._network.loop.call_soon(self._network.accept, transport, listener, context=transport.context)

    async def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        accept: bool = True,
        options: ListenerOptions = PLAIN_LISTENER,
    ) -> Listener:
        """Serves each connection by a new `factory()` in the calling process; without `accept`, from `Listener.accept` on."""
        _refuse_tls(options.tls)
        if host not in (*_LOCAL_NAMES, self.name):
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL), host)
        check_alive()
        if port == 0:
            port = self.ephemeral_port()
        if port in self.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), f"{host}:{port}")
        listener = SimListener(self, port, factory, contextvars.copy_context(), host or self.name, accept)
        self.listeners[port] = listener
        return listener

    async def connect(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connects to a machine by its name or address. OSError if it has no listener, or does not answer for 127 virtual seconds."""
        _refuse_tls(tls)
        target = self if host in _LOCAL_NAMES else self._network.find(host)
        if target is None or host in self._network.nameless:
            raise OSError(errno.EHOSTUNREACH, "no machine of this name", host)
        check_alive()
        await self._network.syn(self, target)
        listener = target.listeners.get(port)
        if listener is None or not listener.accepting or (self.name, target.name) in self._network.refused:
            await self._network.delay(target, self)
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED), f"{host}:{port}")
        local = (self.name, self.ephemeral_port())
        remote = (target.name, port)
        near = SimTransport(self._network, local, remote, contextvars.copy_context())
        far = SimTransport(self._network, remote, local, listener.context.copy())
        near.peer, far.peer = far, near
        self.transports[near] = None
        target.transports[far] = None
        self.take(far, listener)
        try:
            await self._network.delay(target, self)
        except asyncio.CancelledError:
            near.abort()
            raise
        if near.is_closing():
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET), f"{host}:{port}")
        protocol = factory()
        near.begin(protocol)
        return near, protocol

    def kill(self) -> None:
        """Ends every connection and listener after the end of their process. Resets the other ends if the machine has power."""
        self.listeners.clear()
        for transport in list(self.transports):
            if self.powered:
                self._network.reset(transport)
            self._network.drop(transport)

    def lose_power(self) -> None:
        """Stops all answers of the machine. The other ends notice it by their own time-outs, or after `restore_power`."""
        self.powered = False
        self.kill()

    def restore_power(self) -> None:
        """Starts the machine's answers again. Resets connections that were open before the power loss."""
        self.powered = True
        self._network.reset_orphans(self)


class SimNetwork:
    """All machines and links of a world.

    Args:
        loop: the loop of the world.
        rng: draws latencies and splits.
        flow: of each direction of a link that was not shaped.
    """

    def __init__(self, loop: SimLoop, rng: SimRng, flow: Flow = LATENCY) -> None:
        self.loop = loop
        self.hosts: dict[str, SimHost] = {}
        self.nameless: set[str] = set()  # machines whose names cannot be resolved, as those of removed containers
        self.refused: set[tuple[str, str]] = set()  # (from, to): new connections that a firewall refuses
        self.bytes_delivered = 0
        self.after_delivery: Callable[[str, str], None] = _nothing  # (from, to): called after a segment was delivered
        self._rng = rng
        self._flow = flow
        self._shaped: dict[tuple[str, str], Flow] = {}  # (from, to)
        self._orphans: dict[str, list[SimTransport]] = {}

    def host(self, name: str) -> SimHost:
        """The machine of this name, created on first use."""
        if name not in self.hosts:
            self.hosts[name] = SimHost(self, name, str(_FIRST_ADDRESS + len(self.hosts)))
        return self.hosts[name]

    # -- faults ------------------------------------------------------------------------------------------------------

    def shape(self, source: str, target: str, **values: Any) -> None:
        """Changes the flow of one direction of a link: cut, latency_s, jitter_s, bytes_per_s, bytes_max, slice_*. See `Flow`."""
        flow = self._shaped[source, target] = replace(self.flow(source, target), **values)
        for transport in list(self.host(target).transports):
            if transport.remote[0] == source:
                transport.inbound.shape(flow)

    def unshape(self) -> None:
        """Every link has the world's latency again. Cuts stay."""
        for (source, target), flow in list(self._shaped.items()):
            self.shape(source, target, **{**asdict(self._flow), "cut": flow.cut})

    def flow(self, source: str, target: str) -> Flow:
        """The flow of one direction of a link."""
        return self._shaped.get((source, target), self._flow)

    def cut(self, a: str, b: str, *, both_ways: bool = True) -> None:
        """Stops all deliveries from `a` to `b` (and back) until `heal`."""
        self.shape(a, b, cut=True)
        if both_ways:
            self.shape(b, a, cut=True)

    def isolate(self, name: str) -> None:
        """Cuts the links between a machine and all others."""
        for other in list(self.hosts):
            if other != name:
                self.cut(name, other)

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """Restores the link between `a` and `b`, all links of `a`, or all links. What waits arrives at once, in its order."""
        for link, flow in list(self._shaped.items()):
            if flow.cut and (a is None or a in link) and (b is None or b in link):
                self.shape(*link, cut=False)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether deliveries in this direction are stopped."""
        return self.flow(source, target).cut

    def reset_links(self, a: str, b: str) -> None:
        """Resets every connection between two machines at both ends, as a firewall does."""
        for transport in list(self.host(a).transports):
            if transport.remote[0] == b:
                self._reset_both(transport)

    def _reset_both(self, transport: SimTransport) -> None:
        if transport.peer is not None:
            self._arrive_reset_soon(transport.peer)
        self._arrive_reset_soon(transport)

    # -- for transports and hosts --------------------------------------------------------------------------------------

    def find(self, host: str) -> SimHost | None:
        """The machine of this name or internet address."""
        by_address = (each for each in self.hosts.values() if each.address == host)
        return self.hosts.get(host) or next(by_address, None)

    def address(self, host: str) -> str:
        """The internet address of a machine. Clients have one in envelopes and ACLs."""
        return self.hosts[host].address

    def is_alive(self, transport: SimTransport) -> bool:
        """Whether the end belongs to a running process and an open connection."""
        return transport in self.hosts[transport.local[0]].transports

    def send(self, source: SimTransport, segment: bytes) -> None:
        """Sends a segment, or an end of file, to the other end."""
        peer = source.peer
        if peer is None:
            return
        if not segment:
            peer.inbound.end(partial(self._deliver, peer, segment))
            return
        if len(segment) > 1 and self._rng.randrange(_SPLIT_ONE_IN) == 0:
            middle = 1 + self._rng.randrange(len(segment) - 1)
            peer.inbound.put(segment[:middle])
            segment = segment[middle:]
        peer.inbound.put(segment)

    def reset(self, source: SimTransport) -> None:
        """Sends a reset to the other end."""
        if source.peer is not None:
            self._send_reset(source.peer)

    def _send_reset(self, target: SimTransport) -> None:
        target.inbound.end(partial(self._deliver, target, None))

    def forget(self, transport: SimTransport) -> None:
        """Removes a closed end."""
        self.hosts[transport.local[0]].transports.pop(transport, None)

    def drop(self, transport: SimTransport) -> None:
        """Removes an end whose process is dead. If its other end got no reset, `reset_orphans` resets it later."""
        self.forget(transport)
        peer = transport.peer
        if peer is not None and not self.hosts[transport.local[0]].powered:
            self._orphans.setdefault(transport.local[0], []).append(peer)

    def reset_orphans(self, host: SimHost) -> None:
        """Resets the other ends of connections that a power loss has ended."""
        for transport in self._orphans.pop(host.name, ()):
            if self.is_alive(transport):
                self._send_reset(transport)

    async def syn(self, source: SimHost, target: SimHost) -> None:
        """Sends the first packet of a connection; retries while the link is cut or the machine is off."""
        for pause_s in _SYN_RETRY_S:
            await self.delay(source, target)
            if (
                target.powered
                and not self.is_cut(source.name, target.name)
                and not self.is_cut(target.name, source.name)
            ):
                return
            await asyncio.sleep(pause_s)
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), target.name)

    async def delay(self, source: SimHost, target: SimHost) -> None:
        """Waits for the latency of one direction of a link."""
        flow = self.flow(source.name, target.name)
        await asyncio.sleep(flow.latency_s + flow.jitter_s * (2 * self._rng.random() - 1))

    def pipe(self, target: SimTransport) -> Pipe:
        """What carries bytes to an end. A link that is full, or has carried its limit of bytes, resets the connection."""
        reset = partial(self._reset_both, target)
        pipe = Pipe(self.loop, self._rng, partial(self._deliver, target), reset, target.context)
        pipe.on_limit = reset
        pipe.shape(self.flow(target.remote[0], target.local[0]))
        return pipe

    def _arrive_reset_soon(self, transport: SimTransport) -> None:
        if self.is_alive(transport):
            self.loop.call_soon(transport.arrive_reset, context=transport.context)

    def accept(self, transport: SimTransport, listener: SimListener) -> None:
        """Begins the server's end, or queues it while the listener pauses. Runs in the end's context."""
        if listener.paused:
            listener.waiting.append(transport)
        elif self.is_alive(transport):
            transport.begin(listener.factory())

    def _deliver(self, target: SimTransport, segment: bytes | None) -> None:
        """Delivers a segment (None: a reset). Runs in the receiver's context, so never for a dead process."""
        if not self.is_alive(target):
            return
        size = "reset" if segment is None else f"{len(segment)} {zlib.crc32(segment):08x}"
        self.loop.trace.note(
            self.loop.now_ns,
            f"deliver {target.remote[0]}:{target.remote[1]} {target.local[0]}:{target.local[1]} {size}",
        )
        if segment is None:
            target.arrive_reset()
        else:
            self.bytes_delivered += len(segment)
            target.arrive(segment)
            self.after_delivery(target.remote[0], target.local[0])


def _nothing(source: str, target: str) -> None:
    """The default callback, which does nothing."""


def _refuse_tls(tls: object) -> None:
    if tls is not None:
        raise LocalProtocolError("simulated networks have no TLS: its keys and records are random")
