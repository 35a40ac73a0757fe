"""The command `barnabas` as a process."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time


def barnabas(*arguments: str, stdin: str = "", timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "barnabas.cli.main", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s)


def as_in_a_terminal() -> None:
    """Ctrl-C ends it. What runs in a shell's background has it ignored, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def shown_until(terminal: int, pattern: str, timeout_s: float = 30) -> str:
    """What appears on a terminal until a pattern does."""
    shown = ""
    deadline = time.monotonic() + timeout_s
    while re.search(pattern, shown) is None:
        assert select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0], shown
        shown += os.read(terminal, 65_536).decode()
    return shown
