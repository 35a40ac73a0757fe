"""Peers: this node's connections to other nodes, one for each address and purpose (`peer.py`)."""

from __future__ import annotations

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.peers.peer import MISSING_MS, Logins, Peer, PeerTraffic
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slices
from barnabas.limits import FRAME_BYTES_SMALL_MAX
from barnabas.network_port import Network


class Peers:
    """All connections of a node to other nodes."""

    def __init__(
        self,
        reactor: Reactor,
        network: Network,
        config: BrokerConfig,
        slices: Slices,
        logins: Logins | None = None,
        *,
        below: Network | None = None,
    ) -> None:
        self.reactor = reactor
        self.slices = slices
        self.network = network
        self.below = below or network  # without TLS, for probes
        self.logins = logins
        self.node_id = config.node_id
        # The largest answer is one batch, which some broker received as a request, or many batches within the requested limit.
        self.frame_bytes_max = config.get_int("socket.request.max.bytes") + FRAME_BYTES_SMALL_MAX
        self.probes = config.get_bool("broker.probe.enable")
        self.traffic: dict[str, PeerTraffic] = {}  # by purpose, of all connections so far
        self._peers: dict[tuple[str, int, str], Peer] = {}
        self._closed = False

    def to(self, host: str, port: int, purpose: str, *, node_id: int = -1) -> Peer:
        """The same peer at every call. `purpose` is part of the client id; slow and urgent requests use different ones."""
        key = (host, port, purpose)
        peer = self._peers.get(key)
        if peer is None:
            peer = self._peers[key] = Peer(self, host, port, purpose, node_id)
            if self._closed:
                peer.close()
        return peer

    def missing(self, host: str, port: int) -> bool:
        """Whether the node ended a connection within the last MISSING_MS and none is open now: clients are not sent to it."""
        here = [peer for (h, p, _), peer in self._peers.items() if (h, p) == (host, port)]
        since_ms = self.reactor.clock.monotonic_ms() - MISSING_MS
        return any(peer.lost_ms > since_ms for peer in here) and not any(peer.connected for peer in here)

    def ended_ms(self, node_id: int) -> int | None:
        """Time of the end of the last connection to a node; None if one is open, or none ended within the last MISSING_MS."""
        ended = [peer.lost_ms for peer in self._to(node_id)]
        return max(ended) if ended and max(ended) > self.reactor.clock.monotonic_ms() - MISSING_MS else None

    def refused(self, node_id: int) -> bool:
        """For the controller: whether a node refused a connection within the last MISSING_MS and none is open now."""
        return any(peer.refused_ms > self.reactor.clock.monotonic_ms() - MISSING_MS for peer in self._to(node_id))

    def _to(self, node_id: int) -> list[Peer]:
        """The peers of a node; empty if one of them is connected."""
        peers = [peer for peer in self._peers.values() if peer.node_id == node_id]
        return [] if any(peer.connected for peer in peers) else peers

    def close(self) -> None:
        """Closes every connection for good: waiting requests fail as LOST."""
        self._closed = True
        for peer in list(self._peers.values()):
            peer.close()

    def abort(self) -> None:
        """The node crashes: aborts every connection and drops waiting requests without calling `done`."""
        self._closed = True
        for peer in self._peers.values():
            peer.abort()

    def forget(self, peer: Peer) -> None:
        """Removes a closed peer (called by Peer only): the next `to` makes another, unless all are closed."""
        if not self._closed:
            self._peers.pop((peer.host, peer.port, peer.purpose), None)
