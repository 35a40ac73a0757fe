"""SimNetwork: machines joined by links of random latency that can be cut.

A connection is an ordered stream: a segment never overtakes another. While a link is cut, what is sent over it waits, as
TCP retransmits; it arrives after the link is healed, unless the connection was reset before. A killed process's
connections are reset; those of a machine without power stay silent until it answers again, then they are reset.

Invariants: nothing is delivered to a dead process; one virtual time and one order for all.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import zlib
from collections import deque
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, NamedTuple

from barnabas.errors import LocalProtocolError
from barnabas.network_port import PLAIN_LISTENER, Listener, ListenerOptions
from barnabas.testing.simulation.clock import SimRng
from barnabas.testing.simulation.loop import SimLoop
from barnabas.testing.simulation.process import Process, ProcessDead, current_process
from barnabas.testing.simulation.transport import SimTransport

if TYPE_CHECKING:
    import ssl

_FIRST_ADDRESS = IPv4Address("10.0.0.1")
_LOCAL_NAMES = ("", "0.0.0.0", "127.0.0.1", "localhost", "::", "::1")
_EPHEMERAL_PORT_FIRST = 32_768
_SYN_RETRY_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # as Linux doubles them: 127 s in all
_SPLIT_ONE_IN = 16  # segments that arrive in two pieces: framing must not care
_NS_PER_US = 1_000


class Latency(NamedTuple):
    """One-way delay of a link in microseconds, drawn evenly from min to max."""

    min_us: int = 50
    max_us: int = 500


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
        _check_alive()
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
        _check_alive()
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
        latency: of every link that is not in `links`.
    """

    def __init__(self, loop: SimLoop, rng: SimRng, latency: Latency | None = None) -> None:
        self.loop = loop
        self.hosts: dict[str, SimHost] = {}
        self.latency = latency or Latency()
        self.links: dict[tuple[str, str], Latency] = {}  # (from, to)
        self.nameless: set[str] = set()  # machines whose names cannot be resolved, as those of removed containers
        self.refused: set[tuple[str, str]] = set()  # (from, to): new connections that a firewall refuses
        self.bytes_delivered = 0
        self.after_delivery: Callable[[str, str], None] = _nothing  # (from, to): called after a segment was delivered
        self._rng = rng
        self._cut: dict[tuple[str, str], None] = {}
        self._held: dict[tuple[str, str], list[SimTransport]] = {}  # an entry for each segment that waits
        self._orphans: dict[str, list[SimTransport]] = {}

    def host(self, name: str) -> SimHost:
        """The machine of this name, created on first use."""
        if name not in self.hosts:
            self.hosts[name] = SimHost(self, name, str(_FIRST_ADDRESS + len(self.hosts)))
        return self.hosts[name]

    # -- faults ------------------------------------------------------------------------------------------------------

    def cut(self, a: str, b: str, *, both_ways: bool = True) -> None:
        """Stops all deliveries from `a` to `b` (and back) until `heal`."""
        self._cut[(a, b)] = None
        if both_ways:
            self._cut[(b, a)] = None

    def isolate(self, name: str) -> None:
        """Cuts the links between a machine and all others."""
        for other in self.hosts:
            if other != name:
                self.cut(name, other)

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """Restores the link between `a` and `b`, all links of `a`, or all links. Waiting segments are sent again in their order."""
        for link in list(self._cut):
            if (a is None or a in link) and (b is None or b in link):
                del self._cut[link]
                for transport in self._held.pop(link, ()):
                    self._schedule(transport)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether deliveries in this direction are stopped."""
        return (source, target) in self._cut

    def reset_links(self, a: str, b: str) -> None:
        """Resets every connection between two machines at both ends, as a firewall does."""
        for transport in list(self.host(a).transports):
            if transport.remote[0] == b:
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
        if len(segment) > 1 and self._rng.randrange(_SPLIT_ONE_IN) == 0:
            middle = 1 + self._rng.randrange(len(segment) - 1)
            self._depart(peer, segment[:middle])
            segment = segment[middle:]
        self._depart(peer, segment)

    def reset(self, source: SimTransport) -> None:
        """Sends a reset to the other end."""
        if source.peer is not None:
            self._depart(source.peer, None)

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
                self._depart(transport, None)

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
        await asyncio.sleep(self._latency_ns(source.name, target.name) / 1e9)

    def _latency_ns(self, source: str, target: str) -> int:
        latency = self.links.get((source, target), self.latency)
        return (latency.min_us + self._rng.randrange(latency.max_us - latency.min_us + 1)) * _NS_PER_US

    def _arrive_reset_soon(self, transport: SimTransport) -> None:
        if self.is_alive(transport):
            self.loop.call_soon(transport.arrive_reset, context=transport.context)

    def accept(self, transport: SimTransport, listener: SimListener) -> None:
        """Begins the server's end, or queues it while the listener pauses. Runs in the end's context."""
        if listener.paused:
            listener.waiting.append(transport)
        elif self.is_alive(transport):
            transport.begin(listener.factory())

    def _depart(self, target: SimTransport, segment: bytes | None) -> None:
        """Queues a segment (None: a reset) after all earlier ones."""
        target.inbound.append(segment)
        self._schedule(target)

    def _schedule(self, target: SimTransport) -> None:
        """Schedules one arrival at `target`. It delivers the first queued segment of that time."""
        arrival = self.loop.now_ns + self._latency_ns(target.remote[0], target.local[0])
        target.last_arrival_ns = max(arrival, target.last_arrival_ns)
        self.loop.call_at_ns(target.last_arrival_ns, self._deliver, target, context=target.context)

    def _deliver(self, target: SimTransport) -> None:
        """Runs in the receiver's context, so never for a dead process."""
        link = (target.remote[0], target.local[0])
        if link in self._cut:
            self._held.setdefault(link, []).append(target)
            return
        segment = target.inbound.popleft()
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
            self.after_delivery(*link)


def _nothing(source: str, target: str) -> None:
    """The default callback, which does nothing."""


def _check_alive() -> None:
    process: Process | None = current_process()
    if process is not None and not process.alive:
        raise ProcessDead


def _refuse_tls(tls: object) -> None:
    if tls is not None:
        raise LocalProtocolError("simulated networks have no TLS: its keys and records are random")
