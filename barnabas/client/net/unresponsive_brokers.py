"""UnresponsiveBrokers: drops connections to unresponsive brokers after a failover, before their time limits."""

from __future__ import annotations

import asyncio
from typing import Protocol

from barnabas.client.errors import BrokerUnreachable
from barnabas.client.net.core.metadata import ClusterMetadata
from barnabas.client.net.transport import Connection
from barnabas.ports import Clock

_UNANSWERED_MS = 2_000  # after this time without a byte from a broker that must respond, others are asked


class _Cluster(Protocol):
    """What this needs from the cluster."""

    clock: Clock
    metadata: ClusterMetadata

    @property
    def closed(self) -> bool: ...

    def connections(self) -> list[Connection]: ...

    def leading(self) -> set[int]: ...

    def ask_about(self, node_id: int) -> None: ...


class UnresponsiveBrokers:
    """Connections on which a leader or coordinator has been silent for _UNANSWERED_MS."""

    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster
        self._silent: dict[Connection, None] = {}

    async def watch(self) -> None:
        """Looks for the successors of unresponsive brokers."""
        while not self._cluster.closed:
            await asyncio.sleep(_UNANSWERED_MS / 2_000)
            for connection in self._cluster.connections():
                if connection.unanswered_ms >= _UNANSWERED_MS and connection.node_id in self._cluster.leading():
                    self._silent[connection] = None
                    connection.silent = True
                    self._cluster.ask_about(connection.node_id)

    def leave_replaced(self) -> None:
        """Drops connections to brokers that led or coordinated and no longer do by fresh metadata."""
        now_ms = self._cluster.clock.monotonic_ms()
        for connection in list(self._silent):
            unanswered_ms = connection.unanswered_ms
            asked_since = self._cluster.metadata.updated_ms > now_ms - unanswered_ms
            if unanswered_ms < _UNANSWERED_MS:
                del self._silent[connection]
            elif asked_since and connection.node_id not in self._cluster.leading():
                del self._silent[connection]
                text = f"{connection.host}:{connection.port} does not answer, and other brokers have taken over"
                connection.drop(BrokerUnreachable(text, broker=connection.node_id))
