"""ClientSeries: client telemetry (KIP-714) as Prometheus series, and the number of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from barnabas.broker.metrics.line_table import LineTable, Series, escaped
from barnabas.broker.telemetry.clients import ClientTelemetry

NAMES_MAX: Final = 1_000
SERIES_A_SLICE: Final = 256

LabelPairs = tuple[tuple[str, str], ...]


class ClientSeries:
    """Collector of pushed metrics, of at most NAMES_MAX names.

    org.apache.kafka.producer.connection.creation.rate is kafka_client_producer_connection_creation_rate, labelled client_instance_id,
    client_id, client_software_name, client_software_version, and with the client's own labels. `now_ms` is the monotonic clock.
    """

    def __init__(self, telemetry: ClientTelemetry, now_ms: Callable[[], int]) -> None:
        self._telemetry = telemetry
        self._now_ms = now_ms
        self._tables: dict[str, LineTable[LabelPairs]] = {}

    def collect(self) -> Iterator[Metric | LineTable[LabelPairs] | None]:
        telemetry = self._telemetry
        telemetry.forget_silent(self._now_ms())
        yield GaugeMetricFamily(
            "kafka_server_client_metrics_instance_count", "Clients that push metrics.", value=len(telemetry)
        )
        for name, doc, count in (
            ("plugin_export", "Pushes of clients that were taken.", telemetry.pushes),
            ("plugin_error", "Pushes of clients that were refused.", telemetry.refused_pushes),
            ("throttle", "Requests of clients that came before their interval had passed.", telemetry.throttled),
            ("unknown_subscription_request", "Pushes for a former subscription.", telemetry.unknown_subscriptions),
        ):
            yield CounterMetricFamily(f"kafka_server_client_metrics_{name}", doc, value=count)
        yield from self._update()
        yield from list(self._tables.values())

    def _update(self) -> Iterator[None]:
        seen: dict[str, set[LabelPairs]] = {}
        for number, each in enumerate(self._telemetry.series()):
            table = self._tables.get(each.name)
            if table is None:
                if len(self._tables) >= NAMES_MAX:
                    continue
                kind = "counter" if each.is_counter and each.name.endswith("_total") else "gauge"
                doc = "Pushed by clients."
                table = self._tables[each.name] = LineTable((Series(each.name, kind, doc),), _labels)
            table.put(each.labels, (each.value,))
            seen.setdefault(each.name, set()).add(each.labels)
            if number % SERIES_A_SLICE == SERIES_A_SLICE - 1:
                yield None
        for name, table in list(self._tables.items()):
            present = seen.get(name, set())
            for number, key in enumerate(table.keys()):
                if key not in present:
                    table.drop(key)
                if number % SERIES_A_SLICE == SERIES_A_SLICE - 1:
                    yield None
            if not len(table):
                del self._tables[name]


def _labels(key: LabelPairs) -> str:
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in key) + "}"
