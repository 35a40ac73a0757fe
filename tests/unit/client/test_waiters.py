"""Waiters: each change ends the waits that have begun before it."""

from __future__ import annotations

import asyncio

from barnabas.client.net.waiters import Waiters
from barnabas.runtime.clock import SystemClock


async def test_a_change_ends_every_wait_that_has_begun() -> None:
    waiters = Waiters(SystemClock())
    waits = [
        asyncio.create_task(waiters.wait()),
        asyncio.create_task(waiters.wait(SystemClock().monotonic_ms() + 60_000)),
    ]
    await asyncio.sleep(0)
    waiters.wake_all()
    assert await asyncio.gather(*waits) == [True, True]


async def test_a_change_does_not_end_a_later_wait() -> None:
    waiters = Waiters(SystemClock())
    waiters.wake_all()
    assert await waiters.wait(SystemClock().monotonic_ms()) is False


async def test_a_cancelled_wait_is_forgotten() -> None:
    waiters = Waiters(SystemClock())
    wait = asyncio.create_task(waiters.wait())
    await asyncio.sleep(0)
    assert len(waiters._futures) == 1
    wait.cancel()
    await asyncio.gather(wait, return_exceptions=True)
    assert wait.cancelled()
    assert not waiters._futures
    waiters.wake_all()
