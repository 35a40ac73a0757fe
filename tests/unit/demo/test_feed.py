"""The demonstration's input lasts for its kills, however many rows there are."""

from __future__ import annotations

import pytest

from examples.demo.feed import TICK_S, rows_of_tick


@pytest.mark.parametrize("rows", [1, 10, 1_000, 336_776])
def test_the_last_row_waits_for_the_last_kill(rows: int) -> None:
    left, credit = rows, 0.0
    for _ in range(int(100 / TICK_S)):
        count, credit = rows_of_tick(left, 5.0, credit)
        left -= count
        assert 0 <= credit < 1
    assert left == 1
    assert rows_of_tick(left, 0.0, credit) == (1, 0.0)


def test_rows_come_evenly() -> None:
    left, credit, ticks = 1_000, 0.0, []
    for _ in range(50):
        count, credit = rows_of_tick(left, 20.0, credit)
        left -= count
        ticks.append(count)
    assert 40 <= sum(ticks) <= 55  # a second of twenty
    assert max(ticks) <= 2


def test_without_kills_everything_comes_at_once() -> None:
    assert rows_of_tick(336_776, 0.0, 0.0) == (336_776, 0.0)
