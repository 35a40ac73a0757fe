"""WorldNetwork: a broker's network, whose links to other brokers and to clients a test can cut or shape.

The broker that has opened a connection shapes both directions of it, because it alone knows whose address it has called. So a cut
between two brokers is the work of both. The link to a client is shaped by the broker; it knows a client by the client id of the
connection's first request.

Rules are the whole state: each command replaces all of them.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from barnabas.network_port import PLAIN_LISTENER, Listener, ListenerOptions, Network
from barnabas.ports import Rng
from barnabas.testing.world.link import LinkConnection
from barnabas.testing.world.pipe import Flow, merged

if TYPE_CHECKING:
    import ssl

_CLIENT_ID: Final = struct.Struct(">ihhih")  # size, API key, version, correlation id, length of the client id


@dataclass(frozen=True, slots=True)
class LinkRule:
    """What happens between this broker and a peer.

    Attributes:
        broker: id of the other broker; -1: the rule is about clients.
        client: pattern of client ids.
        outward: of bytes from this broker to the peer.
        inward: of bytes from the peer to this broker.
    """

    broker: int
    client: str
    outward: Flow
    inward: Flow

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> LinkRule:
        """The rule that `commands.py` received as JSON value."""
        return cls(value["broker"], value["client"], Flow(**value["outward"]), Flow(**value["inward"]))


class WorldNetwork:
    """See the module.

    Args:
        real: carries the connections.
        rng: draws jitter and sizes of slices.
        client_ports: ports of the listeners for clients; connections to others are those of brokers and of the kit.
    """

    def __init__(self, real: Network, rng: Rng, client_ports: frozenset[int]) -> None:
        self._client_ports = client_ports
        self.real = real
        self._rng = rng
        self._rules: tuple[LinkRule, ...] = ()
        self._ports: dict[int, int] = {}  # port → id of the broker that listens there
        self._outgoing: dict[LinkConnection, int] = {}  # → port that it has called
        self._incoming: dict[LinkConnection, str | None] = {}  # → its client id; None: unknown so far
        self._changed = asyncio.Event()  # replaced at each change of rules

    # -- the port

    async def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        accept: bool = True,
        options: ListenerOptions = PLAIN_LISTENER,
    ) -> Listener:
        """As of Network."""

        def begin() -> LinkConnection:
            return LinkConnection(factory(), self._rng, self._accepted, self._gone)

        begun = begin if port in self._client_ports else factory
        return await self.real.listen(begun, host, port, accept=accept, options=options)

    async def connect(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """As of Network. A connection over a cut link is made when the cut ends."""
        await self._opened(port)
        links: list[LinkConnection] = []

        def begin() -> LinkConnection:
            return LinkConnection(factory(), self._rng, made, self._gone)

        def made(link: LinkConnection) -> None:
            links.append(link)
            self._outgoing[link] = port
            if self._rules:
                self._shape_outgoing(link, port)

        try:
            await self.real.connect(begin, host, port, tls=tls, server_name=server_name)
        except BaseException:
            for link in links:
                self._gone(link)  # uvloop does not call `connection_lost` if the call is cancelled
            raise
        return links[-1].transport, links[-1].inner

    # -- rules

    def set_rules(self, rules: tuple[LinkRule, ...], ports: Mapping[int, int]) -> None:
        """Replaces all rules.

        Args:
            ports: port → id of the broker that listens there, for clients or for the quorum.
        """
        self._rules = rules
        self._ports = dict(ports)
        for link, port in list(self._outgoing.items()):
            self._shape_outgoing(link, port)
        for link in list(self._incoming):
            self._shape_incoming(link)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def end(self) -> None:
        """The node ends: no connection is left, cut or not."""
        for link in (*self._outgoing, *self._incoming):
            link.end_now()
        self._outgoing.clear()
        self._incoming.clear()

    # -- private

    async def _opened(self, port: int) -> None:
        """Waits while the link to a broker is cut, then for as long as a connection takes on it."""
        while self._rules:
            outward, inward = self._flows_to(port)
            if not outward.cut and not inward.cut:
                await asyncio.sleep(outward.latency_s + inward.latency_s)
                return
            await self._changed.wait()

    def _flows_to(self, port: int) -> tuple[Flow, Flow]:
        broker = self._ports.get(port)
        met = [each for each in self._rules if each.broker == broker]
        return merged(each.outward for each in met), merged(each.inward for each in met)

    def _shape_outgoing(self, link: LinkConnection, port: int) -> None:
        link.shape(*self._flows_to(port))

    def _accepted(self, link: LinkConnection) -> None:
        self._incoming[link] = None
        if self._rules:
            self._shape_incoming(link)

    def _gone(self, link: LinkConnection) -> None:
        self._outgoing.pop(link, None)
        self._incoming.pop(link, None)

    def _shape_incoming(self, link: LinkConnection) -> None:
        rules = [each for each in self._rules if each.broker < 0]
        client = self._incoming[link]
        if client is None:
            client = self._incoming[link] = getattr(link.inner, "client_id", None)
        if client is None and any(each.client != "*" for each in rules):
            link.listen_for_client(_Header(lambda found: self._identified(link, found)))
        met = [
            each for each in rules if each.client == "*" or (client is not None and fnmatchcase(client, each.client))
        ]
        link.shape(merged(each.outward for each in met), merged(each.inward for each in met))

    def _identified(self, link: LinkConnection, client: str) -> None:
        if link in self._incoming:
            self._incoming[link] = client
            self._shape_incoming(link)


class _Header:
    """Reads the client id of a connection's first request."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._data = b""

    def __call__(self, data: bytes) -> bool:
        """Takes received bytes; True: nothing more is needed."""
        self._data += data
        if len(self._data) < _CLIENT_ID.size:
            return False
        length = max(_CLIENT_ID.unpack_from(self._data)[-1], 0)
        end = _CLIENT_ID.size + length
        if len(self._data) < end:
            return False
        self._found(self._data[_CLIENT_ID.size : end].decode(errors="replace"))
        return True
