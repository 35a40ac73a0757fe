"""The number of descriptors that the process may have, and their division between files and connections.

Driven by: `barnabas serve` at its start. A third of the limit is for files of partitions, up to OPEN_FILES_MAX; RESERVED more are
for everything else that a node opens. Connections of clients get the rest, so that a connection is refused before a file cannot be
opened.
"""

from __future__ import annotations

import resource

__all__ = ["OPEN_FILES_MAX", "RESERVED", "limit", "open_files_max", "raise_limit"]

OPEN_FILES_MAX = 4_096  # of partitions: beyond it the least recently used ones are opened again when needed
OPEN_FILES_MIN = 16
RESERVED = 32  # for folders and checkpoints opened for a moment, and connections to other nodes


def limit() -> int:
    """The soft limit of open descriptors."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_limit() -> tuple[int, int]:
    """Raises the soft limit to the hard one, as Java does. Returns the soft limit before and after."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft, soft  # macOS says "unlimited" and takes no more than kern.maxfilesperproc
    return soft, hard


def open_files_max(disks: int) -> int:
    """How many files of partitions each of several data directories may keep open."""
    return max(OPEN_FILES_MIN, min(OPEN_FILES_MAX, limit() // 3) // disks)
