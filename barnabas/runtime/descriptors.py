"""File descriptor limit of the process, divided between files and connections.
Partition files get a third, up to OPEN_FILES_MAX, RESERVED is for everything else, connections get the rest.
"""

from __future__ import annotations

from types import ModuleType

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows: sockets and files have no common limit
    resource = None

# partition files; above it the least recently used ones are closed, and opened again when needed
OPEN_FILES_MAX = 4_096
OPEN_FILES_MIN = 16
UNKNOWN_LIMIT = 8_192  # limit of Windows' C runtime
RESERVED = 32  # for folders and checkpoints that are opened for a short time, and for connections to other nodes


def limit() -> int:
    if resource is None:
        return UNKNOWN_LIMIT
    soft: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft


def raise_limit() -> tuple[int, int]:
    """Raises the soft limit to the hard one, as Java does. Returns the soft limit before and after."""
    if resource is None:
        return UNKNOWN_LIMIT, UNKNOWN_LIMIT
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft, soft  # macOS reports "unlimited" but accepts at most kern.maxfilesperproc
    return soft, hard


def open_files_max(disks: int) -> int:
    """Partition files that each of `disks` data directories may keep open."""
    return max(OPEN_FILES_MIN, min(OPEN_FILES_MAX, limit() // 3) // disks)
