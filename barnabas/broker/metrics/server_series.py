"""Server series: connections by listener, waiting requests, idle time, state of the broker.
A node's loop is its network threads and request handlers in one, so both idle shares are that of the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from barnabas.broker.front.response_slot import waiting_apis
from barnabas.broker.front.server import Server
from barnabas.broker.membership.lifecycle import BrokerState, Lifecycle
from barnabas.broker.metrics.families import gauge
from barnabas.broker.metrics.loop_watch import LoopWatch

CONNECTIONS_PER_SLICE: Final = 1_000
LABELS: Final = ("listener", "networkProcessor")

AUTHENTICATIONS: Final = {
    "successful_authentication": "Clients that logged in, or whose TLS handshake succeeded.",
    "failed_authentication": "Logins that were refused, and TLS handshakes that failed.",
    "successful_reauthentication": "Sessions that clients renewed.",
    "failed_reauthentication": "Renewals of sessions that were refused.",
}
# Numbers of org.apache.kafka.metadata.BrokerState.
STATES: Final = {
    BrokerState.STARTING: 1,
    BrokerState.RECOVERY: 2,
    BrokerState.RUNNING: 3,
    BrokerState.PENDING_CONTROLLED_SHUTDOWN: 6,
    BrokerState.STOPPED: 7,
}

# API keys of the requests in Kafka's purgatories.
PURGATORIES: Final = {"Produce": (0,), "Fetch": (1,), "Rebalance": (11, 14), "DeleteRecords": (21,), "topic": (19, 20)}


class ServerSeries:
    """Collector of this module's series."""

    def __init__(self, servers: Sequence[Server], lifecycle: Lifecycle, watch: LoopWatch) -> None:
        self._servers = servers
        self._lifecycle = lifecycle
        self._watch = watch

    def collect(self) -> Iterator[Metric | None]:
        open_now = GaugeMetricFamily(
            "kafka_server_socket_server_metrics_connection_count", "Open connections.", labels=LABELS
        )
        made = CounterMetricFamily(
            "kafka_server_socket_server_metrics_connection_creation", "Connections so far.", labels=LABELS
        )
        ended = CounterMetricFamily(
            "kafka_server_socket_server_metrics_connection_close", "Connections that have ended.", labels=LABELS
        )
        for server in self._servers:
            for listener, accepted in server.accepted.items():
                count = server.quotas.by_listener.get(listener, 0)
                open_now.add_metric((listener, "0"), count)
                made.add_metric((listener, "0"), accepted)
                ended.add_metric((listener, "0"), accepted - count)
        yield from (open_now, made, ended)
        yield from self._authentications()
        idle = self._watch.idle()
        for name in (
            "kafka_network_socketserver_networkprocessoravgidle_percent",
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
        ):
            yield gauge(name, "Share of the last minute in which the loop had nothing to do, 0 to 1.", idle)
        state = STATES[self._lifecycle.state]
        yield gauge(
            "kafka_server_kafkaserver_brokerstate",
            "State of the node: 1 starting, 2 recovering, 3 running, 6 and 7 stopping.",
            state,
        )
        yield from self._waiting()

    def _authentications(self) -> Iterator[Metric]:
        families = [
            CounterMetricFamily(f"kafka_server_socket_server_metrics_{name}", text, labels=LABELS)
            for name, text in AUTHENTICATIONS.items()
        ]
        for server in self._servers:
            for listener, counts in server.authentications.items():
                every = (counts.successful, counts.failed, counts.renewed, counts.failed_renewals)
                for family, count in zip(families, every, strict=True):
                    family.add_metric((listener, "0"), count)
        yield from families

    def _waiting(self) -> Iterator[Metric | None]:
        waiting: Counter[int] = Counter()
        held = seen = 0
        for server in self._servers:
            for connection in list(server.connections):
                if connection.core.waits:
                    waiting.update(waiting_apis(connection.core.unanswered))
                    held += connection.core.held_requests
                seen += 1
                if seen % CONNECTIONS_PER_SLICE == 0:
                    yield None
        sizes = GaugeMetricFamily(
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            "Requests that wait for an event or their deadline.",
            labels=["delayedOperation"],
        )
        for name, keys in PURGATORIES.items():
            sizes.add_metric([name], sum(waiting[key] for key in keys))
        yield sizes
        yield gauge(
            "kafka_network_requestchannel_requestqueuesize",
            "Received requests that wait until earlier requests of their connection are served.",
            held,
        )
