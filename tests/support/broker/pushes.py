"""What clients push, written by OpenTelemetry's own library."""

from __future__ import annotations

from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData, NumberDataPoint

DELTA = 1  # AggregationTemporality


def number(point: NumberDataPoint, value: float, attributes: dict[str, str | int | float | bool]) -> None:
    """Fills a data point."""
    if isinstance(value, int):
        point.as_int = value
    else:
        point.as_double = value
    for key, text in attributes.items():
        each = point.attributes.add()
        each.key = key
        if isinstance(text, bool):
            each.value.bool_value = text
        elif isinstance(text, int):
            each.value.int_value = text
        elif isinstance(text, float):
            each.value.double_value = text
        else:
            each.value.string_value = text


def gauge_and_sum(gauge: float, added: float, **attributes: str) -> bytes:
    """A push with one gauge, org.apache.kafka.producer.queue.size, and one counter, org.apache.kafka.producer.sent."""
    data = MetricsData()
    scope = data.resource_metrics.add().scope_metrics.add()
    first = scope.metrics.add()
    first.name = "org.apache.kafka.producer.queue.size"
    number(first.gauge.data_points.add(), gauge, dict(attributes))
    second = scope.metrics.add()
    second.name = "org.apache.kafka.producer.sent"
    second.sum.is_monotonic = True
    second.sum.aggregation_temporality = DELTA
    number(second.sum.data_points.add(), added, dict(attributes))
    return bytes(data.SerializeToString())
