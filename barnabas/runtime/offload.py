"""Threads for long computations and C code; and threads for calls that may block for seconds.

The first call starts the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
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


# A computing thread gives the interpreter's lock to the loop after this time; a request needs the lock several times.
SWITCH_SECONDS = 0.001


class WorkerThread:
    """Threads that start with the first call.

    Args:
        threads: their number. A node has two, so that a long request does not delay the inspection of a batch.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[[], None]) -> None:
        """Runs `work` in a thread, after all earlier calls have begun. Raises its exception."""
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor  # here, because few processes need it

            sys.setswitchinterval(SWITCH_SECONDS)
            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="barnabas-work")
        await asyncio.get_running_loop().run_in_executor(self._executor, work)
