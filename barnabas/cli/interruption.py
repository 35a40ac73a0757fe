"""Ctrl-C and SIGTERM: the work of a command is cancelled, cleans up, and the process ends within a second.

The work sees a cancellation, as everywhere in asyncio: `async with` and `finally` close clients. What has not ended after
GRACE_S, or at a second signal, is left to the end of the process. Exit codes are 128 plus the signal's number: 130 and 143.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from barnabas.runtime.loop import loop_factory

__all__ = ["GRACE_S", "Interruptible"]

GRACE_S: Final = 0.7  # from the signal to the end of the process; tests allow one second


class Interruptible:
    """Runs one coroutine until it ends or a signal arrives.

    Attributes:
        code: 0, or the exit code of the signal that has arrived.
    """

    def __init__(self) -> None:
        self.code = 0

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Runs `main` on a new loop and raises what it raises. A signal ends it: `code` is not 0 then."""
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            try:
                runner.run(self._guarded(main))
            except (asyncio.CancelledError, KeyboardInterrupt):
                if not self.code:
                    raise

    async def _guarded(self, main: Coroutine[Any, Any, None]) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def on_signal(number: int) -> None:
            if self.code:
                self._give_up()
            self.code = 128 + number
            loop.call_later(GRACE_S, self._give_up)
            if task is not None:
                task.cancel()

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # a shell ignores SIGINT for its background jobs
                    with suppress(NotImplementedError):  # Windows: KeyboardInterrupt ends the loop
                        loop.add_signal_handler(number, on_signal, number)
        await main

    def _give_up(self) -> None:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(self.code)
