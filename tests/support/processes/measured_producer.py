"""A producer with one record in flight, as a process that measures how long it waits for answers.

Called as `python -m tests.support.processes.measured_producer HOST:PORT TOPIC`. Creates the topic, then produces until
its input ends. For each line on its input it prints the longest wait, in seconds, the number of answers and the 99.9th
percentile of the waits, all since the line before.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
from typing import Final, Self

from tests.support.oracle.wire import Wire

PACE_SECONDS: Final = 0.001  # between an answer and the next request, so that it leaves its core to the broker


def main() -> None:
    """Produces until the input ends."""
    _, address, topic = sys.argv
    waits: list[float] = []
    with Wire(address, "measured-producer", timeout_s=120) as wire:
        wire.create_topic(topic)
        next_offset: int | None = None
        while True:
            began = time.perf_counter()
            answer = wire.produce(9, topic, 0, [b"one record"])
            if answer.error_code:
                raise SystemExit(f"a record was refused: {answer}")
            if answer.base_offset != next_offset and next_offset is not None:
                raise SystemExit(f"offset {next_offset} was expected: {answer}")
            next_offset = answer.base_offset + 1
            waits.append(time.perf_counter() - began)
            if select.select([sys.stdin], [], [], PACE_SECONDS)[0]:
                if not sys.stdin.readline():
                    return
                waits.sort()
                sys.stdout.write(json.dumps([waits[-1], len(waits), waits[len(waits) * 999 // 1000]]) + "\n")
                sys.stdout.flush()
                waits.clear()


class MeasuredProducer:
    """The process, for the test: a context manager, in which the producer runs.

    Attributes:
        p999_s: the 99.9th percentile of the waits, in seconds, that the last `measured` covered.
    """

    def __init__(self, address: str, topic: str) -> None:
        command = [sys.executable, "-m", "tests.support.processes.measured_producer", address, topic]
        self.p999_s = 0.0
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measured(self) -> tuple[float, int]:
        """The longest wait in seconds and the number of answers since the last call."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the producer ended with {self.process.wait(10)}"
        longest, answers, self.p999_s = json.loads(line)
        return longest, answers

    def __enter__(self) -> Self:
        self.measured()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


if __name__ == "__main__":
    main()
