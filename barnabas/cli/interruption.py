"""Ctrl-C, SIGTERM, and a pipe whose reader has ended: a command's work is cancelled and cleans up, and the process ends within a second.

The work sees a cancellation, as everywhere in asyncio: `async with` and `finally` close clients. What has not ended after
GRACE_S, or at a second signal, is left to the end of the process. Exit codes are 128 plus the signal's number: 130 and 143, and 141
(SIGPIPE) without a reader. So `barnabas consume orders | head -1` ends at once, not at the next record.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from barnabas.cli.streams import READER_GONE
from barnabas.runtime.loop import loop_factory

GRACE_S: Final = 0.7  # from the signal to the end of the process; tests allow one second


class Interruptible:
    """Runs one coroutine until it ends or a signal arrives.

    Attributes:
        code: 0, or the exit code of what has ended it.
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

        def end(code: int) -> None:
            self.code = code
            loop.call_later(GRACE_S, self._give_up)
            if task is not None:
                task.cancel()

        def on_signal(number: int) -> None:
            if self.code:
                self._give_up()
            end(128 + number)

        def on_reader_gone(output: int) -> None:
            loop.remove_reader(output)
            if not self.code:
                end(READER_GONE)

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # a shell ignores SIGINT for its background jobs
                    with suppress(NotImplementedError):  # Windows: KeyboardInterrupt ends the loop
                        loop.add_signal_handler(number, on_signal, number)
        if (output := _output_pipe()) is not None:
            with suppress(NotImplementedError):
                # The writing end of a pipe is readable when it has an error.
                loop.add_reader(output, on_reader_gone, output)
        await main

    def _give_up(self) -> None:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(self.code)


def _output_pipe() -> int | None:
    """The descriptor of standard output if it is a pipe."""
    try:
        descriptor = sys.stdout.fileno()
        return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None
    except (OSError, ValueError):  # closed, or a test has put another stream there
        return None
