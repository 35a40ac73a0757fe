"""WorldDisk: a broker's disk that a test can make fail, fill, slow down or corrupt, and whose unsynced bytes it can lose.

Driven by: the node, as `Disk`; `commands.py`, which brings the faults. Emits: calls of the real disk, OSErrors of faults, and one event
for each fault that was met.

While there is no fault, a file's methods are those of the real file. Where the disk is a real one, writes pass the page cache, which
notes what is not synced; the memory disk does that itself.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Final

from barnabas.ports import Buffer, Disk, DiskLock, File
from barnabas.storage.disk import MemoryDisk
from barnabas.testing.world.page_cache import CachedFile, PageCache

__all__ = ["CALLS", "DiskRule", "WorldDisk", "WorldFile"]

CALLS: Final = ("fsync", "write", "read", "open")
_FULL: Final = "full"  # a fault that all writing calls meet
_SLOW: Final = "slow"


@dataclass(slots=True)
class DiskRule:
    """One fault.

    Attributes:
        call: one of CALLS, "full" or "slow".
        number: errno of the failure.
        path: pattern of paths, relative to the log directory.
        times: calls that still fail; -1: all.
        seconds: that each sync takes longer.
        log_dir: number of the log directory, from 1; None: all of the broker.
    """

    id: int
    call: str
    number: int = 0
    path: str = "*"
    times: int = -1
    seconds: float = 0.0
    log_dir: int | None = None

    def meets(self, call: str, path: str) -> bool:
        """Whether a call fails."""
        return self.call == call and self.times != 0 and fnmatchcase(path, self.path)


class _CheckedFile:
    """A file whose every call may meet a fault."""

    __slots__ = ("__weakref__", "_cached", "_disk", "_path", "inner")

    def __init__(self, disk: WorldDisk, path: str, inner: File, cached: CachedFile | None) -> None:
        self._disk = disk
        self._path = path
        self._cached = cached
        self.inner = inner

    @property
    def path(self) -> str:
        return self._path

    def pread(self, size: int, offset: int) -> bytes:
        self._disk.check("read", self._path)
        return self.inner.pread(size, offset)

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._disk.check_write(self._path)
        self._noted_write(data, offset)

    def truncate(self, size: int) -> None:
        self._disk.check("write", self._path)
        if self._cached is not None:
            self._cached.before_truncate(self.inner, size)
        self.inner.truncate(size)

    def size(self) -> int:
        return self.inner.size()

    def close(self) -> None:
        self._disk.closed(self)
        self.inner.close()

    def _noted_write(self, data: Buffer, offset: int) -> None:
        cached = self._cached
        if cached is not None and offset < cached.synced:
            cached.before_write(self.inner, len(data), offset)
        self.inner.pwrite(data, offset)


class WorldFile(_CheckedFile):
    """A file. The slots are methods of the real file while the disk has no fault."""

    __slots__ = ("pread", "pwrite", "size")

    def __init__(self, disk: WorldDisk, path: str, inner: File, cached: CachedFile | None) -> None:
        super().__init__(disk, path, inner, cached)
        self.size = inner.size  # type: ignore[method-assign]  # a slot: no call more for each use
        self.use(disk.faulty)

    def use(self, faulty: bool) -> None:
        """Checks each call, or none."""
        if faulty:
            self.pread = partial(_CheckedFile.pread, self)  # type: ignore[method-assign]  # as above
            self.pwrite = partial(_CheckedFile.pwrite, self)  # type: ignore[method-assign]  # as above
        else:
            self.pread = self.inner.pread  # type: ignore[method-assign]  # as above
            self.pwrite = self.inner.pwrite if self._cached is None else self._noted_write  # type: ignore[method-assign]  # as above


class WorldDisk:
    """See the module.

    Args:
        real: the disk with the contents.
        met: called with the id of a fault, the call and the path, for each call that has met it.
    """

    def __init__(self, real: Disk, met: Callable[[int, str, str], None]) -> None:
        self.real = real
        self.losses = 0  # how often the page cache of this disk was lost before, where the real disk cannot know
        self._met = met
        self._faults: list[DiskRule] = []
        self._files: weakref.WeakSet[WorldFile] = weakref.WeakSet()
        self._cache = None if isinstance(real, MemoryDisk) else PageCache(real)

    # -- faults

    @property
    def faulty(self) -> bool:
        """Whether calls must be checked."""
        return bool(self._faults)

    def set_faults(self, faults: list[DiskRule]) -> None:
        """Replaces all faults. One that stays has as many calls left as it has now: its last ones may not be reported yet."""
        left = {each.id: each.times for each in self._faults}
        for fault in faults:
            if fault.times >= 0:
                fault.times = min(fault.times, left.get(fault.id, fault.times))
        self._faults = faults
        for file in self._files:
            file.use(self.faulty)

    def lose_page_cache(self) -> dict[str, int]:
        """Loses what is not synced; the node must have ended. Returns the bytes that files have lost at their ends, by path."""
        return {} if self._cache is None else self._cache.lose()

    def check(self, call: str, path: str) -> None:
        """Raises the OSError of a fault that the call meets."""
        for fault in self._faults:
            if fault.meets(call, path):
                if fault.times > 0:
                    fault.times -= 1
                self._met(fault.id, call, path)
                raise OSError(fault.number, os.strerror(fault.number), f"{self.real.root}/{path}")

    def check_write(self, path: str) -> None:
        """As `check`, for a call that needs space."""
        if self._faults:
            self.check("write", path)
            self.check(_FULL, path)

    def _check_sync(self, files: Sequence[File]) -> None:
        if self._faults:
            for file in files:
                self.check("fsync", file.path)

    def closed(self, file: _CheckedFile) -> None:
        """A file was closed."""
        if isinstance(file, WorldFile):
            self._files.discard(file)

    # -- the port

    @property
    def root(self) -> str:
        return self.real.root

    @property
    def boot_id(self) -> str:
        return f"{self.real.boot_id} {self.losses}" if self.losses else self.real.boot_id

    def open(self, path: str, *, create: bool = False) -> File:
        existed = True
        if self._faults:
            self.check("open", path)
        if create and (self._faults or self._cache is not None):
            existed = self.real.exists(path)
            if not existed:
                self.check_write(path)
        inner = self.real.open(path, create=create)
        cached = None if self._cache is None else self._cache.opened(path, inner, existed)
        return self._add(WorldFile(self, path, inner, cached))

    def handle(self, path: str) -> File:
        cached = None if self._cache is None else self._cache.known(path)
        return self._add(WorldFile(self, path, self.real.handle(path), cached))

    def _add(self, file: WorldFile) -> WorldFile:
        self._files.add(file)
        return file

    def exists(self, path: str) -> bool:
        return self.real.exists(path)

    def listdir(self, path: str) -> list[str]:
        if self._faults:
            self.check("read", path)
        return self.real.listdir(path)

    def mkdir(self, path: str, *, private: bool = False) -> None:
        self.check_write(path)
        self.real.mkdir(path, private=private)

    def remove(self, *paths: str) -> None:
        self.real.remove(*paths)
        if self._cache is not None:
            for path in paths:
                self._cache.replaced(path)

    async def discard(self, *paths: str) -> None:
        if self._cache is not None:
            for path in paths:
                self._cache.removed(path)
        await self.real.discard(*paths)

    def rename(self, source: str, target: str) -> None:
        self.real.rename(source, target)
        if self._cache is not None:
            self._cache.renamed(source, target)

    def size(self, path: str) -> int:
        return self.real.size(path)

    def read(self, path: str) -> bytes:
        if self._faults:
            self.check("open", path)
            self.check("read", path)
        return self.real.read(path)

    def replace(self, path: str, data: Buffer) -> None:
        if self._faults:
            self.check_write(path)
            self.check("fsync", path)
        self.real.replace(path, data)
        if self._cache is not None:
            self._cache.replaced(path)

    def lock(self, path: str) -> DiskLock:
        return self.real.lock(path)

    async def sync(self, files: Sequence[File]) -> None:
        if self._faults:
            await asyncio.sleep(sum(each.seconds for each in self._faults if each.call == _SLOW))
            self._check_sync(files)
        marks = self._marks(files)
        await self.real.sync([each.inner if isinstance(each, WorldFile) else each for each in files])
        self._synced(marks)

    def sync_now(self, files: Sequence[File]) -> None:
        self._check_sync(files)
        marks = self._marks(files)
        self.real.sync_now([each.inner if isinstance(each, WorldFile) else each for each in files])
        self._synced(marks)

    def total_bytes(self) -> int:
        return self.real.total_bytes()

    def available_bytes(self) -> int:
        return 0 if any(each.call == _FULL for each in self._faults) else self.real.available_bytes()

    # -- what is synced

    def _marks(self, files: Sequence[File]) -> list[tuple[CachedFile, tuple[int, int]]]:
        if self._cache is None:
            return []
        found = []
        for file in files:
            cached = self._cache.known(file.path)
            if cached is not None and self.real.exists(file.path):
                found.append((cached, cached.mark(self.real.size(file.path))))
        return found

    def _synced(self, marks: list[tuple[CachedFile, tuple[int, int]]]) -> None:
        for cached, mark in marks:
            cached.synced_up_to(mark)
