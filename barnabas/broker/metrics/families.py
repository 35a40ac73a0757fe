"""Metric families in the shapes of Strimzi's rules for the JMX exporter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric, UnknownMetricFamily

from barnabas.broker.metrics.histogram import Histogram


def gauge(name: str, doc: str, value: float) -> Metric:
    return GaugeMetricFamily(name, doc, value)


def counter(name: str, doc: str, value: float) -> Metric:
    """A counter without labels; the name of its sample ends with _total."""
    return CounterMetricFamily(name.removesuffix("_total"), doc, value)


def quantile_family(
    name: str, doc: str, label: str, histograms: Mapping[str, Histogram], exact: Mapping[str, int] | None = None
) -> Iterator[Metric]:
    """A Kafka histogram: a gauge for each quantile, and `exact` or its own _count, without _sum. No `label`: one histogram."""
    labels = [label] if label else []
    quantiles = GaugeMetricFamily(name, doc, labels=[*labels, "quantile"])
    counts = UnknownMetricFamily(f"{name}_count", f"Number of values in {name}.", labels=labels)
    for key, histogram in histograms.items():
        of_key = [key] if label else []
        for quantile, value in histogram.quantiles_ms().items():
            quantiles.add_metric([*of_key, quantile], value)
        counts.add_metric(of_key, histogram.count if exact is None else exact.get(key, 0))
    yield quantiles
    yield counts


def labelled(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    doc: str,
    label: str,
    values: Iterable[tuple[str, float]],
) -> Metric:
    family = kind(name, doc, labels=[label])
    for key, value in values:
        family.add_metric([key], value)
    return family
