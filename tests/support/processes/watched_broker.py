"""`barnabas` with a watch on its event loop: how much CPU time the longest turn of the loop has taken.

A timer of one millisecond reads the CPU time of the loop's thread. What was used between two of its calls is at most
what two turns took. CPU time, unlike time, is not stretched by other processes on the machine.

Called as `python -m tests.support.processes.watched_broker serve …`, with the name of a file of 8 bytes in
WATCHED_LOOP; the file is mapped into memory, so that the test can read the longest turn (a double, in seconds) and set
it back while the broker is busy.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final

VARIABLE: Final = "WATCHED_LOOP"
TICK_SECONDS: Final = 0.001
_LAYOUT: Final = struct.Struct("d")


class LongestTurn:
    """The longest turn of the loop in another process, by a shared file."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_LAYOUT.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _LAYOUT.size)

    @property
    def seconds(self) -> float:
        """CPU time."""
        found: float = _LAYOUT.unpack_from(self._memory)[0]
        return found

    @seconds.setter
    def seconds(self, value: float) -> None:
        _LAYOUT.pack_into(self._memory, 0, value)

    def __enter__(self) -> LongestTurn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._memory.close()


async def watch(longest: LongestTurn) -> None:
    """Measures until it is cancelled."""
    used = time.thread_time()
    while True:
        await asyncio.sleep(TICK_SECONDS)
        now = time.thread_time()
        if now - used > longest.seconds:
            longest.seconds = now - used
        used = now


def main() -> None:
    """The `barnabas` command with a watch on its loop."""
    from barnabas.cli import main as cli
    from barnabas.runtime import loop

    plain = loop.run
    longest = LongestTurn(Path(os.environ[VARIABLE]))

    def watched(main: Any) -> Any:
        async def both() -> Any:
            task = asyncio.get_running_loop().create_task(watch(longest))
            try:
                return await main
            finally:
                task.cancel()

        return plain(both())

    loop.run = watched
    cli.main()


if __name__ == "__main__":
    main()
