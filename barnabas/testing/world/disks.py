"""FaultyDisk: the one layer of disk faults, over a real disk or a memory disk, of the kit, the simulator and unit tests.

A rule makes calls fail, ends the process at a call, slows calls down or counts them. While a file's disk has no rule, its methods are
those of the real file. Over a real disk, writes pass the page cache, which records what is not synced; a memory disk does that itself.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final, Literal, TypeVar

from barnabas.ports import Buffer, Disk, DiskLock, File, Rng
from barnabas.storage.disk import MemoryDisk
from barnabas.testing.world.page_cache import CachedFile, PageCache

T = TypeVar("T")

PartDone = Literal["nothing", "half", "all"]

CHANGES: Final = ("write", "fsync", "rename", "remove")
CHANGE: Final = "change"  # each of CHANGES
CALLS: Final = (*CHANGES, "read", "open", CHANGE)
PARTS_DONE: Final[tuple[PartDone, ...]] = ("nothing", "half", "all")
SPACE: Final = "space"  # every call that needs free space

# Calls of the ports Disk and File → their kinds, the best name first. A rule names calls or kinds.
KINDS: Final[dict[str, tuple[str, ...]]] = {
    "pread": ("read",),
    "pwrite": ("write", SPACE),
    "truncate": ("write",),
    "open": ("open",),
    "create": ("open", "write", SPACE),
    "listdir": ("read",),
    "mkdir": ("write", SPACE),
    "remove": ("remove",),
    "discard": ("remove",),
    "rename": ("rename",),
    "read": ("read", "open"),
    "replace": ("write", SPACE, "fsync"),
    "sync": ("fsync",),
}


class BrokerKilled(BaseException):
    """The broker has ended at this call. A BaseException, so that no handler of disk errors catches it."""


@dataclass(slots=True)
class DiskRule:
    """One fault.

    Attributes:
        effect: "fail", "kill", "slow" or "watch".
        calls: keys of KINDS, kinds, or CHANGE.
        number: errno of the failure.
        path: pattern of paths, relative to the log directory.
        skip: matching calls that pass first.
        times: matching calls that remain; -1: all.
        seconds: added to each call.
        done: the part of the call that is done when it fails, or when the broker ends.
        lose: what the broker loses at its end.
        log_dir: number of the log directory, from 1; None: all of the broker.
        hits: matching calls so far.
    """

    id: int
    effect: str
    calls: Sequence[str]
    number: int = errno.EIO
    path: str = "*"
    skip: int = 0
    times: int = -1
    seconds: float = 0.0
    done: PartDone = "nothing"
    lose: str = "nothing"
    log_dir: int | None = None
    hits: int = 0

    def kind_of(self, call: str, paths: Sequence[str]) -> str:
        """The word of the rule that names this call; empty if the rule does not match."""
        if self.times == 0 or not any(fnmatchcase(each, self.path) for each in paths):
            return ""
        kinds = KINDS[call]
        for word in self.calls:
            if word == CHANGE:
                word = next((each for each in kinds if each in CHANGES), "")
            if word == call or word in kinds:
                return word
        return ""


def _nothing(*arguments: object) -> None:
    pass


class _CheckedFile:
    """A file that checks the rules at each call."""

    __slots__ = ("__weakref__", "_cached", "_disk", "_path", "inner")

    def __init__(self, disk: FaultyDisk, path: str, inner: File, cached: CachedFile | None) -> None:
        self._disk = disk
        self._path = path
        self._cached = cached
        self.inner = inner

    @property
    def path(self) -> str:
        return self._path

    def pread(self, size: int, offset: int) -> bytes:
        return self._disk.perform("pread", (self._path,), lambda: self.inner.pread(size, offset), place=(offset, size))

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._disk.perform(
            "pwrite",
            (self._path,),
            lambda: self._noted_write(data, offset),
            lambda: self._noted_write(memoryview(data)[: len(data) // 2], offset),
            place=(offset, len(data)),
            data=data,
        )

    def truncate(self, size: int) -> None:
        self._disk.perform("truncate", (self._path,), lambda: self._noted_truncation(size), place=(size, 0))

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


class FaultyFile(_CheckedFile):
    """A file. The slots are methods of the real file while the disk has no rule."""

    __slots__ = ("pread", "pwrite", "size")

    def __init__(self, disk: FaultyDisk, path: str, inner: File, cached: CachedFile | None) -> None:
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


class FaultyDisk:
    """See the module.

    Args:
        real: the disk with the contents.
        on_hit: called at each matching call with the id of the rule, the kind of the call, its path, and offset and number of its bytes.
        kill: called with what the broker loses when a call matches a rule that kills; ends all disks of the broker.
    """

    def __init__(
        self,
        real: Disk,
        on_hit: Callable[[int, str, str, int, int], None] = _nothing,
        kill: Callable[[str], None] = _nothing,
    ) -> None:
        self.real = real
        self._on_hit = on_hit
        self._kill = kill
        self._dead = False
        self._rules: list[DiskRule] = []
        self._files: weakref.WeakSet[FaultyFile] = weakref.WeakSet()
        self._cache = None if isinstance(real, MemoryDisk) else PageCache(real)

    # -- rules

    @property
    def faulty(self) -> bool:
        """Whether calls must be checked."""
        return self._dead or bool(self._rules)

    def fail(
        self,
        *calls: str,
        number: int = errno.EIO,
        nth: int = 1,
        times: int | None = 1,
        path: str = "*",
        done: PartDone = "nothing",
    ) -> None:
        """Makes later calls raise OSError(`number`).

        Args:
            calls: keys of KINDS, kinds, or CHANGE.
            nth: the first matching call that fails.
            times: number of calls that fail; None: all until `heal`.
            path: pattern of paths.
            done: "half": a failing write still writes the first half of its bytes.
        """
        left = -1 if times is None else times
        self._add(DiskRule(-1, "fail", calls, number, path, skip=nth - 1, times=left, done=done))

    def slow(self, seconds: float) -> None:
        """Each sync takes this much longer, until `slow(0)` or `heal`."""
        self._set([each for each in self._rules if each.effect != "slow"])
        if seconds:
            self._add(DiskRule(-1, "slow", ("fsync",), seconds=seconds))

    def watch(self, *calls: str, path: str = "*") -> DiskRule:
        """Counts later calls in `hits` of the returned rule."""
        return self._add(DiskRule(-1, "watch", calls, path=path))

    def heal(self) -> None:
        """Removes all rules."""
        self._set([])

    def set_rules(self, rules: list[DiskRule]) -> None:
        """Replaces all rules. One that stays has as many calls left as it has now: its last ones may not be reported yet."""
        known = {each.id: each for each in self._rules}
        for rule in rules:
            former = known.get(rule.id, rule)
            rule.skip = min(rule.skip, former.skip)
            if rule.times >= 0:
                rule.times = min(rule.times, former.times)
        self._set(rules)

    def _add(self, rule: DiskRule) -> DiskRule:
        self._set([*self._rules, rule])
        return rule

    def _set(self, rules: list[DiskRule]) -> None:
        self._rules = rules
        self._use()

    def _use(self) -> None:
        for file in self._files:
            file.use(self.faulty)

    def end(self) -> None:
        """Ends the broker: every later call raises BrokerKilled, although the broker's thread still runs to its end."""
        self._dead = True
        self._use()

    def lose_page_cache(self) -> None:
        """Loses what is not synced; the node must have ended."""
        if self._cache is not None:
            self._cache.lose()

    def perform(
        self,
        call: str,
        paths: Sequence[str],
        whole: Callable[[], T],
        half: Callable[[], Any] = _nothing,
        *,
        place: tuple[int, int] = (0, 0),
        data: Buffer = b"",
    ) -> T:
        """Makes a call, unless a rule ends it. Raises the OSError of the rule, or BrokerKilled.

        Args:
            call: a key of KINDS.
            paths: the path, relative to the log directory; of a rename also the new one.
            half: does half of it, if it has a half.
            place: offset and number of the bytes that it reads or writes.
            data: the bytes that it writes.
        """
        ending = self._check(call, paths, place, data)
        if ending is None:
            return whole()
        if ending.done == "all":
            whole()
        elif ending.done == "half":
            half()
        raise self._ended_by(ending, paths[0])

    def before(self, call: str, paths: Sequence[str], place: tuple[int, int], data: Buffer) -> None:
        """Runs before each checked call. Raises BrokerKilled if the broker has ended."""
        if self._dead:
            raise BrokerKilled

    def _check(
        self, call: str, paths: Sequence[str], place: tuple[int, int] = (0, 0), data: Buffer = b""
    ) -> DiskRule | None:
        """Counts a call in all rules that match it, up to one that ends it, which is returned."""
        self.before(call, paths, place, data)
        for rule in self._rules:
            kind = rule.kind_of(call, paths)
            if not kind:
                continue
            if rule.skip > 0:
                rule.skip -= 1
                continue
            if rule.effect == "slow":
                if call != "sync":  # `sync` has waited; those of a start and of a clean stop are as fast as before
                    time.sleep(rule.seconds)  # a slow disk blocks the broker's loop, too
                continue
            if rule.times > 0:
                rule.times -= 1
            rule.hits += 1
            self._on_hit(rule.id, kind, paths[0], *place)
            if rule.effect in ("fail", "kill"):
                return rule
        return None

    def _ended_by(self, rule: DiskRule, path: str) -> BaseException:
        """What the call raises. A rule that kills ends the broker here, if it has a process of its own."""
        if rule.effect == "fail":
            return OSError(rule.number, os.strerror(rule.number), f"{self.real.root}/{path}")
        self._kill(rule.lose)
        return BrokerKilled()

    def closed(self, file: _CheckedFile) -> None:
        """Forgets a closed file."""
        if isinstance(file, FaultyFile):
            self._files.discard(file)

    # -- the port

    @property
    def root(self) -> str:
        return self.real.root

    def open(self, path: str, *, create: bool = False) -> File:
        if not self.faulty and self._cache is None:
            return self._opened(path, create, True)
        existed = not create or self.real.exists(path)
        return self.perform("open" if existed else "create", (path,), lambda: self._opened(path, create, existed))

    def _opened(self, path: str, create: bool, existed: bool) -> File:
        inner = self.real.open(path, create=create)
        cached = None if self._cache is None else self._cache.opened(path, inner, existed)
        return self._file(path, inner, cached)

    def handle(self, path: str) -> File:
        cached = None if self._cache is None else self._cache.known(path)
        return self._file(path, self.real.handle(path), cached)

    def _file(self, path: str, inner: File, cached: CachedFile | None) -> FaultyFile:
        file = FaultyFile(self, path, inner, cached)
        self._files.add(file)
        return file

    def exists(self, path: str) -> bool:
        return self.real.exists(path)

    def listdir(self, path: str) -> list[str]:
        return self.perform("listdir", (path,), lambda: self.real.listdir(path))

    def mkdir(self, path: str, *, private: bool = False) -> None:
        self.perform("mkdir", (path,), lambda: self.real.mkdir(path, private=private))

    def remove(self, *paths: str) -> None:
        if not self.faulty:
            self._remove(*paths)
            return
        for path in paths:
            if self.real.exists(path):
                self.perform("remove", (path,), partial(self._remove, path))

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
            ending = self._check("discard", (path,)) if self.real.exists(path) else None
            if ending is None or ending.done == "all":
                await self._discard(path)
            if ending is not None:
                raise self._ended_by(ending, path)

    async def _discard(self, *paths: str) -> None:
        if self._cache is not None:
            for path in paths:
                self._cache.removed(path)
        await self.real.discard(*paths)

    def rename(self, source: str, target: str) -> None:
        self.perform("rename", (source, target), lambda: self._rename(source, target))

    def _rename(self, source: str, target: str) -> None:
        self.real.rename(source, target)
        if self._cache is not None:
            self._cache.renamed(source, target)

    def size(self, path: str) -> int:
        return self.real.size(path)

    def read(self, path: str) -> bytes:
        return self.perform("read", (path,), lambda: self.real.read(path))

    def replace(self, path: str, data: Buffer) -> None:
        self.perform("replace", (path,), lambda: self._replace(path, data), place=(0, len(data)), data=data)

    def _replace(self, path: str, data: Buffer) -> None:
        self.real.replace(path, data)
        if self._cache is not None:
            self._cache.replaced(path)

    def lock(self, path: str) -> DiskLock:
        return self.real.lock(path)

    async def sync(self, files: Sequence[File]) -> None:
        if self.faulty:
            await asyncio.sleep(self._slowed_s(files))
            self._check_sync(files)
        await self._sync(files)

    async def _sync(self, files: Sequence[File]) -> None:
        marks = self._marks(files)
        await self.real.sync(_inner(files))
        self._synced(marks)

    def sync_now(self, files: Sequence[File]) -> None:
        if self.faulty:
            self._check_sync(files)
        self._sync_now(files)

    def _sync_now(self, files: Sequence[File]) -> None:
        marks = self._marks(files)
        self.real.sync_now(_inner(files))
        self._synced(marks)

    def _slowed_s(self, files: Sequence[File]) -> float:
        paths = [each.path for each in files]
        return sum(each.seconds for each in self._rules if each.effect == "slow" and each.kind_of("sync", paths))

    def _check_sync(self, files: Sequence[File]) -> None:
        """Each file is one fsync. A rule that kills lets the ones before it be synced."""
        if not files:
            self.before("sync", (), (0, 0), b"")
        for number, file in enumerate(files):
            ending = self._check("sync", (file.path,))
            if ending is None:
                continue
            synced = files[: number + 1 if ending.done == "all" else number]
            if synced and ending.effect == "kill":
                self._sync_now(synced)
            raise self._ended_by(ending, file.path)

    def total_bytes(self) -> int:
        return self.real.total_bytes()

    def available_bytes(self) -> int:
        return 0 if any(SPACE in each.calls for each in self._rules) else self.real.available_bytes()

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


def _inner(files: Sequence[File]) -> list[File]:
    return [each.inner if isinstance(each, FaultyFile) else each for each in files]


class FaultyMemoryDisk(FaultyDisk):
    """A memory disk with faults. It survives its process; the rules do not."""

    real: MemoryDisk

    def __init__(self, root: str = "/memory") -> None:
        super().__init__(MemoryDisk(root))

    def kill(self) -> None:
        """SIGKILL of the process: handles, locks and rules end, written data stays."""
        self.heal()
        self.real.kill()

    def crash(self, rng: Rng | None = None) -> None:
        """Power loss, as MemoryDisk.crash; rules end."""
        self.heal()
        self.real.crash(rng)
