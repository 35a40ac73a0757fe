"""Histograms of durations: quantiles within 7 %, the last five minutes, counts of all time."""

from __future__ import annotations

import math
import random

import pytest

from barnabas.broker.metrics.histogram import QUANTILES, WINDOWS, Histogram

MS = 1_000_000


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_are_near_the_exact_ones(seed: int) -> None:
    draw = random.Random(seed)
    values = sorted(int(draw.lognormvariate(1, 1.5) * MS) + 1_000 for _ in range(5_000))
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    found = histogram.quantiles_ms()
    for quantile in QUANTILES:
        exact = values[min(math.ceil(float(quantile) * len(values)) - 1, len(values) - 1)] / MS
        assert found[quantile] == pytest.approx(exact, rel=0.08), quantile
    assert histogram.mean_ms() == pytest.approx(sum(values) / len(values) / MS, rel=0.08)
    assert histogram.greatest_ms() == pytest.approx(values[-1] / MS, rel=0.08)


def test_without_a_duration() -> None:
    histogram = Histogram()
    assert set(histogram.quantiles_ms().values()) == {0.0}
    assert histogram.count == 0
    assert math.isnan(histogram.mean_ms())
    assert math.isnan(histogram.greatest_ms())


def test_old_minutes_leave_the_quantiles_and_stay_in_the_count() -> None:
    histogram = Histogram()
    for _ in range(10):
        histogram.record(1_000 * MS)
    for _ in range(WINDOWS):
        assert histogram.quantiles_ms()["0.50"] == pytest.approx(1_000, rel=0.08)
        histogram.turn()
    assert histogram.quantiles_ms()["0.50"] == 0.0
    histogram.record(2 * MS)
    assert histogram.quantiles_ms()["0.999"] == pytest.approx(2, rel=0.08)
    assert histogram.count == 11


@pytest.mark.parametrize("duration", [0, -5, 1, 10**15])
def test_any_duration_has_a_bucket(duration: int) -> None:
    histogram = Histogram()
    histogram.record(duration)
    assert histogram.count == 1
    assert all(math.isfinite(value) for value in histogram.quantiles_ms().values())
