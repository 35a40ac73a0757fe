"""Quota series: usage and throttle times of clients with quotas, of the CLIENTS_MAX most recently active."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from barnabas.broker.quotas.client_quotas import ClientUsage, QuotaKind, QuotaMeter
from barnabas.ports import Clock

CLIENTS_MAX: Final = 200  # of each quota
LABEL_CHARACTERS_MAX: Final = 256  # of a user and a client id
LABELS: Final = ("user", "client_id")
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
            rates = GaugeMetricFamily(f"kafka_server_{name}_{attribute}", doc, labels=LABELS)
            throttles = GaugeMetricFamily(
                f"kafka_server_{name}_throttle_time",
                "Average throttle time of a client that was throttled of late, in milliseconds.",
                labels=LABELS,
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
                    labels=LABELS,
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
