"""Temporary cluster directories, with removal of those whose owner was killed: their lock is free."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Final

from barnabas.runtime.port_owner import lock_holder

LOCK: Final = "owner.lock"


class ClusterDirectory:
    """A new temporary directory that this process owns. `prefix` is that of its kind."""

    def __init__(self, prefix: str) -> None:
        made = Path(tempfile.mkdtemp(prefix=f".{prefix}"))
        self._lock: IO[bytes] = (made / LOCK).open("wb")
        _try_lock(self._lock)
        self.path = made.with_name(made.name.removeprefix("."))
        made.rename(self.path)
        self._owner = os.getpid()

    def remove(self) -> None:
        """Removes the directory with its contents; a forked child removes nothing."""
        if os.getpid() == self._owner:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _try_lock(file: IO[bytes]) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: nothing is known about the owner, so nothing is removed
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def remove_ownerless(prefix: str) -> list[Path]:
    """Removes and returns directories of a kind whose owner was killed and whose nodes have ended."""
    removed = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{prefix}*")):
        try:
            with (path / LOCK).open("rb") as lock:
                if _try_lock(lock) and not _has_nodes(path):
                    shutil.rmtree(path, ignore_errors=True)
                    removed.append(path)
        except OSError:
            continue  # another process removes it, or it belongs to another user
    return removed


def _has_nodes(path: Path) -> bool:
    """Whether a node still runs there: it ends soon after the owner."""
    for each in path.glob("node-*/.lock"):
        with each.open("rb") as lock:
            if lock_holder(lock.fileno()) is not None:
                return True
    return False
