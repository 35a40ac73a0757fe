"""Rates of clients and throttle times, as Kafka's Rate, TokenBucket and QuotaUtils compute them.

The vectors are computed by Kafka's formula: over the sum O*W of the counted samples, a delay X with O*W / (W + X) = T.
"""

from __future__ import annotations

import math

import pytest

from barnabas.broker.quotas.rate import SampledRate, TokenBucket


@pytest.mark.parametrize(
    ("uses", "bound", "now_ms", "throttle_ms"),
    [
        # one request: W = 10 whole samples. 20,000 / 10 s = 2,000; (2,000 - 1,000) / 1,000 * 10,000
        ([(0, 20_000)], 1_000, 0, 10_000),
        ([(0, 10_000)], 1_000, 0, 0),
        ([(0, 10_010)], 1_000, 0, 10),
        # half a second later W = 10.5 s: 20,000 / 10.5 = 1904.76
        ([(0, 10_000), (500, 10_000)], 1_000, 500, 9_500),
        # the third sample has begun: W = 2.2 s + 8 whole samples that are missing = 10.2 s
        ([(0, 5_000), (1_100, 5_000), (2_200, 5_000)], 1_000, 2_200, 4_800),
        # eleven samples of a second: W = 10 s, 22,000 / 10
        ([(second * 1_000, 2_000) for second in range(11)], 1_000, 10_000, 12_000),
        # the oldest sample overlaps the window: 12 samples, W = 11 s
        ([(second * 1_000 + 999 * (second == 0), 2_000) for second in range(12)], 1_000, 11_000, 13_999),
        # everything has expired but the last use: W = 10 s
        ([(0, 1_000_000), (60_000, 11_000)], 1_000, 60_000, 1_000),
    ],
)
def test_the_time_until_a_rate_is_legal(
    uses: list[tuple[int, int]], bound: float, now_ms: int, throttle_ms: int
) -> None:
    rate = SampledRate(11, 1_000)
    for at_ms, amount in uses:
        rate.record(amount, at_ms)
    assert rate.throttle_ms(bound, now_ms) == throttle_ms


def test_what_is_taken_back_does_not_count() -> None:
    rate = SampledRate(11, 1_000)
    rate.record(9_000, 0)
    rate.record(5_000, 700)
    assert rate.throttle_ms(1_000, 700) > 0
    rate.record(-5_000, 700)
    assert rate.throttle_ms(1_000, 700) == 0


def test_after_the_throttle_time_the_rate_is_legal() -> None:
    rate = SampledRate(11, 1_000)
    rate.record(50_000, 0)
    throttle_ms = rate.throttle_ms(5_000.0, 0)
    assert throttle_ms == 0
    rate.record(4_000, 300)
    throttle_ms = rate.throttle_ms(5_000.0, 300)
    assert rate.throttle_ms(5_000.0, 300 + throttle_ms - 1) > 0
    assert rate.throttle_ms(5_000.0, 300 + throttle_ms) == 0


@pytest.mark.parametrize("bound", [math.nan, math.inf])
def test_a_bound_that_is_no_number_throttles_nothing(bound: float) -> None:
    rate, bucket = SampledRate(11, 1_000), TokenBucket(11, 1_000)
    rate.record(1e30, 0)
    bucket.take(10, bound, 0)
    assert (rate.throttle_ms(bound, 0), bucket.throttle_ms(bound, 0)) == (0, 0)


def test_a_throttle_time_fits_into_an_answer() -> None:
    rate = SampledRate(11, 1_000)
    rate.record(1e30, 0)
    assert rate.throttle_ms(1e-30, 0) < 2**31


def test_one_sample_is_enough() -> None:
    rate = SampledRate(1, 1_000)
    rate.record(5, 0)
    assert rate.throttle_ms(1_000, 1) == 4  # W is 1 ms


def test_a_bucket_is_full_at_first_and_may_be_overdrawn_once() -> None:
    bucket = TokenBucket(11, 1_000)
    assert bucket.tokens(2, 0) == 22
    bucket.take(22, 2, 0)
    assert bucket.throttle_ms(2, 0) == 0, "0 tokens are legal"
    bucket.take(5, 2, 0)
    assert bucket.throttle_ms(2, 0) == 2_500
    assert bucket.throttle_ms(2, 1_000) == 1_500
    assert bucket.throttle_ms(2, 2_500) == 0
    assert bucket.tokens(2, 1_000_000) == 22
    assert bucket.tokens(1, 1_000_000) == 11, "a lower rate makes the bucket smaller"
