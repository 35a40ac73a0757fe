"""Waiting for what a test needs, without a fixed time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from barnabas.ports import Clock

SECONDS_MAX = 60.0  # for machines that are busy with other work
ELAPSED_MS_MAX = 200


async def until(condition: Callable[[], object]) -> None:
    """Lets the loop turn until the condition holds, for at most a minute."""
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():  # noqa: ASYNC110  # what is waited for is state of the node, which has no event for tests
            await asyncio.sleep(0)


async def turns(count: int = 20) -> None:
    """Lets the loop turn that often: whatever is ready has run then, and the answers to it."""
    for _ in range(count):
        await asyncio.sleep(0)


async def elapsed(clock: Clock, duration_ms: int) -> None:
    """Lets the loop turn until the clock has advanced, for a setting that is a few milliseconds long."""
    assert duration_ms <= ELAPSED_MS_MAX, "set a shorter time"
    end_ms = clock.monotonic_ms() + duration_ms
    await until(lambda: clock.monotonic_ms() > end_ms)


async def until_refused(connect: Callable[[], Awaitable[object]]) -> OSError:
    """Connects again and again until that fails; returns the error."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                await connect()
            except OSError as error:
                return error
            await asyncio.sleep(0)


async def eventually(ask: Callable[[], Awaitable[object]], expected: object) -> None:
    """Asks again until the answer is this one, for at most a minute."""
    async with asyncio.timeout(SECONDS_MAX):
        while await ask() != expected:
            pass
