"""NodeNetwork: the Network of a node's connections to other nodes, with TLS if the other node's listener uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.broker.config.broker_config import TLS_PROTOCOLS, BrokerConfig
from barnabas.broker.scheduling.slices import Offload, in_place
from barnabas.network_port import PLAIN_LISTENER, Listener, ListenerOptions, Network
from barnabas.ports import Rng
from barnabas.runtime.offload import in_own_thread

if TYPE_CHECKING:
    import ssl

    from barnabas.broker.peers.peer_logins import PeerLogins
    from barnabas.broker.scheduling.reactor import Reactor
    from barnabas.broker.security.node_tls import NodeTls


def secured(reactor: Reactor, network: Network, config: BrokerConfig) -> tuple[NodeTls | None, Network]:
    """TLS contexts, None if nothing uses TLS, and the network for connections to other nodes."""
    names = {config.inter_broker_listener, config.controller_listener_name}
    if not config.tls_listeners and not any(config.security_protocol(name) in TLS_PROTOCOLS for name in names):
        return None, network
    from barnabas.broker.security.node_tls import NodeTls  # imported only if TLS is used

    tls = NodeTls(config, reactor)
    return tls, NodeNetwork(network, config, tls)


def peer_logins(config: BrokerConfig, rng: Rng, offload: Offload = in_place) -> PeerLogins | None:
    """Logins at other nodes; None if their listeners have no SASL, or there are no other nodes. Raises BrokerError(INVALID_CONFIG)."""
    names = {config.inter_broker_listener, config.controller_listener_name}
    if not config.has_other_nodes or not any(config.security_protocol(name).startswith("SASL") for name in names):
        return None
    from barnabas.broker.peers.peer_logins import PeerLogins  # imported only if SASL is used

    # A KDC may be slow: it needs a thread that nothing else waits for.
    return PeerLogins(config, rng, offload if offload is in_place else in_own_thread)


class NodeNetwork:
    """Connects by the security protocol of the listener: a voter's address is a controller listener, any other the inter-broker one."""

    def __init__(self, below: Network, config: BrokerConfig, tls: NodeTls) -> None:
        self._below = below
        self._tls = tls
        self._controllers = {(each.host, each.port) for each in config.voter_endpoints.values()}
        self._controller_listener = config.controller_listener_name
        self._inter_broker_listener = config.inter_broker_listener

    async def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        accept: bool = True,
        options: ListenerOptions = PLAIN_LISTENER,
    ) -> Listener:
        return await self._below.listen(factory, host, port, accept=accept, options=options)

    async def connect(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """`tls` is chosen here."""
        listener = self._controller_listener if (host, port) in self._controllers else self._inter_broker_listener
        context = self._tls.client(listener)
        if context is None:
            return await self._below.connect(factory, host, port)
        import ssl

        from barnabas.runtime.tls_errors import explained

        try:
            return await self._below.connect(factory, host, port, tls=context, server_name=server_name or host)
        except ssl.SSLError as error:
            raise OSError(f"TLS handshake failed: {explained(error)}") from None
