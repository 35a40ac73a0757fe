"""The `barnabas` command with a mine under its log files: the process kills itself, by SIGKILL, at a write of its own.

Run as `python -m tests.support.processes.crashing_broker serve …`. SIGUSR1 arms it with the number in the file `MINE` names: that many writes of
`.log` files pass, then the next one kills. With "half" beside the number, half of its bytes are written first. Every write that
passes is noted in the same file, for whoever wants to know how many there are. Disarmed by SIGUSR2.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from barnabas.cli.main import main
from barnabas.ports import Buffer
from barnabas.runtime import files

MINE = Path(os.environ["MINE"])
original = files.DiskFile.pwrite


class Mine:
    """How many writes are left, None where it is not armed."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.half = False
        self.passed: list[str] = []

    def arm(self, *_: Any) -> None:
        words = MINE.read_text().split()
        self.half = words[1:] == ["half"]
        self.left = int(words[0])
        MINE.with_suffix(".armed").touch()

    def disarm(self, *_: Any) -> None:
        self.left = None
        aside = MINE.with_suffix(".aside")
        aside.write_text("\n".join(self.passed))
        aside.rename(MINE.with_suffix(".passed"))

    def write(self, file: files.DiskFile, data: Buffer, offset: int) -> None:
        if self.left is not None and file.path.endswith(".log"):
            if self.left == 0:
                if self.half:
                    original(file, memoryview(data)[: len(data) // 2], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            self.passed.append(file.path)
        original(file, data, offset)


mine = Mine()
signal.signal(signal.SIGUSR1, mine.arm)
signal.signal(signal.SIGUSR2, mine.disarm)
setattr(files.DiskFile, "pwrite", lambda file, data, offset: mine.write(file, data, offset))  # noqa: B010  # mypy takes no assignment to a method

if __name__ == "__main__":
    main()
