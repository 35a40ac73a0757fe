"""One thread for work that C code does without Python's lock.

Driven by: `run` with a function. Emits: the end of the function, or its exception. The thread starts with the first call.
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
        """Runs it in the thread, after what was asked for before. Raises what it raises."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="barnabas-work")
        await asyncio.get_running_loop().run_in_executor(self._executor, work)
