"""A thread for work of C code that releases Python's lock.

Driven by: `run` with a function. Emits: the end of the function, or its exception. The first call starts the thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

__all__ = ["WorkerThread"]


class WorkerThread:
    """See the module."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[[], None]) -> None:
        """Runs `work` in the thread, after all earlier calls. Raises its exception."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="barnabas-work")
        await asyncio.get_running_loop().run_in_executor(self._executor, work)
