"""WorldDisk: a broker's disk on which a test makes calls fail, end the broker, or take longer, and loses unsynced bytes.

While there is no fault, a file's methods are those of the real file. Where the disk is a real one, writes pass the page cache, which
notes what is not synced; the memory disk does that itself.

Invariants: a broker that was killed at a call changes nothing more, although its thread still runs to its end: every later call of
its disks raises BrokerKilled.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final, Literal, TypeVar

from barnabas.ports import Buffer, Disk, DiskLock, File
from barnabas.storage.disk import MemoryDisk
from barnabas.testing.world.page_cache import CachedFile, PageCache

T = TypeVar("T")

PartDone = Literal["nothing", "half", "all"]

CHANGES: Final = ("write", "fsync", "rename", "remove")
CHANGE: Final = "change"  # each of CHANGES
CALLS: Final = (*CHANGES, "read", "open", CHANGE)
PARTS_DONE: Final[tuple[PartDone, ...]] = ("nothing", "half", "all")
SPACE: Final = "space"  # what every call needs that writes

_WRITE: Final = ("write", SPACE)


class BrokerKilled(BaseException):
    """The broker has ended at this call. No handler of errors takes it for one of a disk."""


@dataclass(slots=True)
class DiskRule:
    """One fault.

    Attributes:
        effect: "fail", "kill", "slow" or "watch".
        call: one of CALLS, or SPACE.
        number: errno of the failure.
        path: pattern of paths, relative to the log directory.
        skip: calls that pass before the first one that is met.
        times: calls that are still met; -1: all.
        seconds: that each call takes longer.
        done: how much of the call is done at which the broker ends.
        lose: what the broker loses at its end.
        log_dir: number of the log directory, from 1; None: all of the broker.
    """

    id: int
    effect: str
    call: str
    number: int = 0
    path: str = "*"
    skip: int = 0
    times: int = -1
    seconds: float = 0.0
    done: PartDone = "nothing"
    lose: str = "nothing"
    log_dir: int | None = None

    def met_call(self, calls: Sequence[str], paths: Sequence[str]) -> str:
        """The call of `calls` that the rule is about; empty if it is about none of them, or about none of the paths."""
        if self.times == 0 or not any(fnmatchcase(each, self.path) for each in paths):
            return ""
        if self.call == CHANGE:
            return next((each for each in calls if each in CHANGES), "")
        return self.call if self.call in calls else ""


def _nothing() -> None:
    pass


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
        return self._disk.perform(
            ("read",), (self._path,), lambda: self.inner.pread(size, offset), place=(offset, size)
        )

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._disk.perform(
            _WRITE,
            (self._path,),
            lambda: self._noted_write(data, offset),
            lambda: self._noted_write(memoryview(data)[: len(data) // 2], offset),
            place=(offset, len(data)),
        )

    def truncate(self, size: int) -> None:
        self._disk.perform(("write",), (self._path,), lambda: self._noted_truncation(size))

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

    def _noted_truncation(self, size: int) -> None:
        if self._cached is not None:
            self._cached.before_truncate(self.inner, size)
        self.inner.truncate(size)


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
        met: called with the id of a fault, the call, the path, and offset and number of its bytes, for each call that has met it.
        kill: called with what the broker loses when a call has met a fault that kills; ends all disks of the broker.
    """

    def __init__(self, real: Disk, met: Callable[[int, str, str, int, int], None], kill: Callable[[str], None]) -> None:
        self.real = real
        self._met = met
        self._kill = kill
        self._dead = False
        self._faults: list[DiskRule] = []
        self._files: weakref.WeakSet[WorldFile] = weakref.WeakSet()
        self._cache = None if isinstance(real, MemoryDisk) else PageCache(real)

    # -- faults

    @property
    def faulty(self) -> bool:
        """Whether calls must be checked."""
        return self._dead or bool(self._faults)

    def set_faults(self, faults: list[DiskRule]) -> None:
        """Replaces all faults. One that stays has as many calls left as it has now: its last ones may not be reported yet."""
        known = {each.id: each for each in self._faults}
        for fault in faults:
            former = known.get(fault.id, fault)
            fault.skip = min(fault.skip, former.skip)
            if fault.times >= 0:
                fault.times = min(fault.times, former.times)
        self._faults = faults
        self._use()

    def _use(self) -> None:
        for file in self._files:
            file.use(self.faulty)

    def end(self) -> None:
        """The broker has ended: every later call raises BrokerKilled."""
        self._dead = True
        self._use()

    def lose_page_cache(self) -> None:
        """Loses what is not synced; the node must have ended."""
        if self._cache is not None:
            self._cache.lose()

    def perform(
        self,
        calls: Sequence[str],
        paths: Sequence[str],
        whole: Callable[[], T],
        half: Callable[[], Any] = _nothing,
        place: tuple[int, int] = (0, 0),
    ) -> T:
        """Makes a call, unless it meets a fault. Raises the OSError of the fault, or BrokerKilled.

        Args:
            calls: what the call is: of CHANGES, "read", "open" and SPACE, the best name first.
            paths: the path, relative to the log directory; of a rename also the new one.
            half: does half of it, if it has a half.
            place: offset and number of the bytes that it reads or writes.
        """
        fatal = self._check(calls, paths, place)
        if fatal is None:
            return whole()
        if fatal.done == "all":
            whole()
        elif fatal.done == "half":
            half()
        raise self._killed_by(fatal)

    def _check(self, calls: Sequence[str], paths: Sequence[str], place: tuple[int, int] = (0, 0)) -> DiskRule | None:
        """Meets the faults of a call; returns the one that kills. Raises the OSError of one that fails."""
        if self._dead:
            raise BrokerKilled
        for fault in self._faults:
            call = fault.met_call(calls, paths)
            if not call:
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            if fault.effect == "slow":
                if call != "fsync":  # `sync` has waited; those of a start and of a clean stop are as fast as before
                    time.sleep(fault.seconds)
                continue
            if fault.times > 0:
                fault.times -= 1
            self._met(fault.id, call, paths[0], *place)
            if fault.effect == "fail":
                raise OSError(fault.number, os.strerror(fault.number), f"{self.real.root}/{paths[0]}")
            if fault.effect == "kill":
                return fault
        return None

    def _killed_by(self, fatal: DiskRule) -> BrokerKilled:
        """Ends the broker; returns what its thread raises, if it has no process of its own."""
        self._kill(fatal.lose)
        return BrokerKilled()

    def closed(self, file: _CheckedFile) -> None:
        """A file was closed."""
        if isinstance(file, WorldFile):
            self._files.discard(file)

    # -- the port

    @property
    def root(self) -> str:
        return self.real.root

    def open(self, path: str, *, create: bool = False) -> File:
        if not self.faulty and self._cache is None:
            return self._opened(path, create, True)
        existed = not create or self.real.exists(path)
        calls = ("open",) if existed else ("open", *_WRITE)
        return self.perform(calls, (path,), lambda: self._opened(path, create, existed))

    def _opened(self, path: str, create: bool, existed: bool) -> File:
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
        return self.perform(("read",), (path,), lambda: self.real.listdir(path))

    def mkdir(self, path: str, *, private: bool = False) -> None:
        self.perform(_WRITE, (path,), lambda: self.real.mkdir(path, private=private))

    def remove(self, *paths: str) -> None:
        if not self.faulty:
            self._remove(*paths)
            return
        for path in paths:
            if self.real.exists(path):
                self.perform(("remove",), (path,), partial(self._remove, path))

    def _remove(self, *paths: str) -> None:
        self.real.remove(*paths)
        if self._cache is not None:
            for path in paths:
                self._cache.replaced(path)

    async def discard(self, *paths: str) -> None:
        if not self.faulty:
            await self._discard(*paths)
            return
        for path in paths:
            fatal = self._check(("remove",), (path,)) if self.real.exists(path) else None
            if fatal is None or fatal.done == "all":
                await self._discard(path)
            if fatal is not None:
                raise self._killed_by(fatal)

    async def _discard(self, *paths: str) -> None:
        if self._cache is not None:
            for path in paths:
                self._cache.removed(path)
        await self.real.discard(*paths)

    def rename(self, source: str, target: str) -> None:
        self.perform(("rename",), (source, target), lambda: self._rename(source, target))

    def _rename(self, source: str, target: str) -> None:
        self.real.rename(source, target)
        if self._cache is not None:
            self._cache.renamed(source, target)

    def size(self, path: str) -> int:
        return self.real.size(path)

    def read(self, path: str) -> bytes:
        return self.perform(("read", "open"), (path,), lambda: self.real.read(path))

    def replace(self, path: str, data: Buffer) -> None:
        self.perform((*_WRITE, "fsync"), (path,), lambda: self._replace(path, data), place=(0, len(data)))

    def _replace(self, path: str, data: Buffer) -> None:
        self.real.replace(path, data)
        if self._cache is not None:
            self._cache.replaced(path)

    def lock(self, path: str) -> DiskLock:
        return self.real.lock(path)

    async def sync(self, files: Sequence[File]) -> None:
        if self.faulty:
            await asyncio.sleep(
                sum(each.seconds for each in self._faults if each.effect == "slow" and _syncs(each, files))
            )
            self._check_sync(files)
        marks = self._marks(files)
        await self.real.sync([each.inner if isinstance(each, WorldFile) else each for each in files])
        self._synced(marks)

    def sync_now(self, files: Sequence[File]) -> None:
        if self.faulty:
            self._check_sync(files)
        self._sync_now(files)

    def _sync_now(self, files: Sequence[File]) -> None:
        marks = self._marks(files)
        self.real.sync_now([each.inner if isinstance(each, WorldFile) else each for each in files])
        self._synced(marks)

    def _check_sync(self, files: Sequence[File]) -> None:
        """Each file is one fsync. A fault that kills lets the ones before it be synced."""
        if not files and self._dead:
            raise BrokerKilled
        for number, file in enumerate(files):
            fatal = self._check(("fsync",), (file.path,))
            if fatal is not None:
                if synced := files[: number + 1 if fatal.done == "all" else number]:
                    self._sync_now(synced)
                raise self._killed_by(fatal)

    def total_bytes(self) -> int:
        return self.real.total_bytes()

    def available_bytes(self) -> int:
        return 0 if any(each.call == SPACE for each in self._faults) else self.real.available_bytes()

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


def _syncs(rule: DiskRule, files: Sequence[File]) -> bool:
    """Whether a sync of these files meets the rule."""
    return bool(rule.met_call(("fsync",), [each.path for each in files]))
