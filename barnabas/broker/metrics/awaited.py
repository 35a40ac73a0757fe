"""Long work for a task that awaits its result."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from barnabas.broker.scheduling.slices import Slices
from barnabas.work import Steps

T = TypeVar("T")


async def awaited(slices: Slices, work: Steps[T]) -> T:
    """Runs work in slices and returns its result. Cancelling the waiting task cancels the work. Raises what the work raises."""
    ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T) -> None:
        if not ended.done():
            ended.set_result(result)

    def failed(error: BaseException) -> None:
        if not ended.done():
            ended.set_exception(error)

    piece = slices.start(work, done, failed)
    try:
        return await ended
    finally:
        piece.cancel()
