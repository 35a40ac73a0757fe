"""The processes and directories that are left when the process of a test ends."""

from __future__ import annotations

import time
from pathlib import Path

SECONDS_MAX = 30.0


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int], folder: Path) -> tuple[list[int], list[Path]]:
    """The processes and directories that are left after SECONDS_MAX."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        left = [pid for pid in pids if _alive(pid)], list(folder.iterdir())
        if left == ([], []) or time.monotonic() > deadline:
            return left
        time.sleep(0.02)
