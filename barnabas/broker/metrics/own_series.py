"""Barnabas' own series of a node: fences, refusals, pauses of the loop, recovery, fences by probes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from barnabas.broker.coordinator.transactions.connection_fence import ConnectionFence
from barnabas.broker.metrics.loop_watch import LoopWatch
from barnabas.broker.metrics.parts import Observed


class OwnSeries:
    """Collector of this module's series."""

    def __init__(self, node: Observed, watch: LoopWatch) -> None:
        self._node = node
        self._watch = watch
        self._connection_fence: ConnectionFence = node.connection_fence

    def collect(self) -> Iterator[Metric]:
        node = self._node
        yield _by(
            "barnabas_fences",
            "Requests refused because their sender was replaced: producer_epoch: batches with an old producer epoch; "
            "transactional_id: requests of a former producer of the id; connection: late requests of an older "
            "connection; group_member: requests of a former member.",
            "cause",
            {
                "producer_epoch": node.replicas.fenced_batches,
                "transactional_id": node.transactions.counts.fenced,
                "connection": self._connection_fence.refusals,
                "group_member": node.groups.fenced_members,
            },
        )
        servers = (node.server, node.controller_server)
        yield _by(
            "barnabas_connections_refused",
            "Connections closed by a limit: max_connections_per_ip, or max_connections, for another listener.",
            "reason",
            {
                "max_connections_per_ip": sum(each.refusals for each in servers),
                "max_connections": sum(each.evictions for each in servers),
            },
        )
        yield GaugeMetricFamily(
            "barnabas_loop_longest_pause_seconds",
            "The longest delay of a timer of the loop since the start.",
            self._watch.longest_pause_ms / 1000,
        )
        yield CounterMetricFamily("barnabas_loop_stalls", "Delays of the loop of more than 500 ms.", self._watch.stalls)
        opened, logs = node.replicas.recovery_progress
        yield GaugeMetricFamily("barnabas_recovery_logs", "Partitions that existed at the start.", logs)
        yield GaugeMetricFamily("barnabas_recovery_logs_opened", "Partitions of the start that are open now.", opened)
        if node.quorum_controller is not None:
            yield CounterMetricFamily(
                "barnabas_controller_probe_fences",
                "Brokers that this controller fenced because nothing accepted connections at their address.",
                node.quorum_controller.liveness.sessions.probe_fences,
            )


def _by(name: str, doc: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, doc, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family
