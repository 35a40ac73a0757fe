"""The arithmetic by which the kill tests leave times out of gaps."""

from __future__ import annotations

import pytest

from tests.support.processes.kills import longest_stretch


@pytest.mark.parametrize(
    ("stretches", "excepted", "longest"),
    [
        ([], [], 0.0),
        ([(3.0, 1.0)], [], 0.0),  # it ends before it begins
        ([(0.0, 2.0), (5.0, 8.0)], [], 3.0),
        ([(0.0, 10.0)], [(4.0, 5.0)], 5.0),  # the middle is excepted: two parts are left
        ([(0.0, 10.0)], [(0.0, 6.0), (5.0, 10.0)], 0.0),  # overlapping, together all of it
        ([(0.0, 10.0)], [(8.0, 20.0), (-5.0, 1.0)], 7.0),  # they reach beyond the ends
        ([(0.0, 10.0)], [(11.0, 12.0)], 10.0),  # elsewhere
    ],
)
def test_excepted_times_are_left_out(
    stretches: list[tuple[float, float]], excepted: list[tuple[float, float]], longest: float
) -> None:
    assert longest_stretch(stretches, excepted) == longest


def test_many_excepted_times_cost_no_more_than_their_number() -> None:
    """Each one leaves at most one part more, so a hundred of them end at once."""
    excepted = [(index + 0.25, index + 0.75) for index in range(100)]
    assert longest_stretch([(0.0, 100.0)], excepted) == 0.5
