"""The `barnabas` command as a process that kills itself at a chosen write of its log files.

Called as `python -m tests.support.processes.crashing_broker serve …`, with the path of a file in CRASH_AT_WRITE.
SIGUSR1 reads from this file a number and "half" or "whole": that many writes of `.log` files pass, and the process
kills itself by SIGKILL at the next one, before it or after half of its bytes. SIGUSR2 takes the order back and writes
the paths of the writes that have passed to the file with the suffix ".passed". The file with the suffix ".armed" says
that the order was read.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from barnabas.cli.main import main
from barnabas.ports import Buffer
from barnabas.runtime import files

VARIABLE = "CRASH_AT_WRITE"
_pwrite = files.DiskFile.pwrite


class CrashAtWrite:
    """Counts writes of log files down to the one that kills the process.

    Attributes:
        left: writes that still pass; None without an order.
        half: whether half of the last write's bytes are written.
        passed: paths of the writes that have passed under the order.
    """

    def __init__(self, order: Path) -> None:
        self.order = order
        self.left: int | None = None
        self.half = False
        self.passed: list[str] = []

    def arm(self, *_: Any) -> None:
        words = self.order.read_text().split()
        self.half = words[1:] == ["half"]
        self.left = int(words[0])
        self.order.with_suffix(".armed").touch()

    def disarm(self, *_: Any) -> None:
        self.left = None
        aside = self.order.with_suffix(".aside")
        aside.write_text("\n".join(self.passed))
        aside.rename(self.order.with_suffix(".passed"))

    def write(self, file: files.DiskFile, data: Buffer, offset: int) -> None:
        if self.left is not None and file.path.endswith(".log"):
            if self.left == 0:
                if self.half:
                    _pwrite(file, memoryview(data)[: len(data) // 2], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            self.passed.append(file.path)
        _pwrite(file, data, offset)


if __name__ == "__main__":
    crash = CrashAtWrite(Path(os.environ[VARIABLE]))
    signal.signal(signal.SIGUSR1, crash.arm)
    signal.signal(signal.SIGUSR2, crash.disarm)
    setattr(files.DiskFile, "pwrite", lambda file, data, offset: crash.write(file, data, offset))  # noqa: B010  # mypy takes no assignment to a method
    main()
