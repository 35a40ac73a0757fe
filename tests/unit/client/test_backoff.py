"""Pauses: short at first, then a share of how long the trouble lasts, never above a second by more than the jitter."""

from __future__ import annotations

import pytest

from barnabas.client.net.core.backoff import PAUSE_MAX_MS, Backoff, retry_pause_ms
from tests.support.rng import SeededRng


@pytest.mark.parametrize(
    ("lasted_ms", "pause_ms"), [(0, 20), (79, 20), (400, 100), (2_000, 500), (60_000, PAUSE_MAX_MS)]
)
def test_a_pause_is_a_quarter_of_the_trouble(lasted_ms: int, pause_ms: int) -> None:
    pauses = [retry_pause_ms(lasted_ms, 20, SeededRng(seed)) for seed in range(50)]
    assert all(0.79 * pause_ms < pause < 1.2 * pause_ms for pause in pauses)
    assert len(set(pauses)) > 1, "clients that lost the same broker do not come back together"


@pytest.mark.parametrize("end_ms", [5, 50, 300, 900, 2_500])
def test_whenever_the_end_comes_it_is_noticed_soon(end_ms: int) -> None:
    backoff, now_ms, attempts = Backoff(20, SeededRng()), 0, 1
    while now_ms < end_ms:
        now_ms += backoff.pause_ms(now_ms)
        attempts += 1
    assert now_ms <= end_ms * 1.3 + 24
    assert attempts <= 25


def test_a_long_first_pause_is_kept() -> None:
    assert retry_pause_ms(0, 5_000, SeededRng()) > 3_900


def test_after_it_went_well_the_next_trouble_begins_anew() -> None:
    backoff = Backoff(20, SeededRng())
    backoff.pause_ms(0)
    assert backoff.pause_ms(10_000) > 700
    backoff.reset()
    assert backoff.pause_ms(10_001) < 25
