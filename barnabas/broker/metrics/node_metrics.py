"""NodeMetrics: metrics and health of one node, imported only with `metrics.listen`, to save start-up time and memory."""

from __future__ import annotations

from typing import Final

from barnabas.broker.config.broker_config import BROKER
from barnabas.broker.config.key import shown_address
from barnabas.broker.metrics.client_series import ClientSeries
from barnabas.broker.metrics.controller_series import ControllerSeries
from barnabas.broker.metrics.endpoint import Health, MetricsEndpoint
from barnabas.broker.metrics.group_series import GroupSeries
from barnabas.broker.metrics.histogram import Histogram
from barnabas.broker.metrics.loop_watch import LoopWatch
from barnabas.broker.metrics.partition_series import PartitionSeries
from barnabas.broker.metrics.parts import Observed
from barnabas.broker.metrics.quorum_series import QuorumSeries
from barnabas.broker.metrics.request_meters import RequestMeters
from barnabas.broker.metrics.server_series import OwnSeries, QuotaSeries, ServerSeries, process_series
from barnabas.broker.metrics.topic_partition_series import TopicPartitionSeries
from barnabas.broker.metrics.topic_series import TopicSeries
from barnabas.broker.metrics.transaction_series import TransactionSeries
from barnabas.broker.replica.core.traffic import Traffic
from barnabas.errors import BarnabasError
from barnabas.network_port import Network
from barnabas.runtime.process_stats import thread_cpu_s

MINUTE_MS: Final = 60_000


class MetricsAddressRefused(BarnabasError):
    """The address of metrics.listen cannot be used; the text says why."""


class NodeMetrics:
    """The collectors of a node's parts, and their endpoint."""

    def __init__(self, node: Observed) -> None:
        self._node = node
        self.watch = LoopWatch(node.reactor, thread_cpu_s)  # pauses and idle time of the loop
        self.health = Health(node, self.watch)  # whether the node is ready
        self._endpoint = MetricsEndpoint(node.slices, self.health)
        self.exposition = self._endpoint.exposition  # the collectors; a part with its own series adds one
        self._requests = RequestMeters()
        self._controller: ControllerSeries | None = None
        self._turned_ms = node.reactor.clock.monotonic_ms()
        self._add_collectors(node)

    def _add_collectors(self, node: Observed) -> None:
        add, watch = self.exposition.add, self.watch
        commit_latency = Histogram()
        if BROKER in node.config.roles:
            traffic = node.replicas.traffic = Traffic()
            add(TopicSeries(traffic).collect)
            add(PartitionSeries(node.replicas, node.isr_changes, node.log_dirs).collect)
        if node.quorum_controller is not None:
            controller = self._controller = ControllerSeries(node.quorum_controller, node.current_image)
            node.quorum_controller.observer = controller
            node.current_image.follow(controller.follow)
            watch.on_tick.append(controller.on_tick)
            commit_latency = controller.commit_latency
            add(controller.collect)
        quorum = QuorumSeries(node.reactor, node.quorum, node.current_image, node.peers, commit_latency)
        watch.on_tick.append(quorum.on_tick)
        watch.on_tick.append(self._on_tick)
        add(quorum.collect)
        add(ServerSeries((node.server, node.controller_server), node.lifecycle, watch).collect)
        mutations = None if node.quorum_controller is None else node.quorum_controller.mutations.meter
        add(QuotaSeries(node.reactor.clock, node.server.client_quotas.clients, mutations).collect)
        node.router.make_route = self._requests.make_route
        node.controller_router.make_route = self._requests.make_route
        add(self._requests.collect)
        add(process_series)
        if node.telemetry is not None:
            add(ClientSeries(node.telemetry, node.reactor.clock.monotonic_ms).collect)
        add(TopicPartitionSeries(node.replicas, node.current_image, node.quorum_controller).collect)
        groups = GroupSeries(node)
        self.exposition.add_preparation(groups.ends.refresh)
        add(groups.collect)
        add(TransactionSeries(node.reactor, node.transactions, node.replicas).collect)
        add(OwnSeries(node, watch).collect)

    def _on_tick(self, now_ms: int) -> None:
        if now_ms - self._turned_ms >= MINUTE_MS:
            self._turned_ms = now_ms
            self._requests.turn()
            if self._controller is not None:
                self._controller.turn()

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
        return self._endpoint.address

    @property
    def shown_address(self) -> str:
        return shown_address(*self.address)

    def close(self) -> None:
        self.watch.stop()
        self._endpoint.close()
