"""PageCache: what a real disk would lose with its machine's power: everything that was not synced.

The files themselves have the new contents; kept here are the synced size of each file, and the bytes that a later write or truncation
has replaced below it. Logs only grow, so that is a few bytes. Changes of names stay; `replace` is durable when it returns. What the
file had when it was first opened counts as synced.

Invariants: at most UNDO_BYTES_MAX are kept; older ones count as written by the kernel.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from barnabas.ports import Disk, File

UNDO_BYTES_MAX: Final = 16 << 20  # of one file


class CachedFile:
    """One file: how much of it is synced, and how to go back to that."""

    __slots__ = ("synced", "undo", "undo_bytes", "undone")

    def __init__(self, synced: int) -> None:
        self.synced = synced  # bytes of the file that survive
        self.undo: deque[tuple[int, bytes]] = deque()  # offset and former bytes, in the order of the changes
        self.undo_bytes = 0
        self.undone = 0  # changes that are not in `undo` any more

    def before_write(self, file: File, size: int, offset: int) -> None:
        """A write below the synced size comes."""
        self._keep(offset, file.pread(min(size, self.synced - offset), offset))

    def before_truncate(self, file: File, size: int) -> None:
        """A truncation comes."""
        if size < self.synced:
            self._keep(size, file.pread(self.synced - size, size))

    def _keep(self, offset: int, data: bytes) -> None:
        self.undo.append((offset, data))
        self.undo_bytes += len(data)
        while self.undo_bytes > UNDO_BYTES_MAX and len(self.undo) > 1:
            self._drop_first()

    def _drop_first(self) -> None:
        self.undo_bytes -= len(self.undo.popleft()[1])
        self.undone += 1

    def mark(self, size: int) -> tuple[int, int]:
        """What a sync that begins now covers, for `synced_up_to`."""
        return size, self.undone + len(self.undo)

    def synced_up_to(self, mark: tuple[int, int]) -> None:
        """A sync has ended."""
        self.synced = mark[0]
        while self.undo and self.undone < mark[1]:
            self._drop_first()

    def lose(self, file: File) -> None:
        """Gives the file its synced contents."""
        while self.undo:
            offset, data = self.undo.pop()
            file.pwrite(data, offset)
        if file.size() != self.synced:
            file.truncate(self.synced)


class PageCache:
    """All files of a disk that were opened for writing."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: dict[str, CachedFile] = {}

    def opened(self, path: str, file: File, existed: bool) -> CachedFile:
        """A file was opened."""
        found = self._files.get(path)
        if found is None:
            found = self._files[path] = CachedFile(file.size() if existed else 0)
        return found

    def known(self, path: str) -> CachedFile | None:
        """A file that was opened before."""
        return self._files.get(path)

    def replaced(self, path: str) -> None:
        """A file was replaced or removed: this cache does not keep its former contents."""
        self._files.pop(path, None)

    def removed(self, path: str) -> None:
        """A file or a folder was removed."""
        self._files = {each: kept for each, kept in self._files.items() if not _within(each, path)}

    def renamed(self, source: str, target: str) -> None:
        """A file or a folder has another name."""
        self._files = {
            (target + each[len(source) :] if _within(each, source) else each): kept
            for each, kept in self._files.items()
        }

    def lose(self) -> None:
        """Loses what is not synced."""
        for path, cached in self._files.items():
            if not self._disk.exists(path):
                continue
            file = self._disk.open(path)
            try:
                cached.lose(file)
            finally:
                file.close()


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")
