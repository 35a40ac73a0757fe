"""Waiting for what other threads and processes do. Tests of one process use `waiting.py`, which does not sleep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

SECONDS_MAX: Final = 60.0  # for machines that are busy with other work


async def until_elsewhere(condition: Callable[[], object], what: str = "the condition") -> None:
    """Sleeps until other threads or processes have made the condition true, for at most a minute."""
    end_s = time.monotonic() + SECONDS_MAX
    while not condition():  # other threads and processes have no event here
        assert time.monotonic() < end_s, f"not within {SECONDS_MAX:g} s: {what}"
        await asyncio.sleep(0.01)


def wait_until(condition: Callable[[], object], what: str = "the condition", seconds_max: float = SECONDS_MAX) -> None:
    """As `until_elsewhere`, without a loop."""
    end_s = time.monotonic() + seconds_max
    while not condition():
        assert time.monotonic() < end_s, f"not within {seconds_max:g} s: {what}"
        time.sleep(0.01)  # other threads and processes need the processor
