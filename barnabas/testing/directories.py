"""Temporary directories of clusters in mode "process", and the removal of those whose owner was killed.

Each directory holds a lock file that its owner locks until it removes the directory. A directory whose lock is free has no owner
left: the next cluster that starts removes it. A directory gets its final name when its lock is held, so that no other process finds
it unlocked before.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Final

__all__ = ["ClusterDirectory", "remove_ownerless"]

PREFIX: Final = "barnabas-kit-"
LOCK: Final = "owner.lock"


class ClusterDirectory:
    """A new temporary directory that this process owns."""

    def __init__(self) -> None:
        made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
        self._lock: IO[bytes] = (made / LOCK).open("wb")
        _try_lock(self._lock)
        self.path = made.with_name(made.name.removeprefix("."))
        made.rename(self.path)
        self._owner = os.getpid()

    def remove(self) -> None:
        """Removes the directory with its contents; a forked child of the owner removes nothing."""
        if os.getpid() == self._owner:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _try_lock(file: IO[bytes]) -> bool:
    """Whether this process now holds the lock of the file."""
    try:
        import fcntl
    except ImportError:  # Windows: nothing is known about the owner, so nothing is removed
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def remove_ownerless() -> list[Path]:
    """Removes the directories of clusters whose processes were all killed at once; returns them."""
    removed = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        try:
            with (path / LOCK).open("rb") as lock:
                if _try_lock(lock):
                    shutil.rmtree(path, ignore_errors=True)
                    removed.append(path)
        except OSError:
            continue  # another process removes it, or it belongs to another user
    return removed
