"""NodeMetrics: the metrics and the health of one node, put together.

Driven by: the node, which opens it first and closes it last. Emits: answers over HTTP (`endpoint`).

Only a node with `metrics.listen` imports this package: another one pays neither start-up time nor memory for it.
"""

from __future__ import annotations

from barnabas.broker.metrics.client_series import ClientSeries
from barnabas.broker.metrics.endpoint import MetricsEndpoint
from barnabas.broker.metrics.exporter import add_exporter
from barnabas.broker.metrics.health import Health
from barnabas.broker.metrics.loop_watch import LoopWatch
from barnabas.broker.metrics.parts import Observed
from barnabas.broker.metrics.process_series import process_series
from barnabas.errors import BarnabasError
from barnabas.network_port import Network
from barnabas.runtime.process_stats import thread_cpu_s

__all__ = ["MetricsAddressRefused", "NodeMetrics"]


class MetricsAddressRefused(BarnabasError):
    """The address of metrics.listen cannot be used; the text says why."""


class NodeMetrics:
    """See the module.

    Attributes:
        watch: pauses and idle time of the loop.
        health: whether the node is ready.
        exposition: the collectors; a part with series of its own adds one.
    """

    def __init__(self, node: Observed) -> None:
        self._node = node
        self.watch = LoopWatch(node.reactor, thread_cpu_s)
        self.health = Health(node, self.watch)
        self._endpoint = MetricsEndpoint(node.slices, self.health)
        self.exposition = self._endpoint.exposition
        self.exposition.add(process_series)
        if node.telemetry is not None:
            self.exposition.add(ClientSeries(node.telemetry, node.reactor.clock.monotonic_ms).collect)
        add_exporter(self.exposition, node)

    async def open(self, network: Network) -> None:
        """Listens at metrics.listen. Raises MetricsAddressRefused."""
        address = self._node.config.metrics_address
        if address is None:
            return
        try:
            await self._endpoint.open(network, *address)
        except OSError as error:
            raise MetricsAddressRefused(
                f"metrics.listen: {error.strerror or error}; name another address, or port 0 for a free one"
            ) from None
        self.watch.start()

    @property
    def address(self) -> tuple[str, int]:
        """The bound host and port."""
        return self._endpoint.address

    @property
    def shown_address(self) -> str:
        """HOST:PORT."""
        return _shown(*self.address)

    def close(self) -> None:
        """Closes the address and its connections."""
        self.watch.stop()
        self._endpoint.close()


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
