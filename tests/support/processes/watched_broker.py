"""`barnabas` with a watch on its event loop: how much CPU time the longest turn of the loop has taken.

A timer of one millisecond reads the CPU time of the loop's thread. What was used between two of its calls is at most
what two turns took. CPU time, unlike time, is not stretched by other processes on the machine.

Called as `python -m tests.support.processes.watched_broker serve …`, with the name of a file of 8 bytes in
WATCHED_LOOP; the file is mapped into memory, so that the test can read the longest turn (a double, in seconds) and set
it back while the broker is busy. With a number of milliseconds in WATCHED_STACKS the broker also prints, for each turn
that took longer, where its CPU time went: the call chains that samples found most often, innermost function first.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import struct
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Final

VARIABLE: Final = "WATCHED_LOOP"
STACKS_VARIABLE: Final = "WATCHED_STACKS"
TICK_SECONDS: Final = 0.001
SAMPLE_SECONDS: Final = 0.001  # of CPU time; the kernel may take 4 ms
CHAIN_LENGTH: Final = 7  # functions of a printed call chain
CHAINS_PRINTED: Final = 6  # of one turn
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

    def __exit__(self, *_: object) -> None:
        self._memory.close()


class Stacks:
    """Samples the stack of the loop's thread by CPU time, and prints the samples of long turns."""

    def __init__(self, longer_than_s: float) -> None:
        self._longer_than_s = longer_than_s
        self._samples: Counter[str] = Counter()
        if longer_than_s > 0:
            signal.signal(signal.SIGPROF, self._sample)
            signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        chain: list[str] = []
        while frame is not None and len(chain) < CHAIN_LENGTH:
            code = frame.f_code
            chain.append(f"{Path(code.co_filename).stem}.{code.co_name}:{frame.f_lineno}")
            frame = frame.f_back
        self._samples[" < ".join(chain)] += 1

    def close(self) -> None:
        """Stops the samples: a signal during the end of the interpreter would kill the process."""
        signal.setitimer(signal.ITIMER_PROF, 0.0)

    def on_turn(self, seconds: float) -> None:
        """A turn has ended that took this CPU time."""
        if seconds > self._longer_than_s > 0:
            lines = [f"turn of {seconds * 1000:.1f} ms\n"]
            lines += [f"  {count:4d}  {chain}\n" for chain, count in self._samples.most_common(CHAINS_PRINTED)]
            sys.stderr.write("".join(lines))
            sys.stderr.flush()
        self._samples.clear()


async def watch(longest: LongestTurn, stacks: Stacks) -> None:
    """Measures until it is cancelled."""
    used = time.thread_time()
    while True:
        await asyncio.sleep(TICK_SECONDS)
        now = time.thread_time()
        if now - used > longest.seconds:
            longest.seconds = now - used
        stacks.on_turn(now - used)
        used = now


def main() -> None:
    """The `barnabas` command with a watch on its loop."""
    from barnabas.cli import main as cli
    from barnabas.runtime import loop

    plain = loop.run
    longest = LongestTurn(Path(os.environ[VARIABLE]))
    longer_than_ms = float(os.environ.get(STACKS_VARIABLE, "0"))

    def watched(main: Any) -> Any:
        async def both() -> Any:
            stacks = Stacks(longer_than_ms / 1000)
            task = asyncio.get_running_loop().create_task(watch(longest, stacks))
            try:
                return await main
            finally:
                task.cancel()
                stacks.close()

        return plain(both())

    loop.run = watched
    cli.main()


if __name__ == "__main__":
    main()
