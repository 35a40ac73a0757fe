"""Attempts of a test to see something of processes that run."""

from __future__ import annotations

import time
from collections.abc import Iterator

SECONDS_MAX = 60.0  # for machines that are busy with other work


def attempts(what: str, seconds_max: float = SECONDS_MAX) -> Iterator[int]:
    """Numbers of attempts, for at most `seconds_max`; then it fails with `what`. The loop over them ends it by `break` or `return`."""
    deadline, number = time.monotonic() + seconds_max, 0
    while time.monotonic() < deadline:
        yield number
        number += 1
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds_max:g} s: {what}")
