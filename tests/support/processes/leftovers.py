"""The processes and directories that are left when the process of a test ends."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.processes.process_tree import alive

SECONDS_MAX = 60.0


def wait_until_gone(pids: list[int], folder: Path) -> tuple[list[int], list[Path]]:
    """The processes and directories that are left after SECONDS_MAX."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        left = [pid for pid in pids if alive(pid)], list(folder.iterdir())
        if left == ([], []) or time.monotonic() > deadline:
            return left
        time.sleep(0.02)
