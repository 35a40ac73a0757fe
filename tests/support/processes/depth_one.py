"""A client that produces at depth 1 and tells how long it ever waited for an answer.

Called as `python -m tests.support.processes.depth_one HOST:PORT TOPIC`. For each line on its input it prints the longest pause, in seconds,
and the number of answers since the line before. Ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
from types import TracebackType
from typing import Final

from tests.support.oracle.wire import Wire

PACE_SECONDS: Final = 0.001  # between an answer and the next request, so that it leaves its core to the broker


def main() -> None:
    """Until the input ends."""
    _, address, topic = sys.argv
    longest, answers = 0.0, 0
    with Wire(address, "bystander", timeout_s=120) as wire:
        while True:
            began = time.perf_counter()
            answer = wire.produce(9, topic, 0, [b"still here"])
            if answer.error_code:
                raise SystemExit(f"a record was refused: {answer}")
            longest = max(longest, time.perf_counter() - began)
            answers += 1
            if select.select([sys.stdin], [], [], PACE_SECONDS)[0]:
                if not sys.stdin.readline():
                    return
                sys.stdout.write(json.dumps([longest, answers]) + "\n")
                sys.stdout.flush()
                longest, answers = 0.0, 0


class Bystander:
    """The process, seen from the test."""

    def __init__(self, address: str, topic: str) -> None:
        command = [sys.executable, "-m", "tests.support.processes.depth_one", address, topic]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def mark(self) -> tuple[float, int]:
        """The longest pause in seconds and the number of answers since the last call."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the bystander ended with {self.process.wait(10)}"
        longest, answers = json.loads(line)
        return longest, answers

    def __enter__(self) -> Bystander:
        self.mark()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


if __name__ == "__main__":
    main()
