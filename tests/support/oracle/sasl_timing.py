"""Holds and compares SASL conversations without the times that a busy machine adds."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

TIMES_MAX = 5


def goes_as(said: list[Any], expected: list[Any]) -> bool:
    """Whether a conversation went as expected. An answer may come later than expected (a busy machine), but none without the delay."""
    steps, delays = _timed(said)
    expected_steps, expected_delays = _timed(expected)
    return steps == expected_steps and all(map(operator.ge, delays, expected_delays))


def held_as(
    expected: Mapping[str, list[Any]], hold: Callable[[Collection[str] | None], dict[str, Any]]
) -> dict[str, Any]:
    """Holds all conversations, and repeats those that differ from what is expected.

    A session of three seconds may end on a busy machine before the client is back. An error of the broker comes each time.

    Args:
        hold: holds the conversations of these names; None: all.
    """
    said = hold(None)
    for _ in range(1, TIMES_MAX):
        wrong = [name for name, each in said.items() if not goes_as(each, expected.get(name, []))]
        if not wrong:
            break
        said |= hold(wrong)
    return said


def _timed(said: list[Any]) -> tuple[list[Any], list[bool]]:
    """The steps without their times, and whether each was delayed."""
    steps, delays = [], []
    for step in said:
        delayed = isinstance(step, list) and (step[-1] == "delayed" or step == ["closed", True])
        if isinstance(step, list) and step[0] == "closed":
            steps.append(["closed"])
        else:
            steps.append(step[:-1] if delayed else step)
        delays.append(delayed)
    return steps, delays
