"""Compares SASL conversations without the times that a busy machine adds."""

from __future__ import annotations

import operator
from typing import Any


def goes_as(said: list[Any], expected: list[Any]) -> bool:
    """Whether a conversation went as expected. An answer may come later than expected (a busy machine), but none without the delay."""
    steps, delays = _timed(said)
    expected_steps, expected_delays = _timed(expected)
    return steps == expected_steps and all(map(operator.ge, delays, expected_delays))


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
