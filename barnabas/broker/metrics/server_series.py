"""Series of a node: connections, waiting requests, idle time, state, quotas, refusals, recovery, and its process.
A node's loop is its network threads and request handlers in one, so both idle shares are that of the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from barnabas.broker.front.response_slot import waiting_apis
from barnabas.broker.front.server import Server
from barnabas.broker.membership.lifecycle import BrokerState, Lifecycle
from barnabas.broker.metrics.families import gauge, labelled
from barnabas.broker.metrics.loop_watch import LoopWatch
from barnabas.broker.metrics.parts import Observed
from barnabas.broker.quotas.client_quotas import ClientUsage, QuotaKind, QuotaMeter
from barnabas.ports import Clock
from barnabas.runtime import descriptors, process_stats

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

CLIENTS_MAX: Final = 200  # of each quota
LABEL_CHARACTERS_MAX: Final = 256  # of a user and a client id
CLIENT_LABELS: Final = ("user", "client_id")
TYPES: Final = {
    QuotaKind.PRODUCE: ("produce", "byte_rate", "Bytes a second that a client with a quota produces."),
    QuotaKind.FETCH: ("fetch", "byte_rate", "Bytes a second that a client with a quota fetches."),
    QuotaKind.REQUEST: ("request", "request_time", "Percent of the loop's time that a client with a quota uses."),
    QuotaKind.MUTATION: (
        "controllermutation",
        "mutation_rate",
        "Partitions a second that a client with a quota creates and deletes.",
    ),
}


class ServerSeries:
    """Barnabas' own series of a node: fences, refusals, pauses of the loop, recovery, fences by probes."""

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


class OwnSeries:
    """Barnabas' own series of a node: fences, refusals, pauses of the loop, recovery, fences by probes."""

    def __init__(self, node: Observed, watch: LoopWatch) -> None:
        self._node = node
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        node = self._node
        yield labelled(
            CounterMetricFamily,
            "barnabas_fences",
            "Requests refused because their sender was replaced: producer_epoch: batches with an old producer epoch; "
            "transactional_id: requests of a former producer of the id; connection: late requests of an older "
            "connection; group_member: requests of a former member.",
            "cause",
            {
                "producer_epoch": node.replicas.fenced_batches,
                "transactional_id": node.transactions.counts.fenced,
                "connection": node.connection_fence.refusals,
                "group_member": node.groups.fenced_members,
            }.items(),
        )
        servers = (node.server, node.controller_server)
        yield labelled(
            CounterMetricFamily,
            "barnabas_connections_refused",
            "Connections closed by a limit: max_connections_per_ip, or max_connections, for another listener.",
            "reason",
            {
                "max_connections_per_ip": sum(each.refusals for each in servers),
                "max_connections": sum(each.evictions for each in servers),
            }.items(),
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


def process_series() -> Iterator[Metric]:
    """Without families that the system does not know."""
    yield CounterMetricFamily(
        "process_cpu_seconds", "CPU time of the process, user and system.", process_stats.process_cpu_s()
    )
    for name, doc, value in (
        ("process_resident_memory_bytes", "Memory in use.", process_stats.resident_bytes()),
        ("process_virtual_memory_bytes", "Size of the address space.", process_stats.virtual_bytes()),
        ("process_start_time_seconds", "Start of the process, since the epoch.", process_stats.started_at_s()),
        ("process_open_fds", "Open files and connections.", process_stats.open_descriptors()),
        ("process_max_fds", "Limit of open files and connections.", descriptors.limit()),
    ):
        if value is not None:
            yield GaugeMetricFamily(name, doc, value)
    moved = process_stats.disk_bytes()
    if moved is not None:
        for direction, value in zip(("read", "write"), moved, strict=True):
            yield GaugeMetricFamily(
                f"kafka_server_kafkaserver_linux_disk_{direction}_bytes",
                f"Bytes that the process caused to be {'read from' if direction == 'read' else 'written to'} disks.",
                value,
            )


class QuotaSeries:
    """Collector of quota usage; `mutations` is None without the controller role."""

    def __init__(self, clock: Clock, clients: QuotaMeter, mutations: QuotaMeter | None) -> None:
        self._clock = clock
        self._clients = clients
        self._mutations = mutations

    def collect(self) -> Iterator[Metric | None]:
        now_ms = self._clock.monotonic_ms()
        used = [each for each in self._clients.usage(now_ms, CLIENTS_MAX) if each.kind is not QuotaKind.MUTATION]
        if self._mutations is not None:
            used += self._mutations.usage(now_ms, CLIENTS_MAX)
        yield None
        for kind, (name, attribute, doc) in TYPES.items():
            of_kind = _labelled(each for each in used if each.kind is kind)
            rates = GaugeMetricFamily(f"kafka_server_{name}_{attribute}", doc, labels=CLIENT_LABELS)
            throttles = GaugeMetricFamily(
                f"kafka_server_{name}_throttle_time",
                "Average throttle time of a client that was throttled of late, in milliseconds.",
                labels=CLIENT_LABELS,
            )
            for labels, usage in of_kind.items():
                rates.add_metric(labels, usage.rate)
                if usage.throttle_ms is not None:
                    throttles.add_metric(labels, usage.throttle_ms)
            yield rates
            yield throttles
            if kind is QuotaKind.MUTATION:
                tokens = GaugeMetricFamily(
                    f"kafka_server_{name}_tokens",
                    "Partitions that a client with a quota may create and delete now; negative after more.",
                    labels=CLIENT_LABELS,
                )
                for labels, usage in of_kind.items():
                    tokens.add_metric(labels, usage.tokens or 0.0)
                yield tokens


def _labelled(used: Iterable[ClientUsage]) -> dict[tuple[str, str], ClientUsage]:
    """Usage by labels; of clients with equal shortened names, the most recently active one."""
    found: dict[tuple[str, str], ClientUsage] = {}
    for each in used:
        labels = (each.user[:LABEL_CHARACTERS_MAX], each.client_id[:LABEL_CHARACTERS_MAX])
        found.setdefault(labels, each)
    return found
