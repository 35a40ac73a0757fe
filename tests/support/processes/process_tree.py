"""Processes below a process: found, asked whether they live, killed."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

from barnabas.testing import Broker


def descendants(root: int) -> list[int]:
    """Processes below `root`: parents before their children."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            parents[int(path.name)] = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
    found: list[int] = []
    level = [root]
    while level:
        level = [pid for pid, parent in parents.items() if parent in level]
        found += level
    return found


def command_lines(pattern: str) -> dict[int, str]:
    """The arguments of the processes whose arguments, with spaces between them, match a regular expression."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # as above
            arguments = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if re.search(pattern, arguments):
                found[int(path.name)] = arguments
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def rss_bytes(broker: Broker) -> int:
    """Resident memory of a broker's process."""
    pages = int(Path(f"/proc/{broker.broker(1).pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
