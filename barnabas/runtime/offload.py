"""Worker threads for C code that releases Python's lock, and for calls that may block for seconds."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


async def in_own_thread(work: Callable[[], None]) -> None:
    """Runs `work` in a new daemon thread. Raises its exception."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def end(failure: Exception | None) -> None:
        if ended.done():
            return
        if failure is None:
            ended.set_result(None)
        else:
            ended.set_exception(failure)

    def run() -> None:
        failure: Exception | None = None
        try:
            work()
        except Exception as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(end, failure)

    threading.Thread(target=run, daemon=True, name="barnabas-call").start()
    await ended


class WorkerThread:
    """A thread that starts with the first call."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[[], None]) -> None:
        """Runs `work` after all earlier calls. Raises its exception."""
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor  # here, because few processes need it

            self._executor = ThreadPoolExecutor(1, thread_name_prefix="barnabas-work")
        await asyncio.get_running_loop().run_in_executor(self._executor, work)
