"""The reader of pushed metrics, compared with OpenTelemetry's library, and what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from barnabas.broker.telemetry.otlp import ATTRIBUTES_MAX, POINTS_MAX, Point, read_metrics
from barnabas.errors import RemoteProtocolError
from barnabas.work import UNITS_PER_SLICE, finished
from tests.support.broker.pushes import number

NAMES = st.text(min_size=1, max_size=30)
NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
VALUES = st.one_of(st.text(max_size=20), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))


def shown(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


@given(
    st.lists(
        st.tuples(
            NAMES, NUMBERS, st.dictionaries(NAMES, VALUES, max_size=4), st.sampled_from(["gauge", "sum", "delta"])
        ),
        max_size=8,
    )
)
def test_every_number_that_the_library_writes_is_read(
    written: list[tuple[str, float, dict[str, str | int | float | bool], str]],
) -> None:
    data = MetricsData()
    expected = []
    for name, value, attributes, kind in written:
        metric = data.resource_metrics.add().scope_metrics.add().metrics.add()
        metric.name, metric.unit, metric.description = name, "ms", "left out"
        body = metric.gauge if kind == "gauge" else metric.sum
        if kind != "gauge":
            metric.sum.is_monotonic = True
            metric.sum.aggregation_temporality = 1 if kind == "delta" else 2
        number(body.data_points.add(), value, attributes)
        keys = tuple(sorted((key, shown(each)) for key, each in attributes.items()))
        expected.append(Point(name, keys, value, kind != "gauge", kind == "delta"))
    assert finished(read_metrics(data.SerializeToString())) == expected


def test_a_histogram_is_its_count_and_sum() -> None:
    data = MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add()
    metric.name = "latency"
    point = metric.histogram.data_points.add()
    point.count, point.sum = 3, 4.5
    point.bucket_counts.extend([1, 2])
    assert finished(read_metrics(data.SerializeToString())) == [
        Point("latency.count", (), 3, True, False),
        Point("latency.sum", (), 4.5, True, False),
    ]


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        finished(read_metrics(data))
    except RemoteProtocolError:
        pass


def field(tag: int, body: bytes) -> bytes:
    size = bytearray()
    left = len(body)
    while left > 127:
        size.append(left & 127 | 128)
        left >>= 7
    return bytes([tag << 3 | 2, *size, left]) + body


def metrics_of(body: bytes) -> bytes:
    return field(1, field(2, field(2, body)))


NAME = field(1, b"m")
POINT = b"\x21" + bytes(8)  # as_double
MANY_ATTRIBUTES = b"".join(field(7, field(1, b"k%d" % n) + field(2, field(1, b"v"))) for n in range(ATTRIBUTES_MAX + 1))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x0a", "cut off"),
        (b"\x0a\x05ab", "longer than its message"),
        (b"\x0b", "wire type 3"),
        (b"\xff" * 11, "cut off or too long"),
        (field(1, b"\x12\x00" * 100_001), "too many fields"),
        (metrics_of(NAME + field(5, field(1, POINT) * (POINTS_MAX + 1))), "data points"),
        (metrics_of(NAME + field(5, field(1, POINT + MANY_ATTRIBUTES))), "attributes"),
        (metrics_of(NAME + field(5, field(1, POINT + field(7, b"\x10\x01" * 100)))), "too many fields"),
        (metrics_of(NAME + field(5, field(1, POINT + field(7, field(2, b"\x18\x01" * 10))))), "too many fields"),
        (metrics_of(field(1, b"m" * 257)), "longer than 256"),
        (metrics_of(field(1, b"\xff")), "not UTF-8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        finished(read_metrics(data))


def test_a_long_push_is_read_in_slices() -> None:
    work = read_metrics(field(1, field(2, b"\x12\x00" * 40_000)))
    steps = list(work)
    assert all(isinstance(each, int) and each < UNITS_PER_SLICE for each in steps)
    assert sum(each for each in steps if isinstance(each, int)) > 10 * UNITS_PER_SLICE
