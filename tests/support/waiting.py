"""Waiting for a condition, without a fixed time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object]) -> None:
    """Lets the loop turn until it holds; 20 s at most, for machines busy with other work."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # what is waited for is state of the node, which has no event for tests
            await asyncio.sleep(0)
