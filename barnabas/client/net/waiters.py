"""Tasks that wait for the next change, with an optional deadline."""

from __future__ import annotations

import asyncio

from barnabas.ports import Clock


class Waiters:
    """Waiting tasks. A cancelled one leaves at once."""

    __slots__ = ("_clock", "_futures")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._futures: dict[asyncio.Future[None], None] = {}

    async def wait(self, deadline_ms: int | None = None) -> bool:
        """Waits for the next `wake_all`; False after `deadline_ms` (monotonic)."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures[future] = None
        try:
            if deadline_ms is None:
                await future
            else:
                async with asyncio.timeout(max(0, deadline_ms - self._clock.monotonic_ms()) / 1000):
                    await future
        except TimeoutError:
            return False
        finally:
            self._futures.pop(future, None)
        return True

    def wake_all(self) -> None:
        futures, self._futures = self._futures, {}
        for future in futures:
            if not future.done():
                future.set_result(None)
