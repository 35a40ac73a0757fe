"""File disk: the Disk port over a real data directory, with group commit and a limited number of descriptors.
Close a handle before its file is renamed: it is reopened by path. Linux and macOS only: Windows has no `pread`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from barnabas.errors import DirectoryInUse
from barnabas.ports import Buffer, DiskLock, File
from barnabas.runtime.port_owner import described, lock_holder

U = TypeVar("U")

_OPEN_FLAGS = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
_PARALLEL_MIN = 16  # files in one call, from which on threads share the work
_PARALLEL_THREADS = 16
_PARALLEL_CHUNK = 8

_READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_READ_BYTES = 64 * 1024  # read from a small file in one call
_FILE_MODE = 0o644
_EXHAUSTED = (errno.EMFILE, errno.ENFILE)
T = TypeVar("T")


def fsync(fd: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync alone writes only to the drive's cache
    elif hasattr(os, "fdatasync"):
        os.fdatasync(fd)  # it also flushes the size, without which the data could not be read
    else:
        os.fsync(fd)


def in_parallel(work: Callable[[U], None], targets: Sequence[U]) -> None:
    """Syncs or removes each target; many in several threads, whose changes a file system commits together."""
    if len(targets) < _PARALLEL_MIN:
        for target in targets:
            work(target)
        return

    def chunk(start: int) -> None:
        for target in targets[start : start + _PARALLEL_CHUNK]:
            work(target)

    with ThreadPoolExecutor(_PARALLEL_THREADS, thread_name_prefix="barnabas-files") as pool:
        for _ in pool.map(chunk, range(0, len(targets), _PARALLEL_CHUNK)):
            pass


def remove_if_there(full_path: str) -> None:
    """No error for a missing file."""
    try:
        os.unlink(full_path)
    except FileNotFoundError:
        pass


def discard(full_paths: Sequence[str]) -> None:
    """Removes files and whole folders; no error for missing ones."""
    for full_path in full_paths:
        try:
            os.unlink(full_path)
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):  # Linux and macOS raise these for a folder
            if not os.path.isdir(full_path):
                raise
            _discard_folder(full_path)


def _discard_folder(full_path: str) -> None:
    try:
        discard([f"{full_path}/{name}" for name in os.listdir(full_path)])
        os.rmdir(full_path)
    except FileNotFoundError:
        pass


def sync_target(target: int | str) -> None:
    """Syncs an open descriptor or a path; no error for a missing file."""
    if isinstance(target, int):
        fsync(target)
    else:
        _fsync_path(target)


def sync_folder_if_there(folder: str) -> None:
    """No error for a missing folder."""
    try:
        sync_folder(folder)
    except FileNotFoundError:
        pass  # a deleted topic's folder needs no sync


def _fsync_path(full_path: str) -> None:
    try:
        fd = os.open(full_path, _OPEN_FLAGS)
    except FileNotFoundError:
        return
    try:
        fsync(fd)
    finally:
        os.close(fd)


def sync_folder(full_path: str) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(full_path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _name(error: OSError, path: str) -> None:
    """Adds the path, which errors of an open descriptor lack."""
    if error.filename is None:
        error.filename = path


class DiskFile:
    """A file of a FileDisk. Its descriptor is opened when needed and may be closed in between."""

    __slots__ = ("_closed", "_disk", "_fd", "_full_path", "_path", "created", "pins", "used")

    def __init__(self, disk: FileDisk, path: str, full_path: str, fd: int, created: bool) -> None:
        self._disk = disk
        self._path = path
        self._full_path = full_path
        self._fd = fd
        self._closed = False
        self.created = created  # its folder entry is not synced yet
        self.pins = 0  # syncs under way
        self.used = True  # since the clock algorithm last visited it

    @property
    def path(self) -> str:
        return self._path

    def descriptor(self) -> int:
        """The descriptor, reopened after an eviction. OSError (EBADF) after close."""
        self.used = True
        if self._fd >= 0:
            return self._fd
        if self._closed:
            raise OSError(errno.EBADF, "file is closed", self._path)
        self._fd = self._disk.with_descriptor(lambda: os.open(self._full_path, _OPEN_FLAGS))
        self._disk.opened(self)
        return self._fd

    def pread(self, size: int, offset: int) -> bytes:
        self.used = True
        fd = self._fd if self._fd >= 0 else self.descriptor()
        data = os.pread(fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]  # short: the end of the file, or the request exceeds the limit of one call (2 GiB)
        have = len(data)
        while have < size:
            data = os.pread(fd, size - have, offset + have)
            if not data:
                break
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def pwrite(self, data: Buffer, offset: int) -> None:
        self.used = True
        fd = self._fd if self._fd >= 0 else self.descriptor()
        size = len(data)
        try:
            written = os.pwrite(fd, data, offset)
            while written < size:  # a signal or a full disk ended the call early; the next call shows which
                written += os.pwrite(fd, memoryview(data)[written:], offset + written)
        except OSError as error:
            _name(error, self._full_path)
            raise

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self.descriptor(), size)
        except OSError as error:
            _name(error, self._full_path)
            raise

    def size(self) -> int:
        return os.fstat(self.descriptor()).st_size

    def close(self) -> None:
        self._closed = True
        self._disk.forget(self)
        self.evict()

    def evict(self) -> None:
        """Closes the descriptor, or lets `unpin` close it after a sync."""
        if self._fd >= 0 and not self.pins:
            os.close(self._fd)
            self._fd = -1

    def pin(self) -> int:
        """Keeps the descriptor open during a sync and returns it; -1 without one."""
        if self._fd >= 0:
            self.pins += 1
        return self._fd

    @property
    def closed(self) -> bool:
        return self._closed

    def unpin(self) -> None:
        self.pins -= 1
        if self._closed:
            self.evict()


class _FileLock:
    """A POSIX lock, which belongs to the process. `held` rejects a second lock in the process, as Java does."""

    held: dict[str, None] = {}  # noqa: RUF012 - shared by design: the lock's scope is the process

    __slots__ = ("_fd", "_name")

    def __init__(self, full_path: str, path: str) -> None:
        self._name = os.path.realpath(full_path)
        if self._name in self.held:
            raise DirectoryInUse(f"{full_path} is locked by this process already")
        fd = os.open(full_path, _OPEN_FLAGS | os.O_CREAT, _FILE_MODE)
        import fcntl  # not on Windows

        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = lock_holder(fd)
            os.close(fd)
            who = "another process" if pid is None else f"another process: {described(pid)}"
            raise DirectoryInUse(f"{full_path} is locked by {who}; stop it or use another data directory") from error
        self._fd = fd
        self.held[self._name] = None

    def release(self) -> None:
        if self._fd >= 0:
            self.held.pop(self._name, None)
            os.close(self._fd)
            self._fd = -1


class _Round:
    """Files and folders of one sync. `work` runs on the worker thread, other methods on the loop's."""

    __slots__ = ("covered", "folders", "pinned", "targets")

    def __init__(self) -> None:
        self.pinned: list[DiskFile] = []
        self.covered: list[DiskFile] = []
        self.targets: list[int | str] = []  # descriptors, and paths of files without one
        self.folders: dict[str, None] = {}

    def work(self) -> None:
        in_parallel(sync_target, self.targets)
        in_parallel(sync_folder_if_there, list(self.folders))

    def unpin(self) -> None:
        for file in self.pinned:
            file.unpin()

    def done(self) -> None:
        for file in self.covered:
            file.created = False


class FileDisk:
    """A data directory of the file system.

    Args:
        root: created if missing. If that fails, the first call that needs it raises OSError.
        open_files_max: open descriptors of partition files; the least recently used are evicted.
    """

    def __init__(self, root: str, *, open_files_max: int = 600) -> None:
        self.root = os.path.abspath(root)
        with contextlib.suppress(OSError):  # the first call that needs the directory reports the error
            os.makedirs(self.root, mode=0o700, exist_ok=True)  # the metadata log has keys of users
        self._open_files_max = open_files_max
        self._open: dict[DiskFile, None] = {}  # files with a descriptor, in the order of the clock algorithm
        self._worker: ThreadPoolExecutor | None = None
        # apart from the worker: the removal of a large file would delay syncs too long
        self._remover: ThreadPoolExecutor | None = None
        self._renamed: dict[str, None] = {}  # folders with names that no sync has covered
        self._waiting: list[tuple[Sequence[File], asyncio.Future[None]]] = []
        self._syncing = False

    # -- the Disk port --------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        full_path = f"{self.root}/{path}"
        flags = _OPEN_FLAGS | os.O_CREAT if create else _OPEN_FLAGS
        try:
            fd = os.open(full_path, flags, _FILE_MODE)
        except OSError as error:
            if not _is_exhausted(error):
                raise
            fd = self.with_descriptor(lambda: os.open(full_path, flags, _FILE_MODE))
        # An empty file counts as new: an unnecessary sync of its folder is harmless.
        file = DiskFile(self, path, full_path, fd, create and os.fstat(fd).st_size == 0)
        self.opened(file)
        return file

    def handle(self, path: str) -> DiskFile:
        return DiskFile(self, path, f"{self.root}/{path}", -1, False)

    def exists(self, path: str) -> bool:
        return os.path.exists(f"{self.root}/{path}")

    def listdir(self, path: str) -> list[str]:
        return sorted(self.with_descriptor(lambda: os.listdir(f"{self.root}/{path}")))

    def mkdir(self, path: str, *, private: bool = False) -> None:
        full_path, mode = f"{self.root}/{path}", 0o700 if private else 0o777
        try:
            os.mkdir(full_path, mode)
        except OSError:
            os.makedirs(full_path, mode, exist_ok=True)

    def remove(self, *paths: str) -> None:
        in_parallel(remove_if_there, [f"{self.root}/{path}" for path in paths])

    async def discard(self, *paths: str) -> None:
        if self._remover is None:
            self._remover = ThreadPoolExecutor(1, thread_name_prefix="barnabas-removal")
        full_paths = [f"{self.root}/{path}" for path in paths]
        while True:
            try:
                await asyncio.get_running_loop().run_in_executor(self._remover, discard, full_paths)
            except OSError as error:
                if not _is_exhausted(error) or not self._give_up_descriptors():
                    raise
            else:
                return

    def rename(self, source: str, target: str) -> None:
        os.rename(f"{self.root}/{source}", f"{self.root}/{target}")
        self._renamed[os.path.dirname(f"{self.root}/{target}")] = None

    def size(self, path: str) -> int:
        return os.stat(f"{self.root}/{path}").st_size

    def read(self, path: str) -> bytes:
        fd = self.with_descriptor(lambda: os.open(f"{self.root}/{path}", _READ_FLAGS))
        try:
            parts = []
            while part := os.read(fd, _READ_BYTES):
                parts.append(part)
        finally:
            os.close(fd)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def replace(self, path: str, data: Buffer) -> None:
        full_path = f"{self.root}/{path}"
        aside = full_path + ".tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
        fd = self.with_descriptor(lambda: os.open(aside, flags, _FILE_MODE))
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            fsync(fd)
        except OSError as error:
            _name(error, full_path)
            raise
        finally:
            os.close(fd)
        os.replace(aside, full_path)
        self.with_descriptor(lambda: sync_folder(os.path.dirname(full_path)))

    def lock(self, path: str) -> DiskLock:
        return _FileLock(f"{self.root}/{path}", path)

    async def sync(self, files: Sequence[File]) -> None:
        if not files:
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((files, done))
        if not self._syncing:
            self._next_round(loop)
        await done

    def sync_now(self, files: Sequence[File]) -> None:
        self.with_descriptor(lambda: self._sync_now(files))

    def _sync_now(self, files: Sequence[File]) -> None:
        round_ = self._prepare(files)
        try:
            round_.work()
            round_.done()
        except OSError:
            self._renamed = round_.folders | self._renamed
            raise
        finally:
            round_.unpin()

    def total_bytes(self) -> int:
        stat = os.statvfs(self.root)
        return stat.f_blocks * stat.f_frsize

    def available_bytes(self) -> int:
        stat = os.statvfs(self.root)
        return stat.f_bavail * stat.f_frsize

    def close(self) -> None:
        for thread in (self._worker, self._remover):
            if thread is not None:
                thread.shutdown()
        self._worker = self._remover = None
        for file in list(self._open):
            file.close()

    # -- group commit ---------------------------------------------------------------------------------------------

    def _next_round(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting = self._waiting, []
        round_ = self._prepare([file for files, _ in waiting for file in files])
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="barnabas-sync")
        self._syncing = True

        def finished(outcome: asyncio.Future[None]) -> None:
            self._syncing = False
            error = None if outcome.cancelled() else outcome.exception()
            round_.unpin()
            if _is_exhausted(error) and self._worker is not None and self._give_up_descriptors():
                self._renamed = round_.folders | self._renamed
                self._waiting[:0] = waiting
                self._next_round(loop)
                return
            if error is None:
                round_.done()
            if self._waiting:
                self._next_round(loop)
            _answer(waiting, error)

        loop.run_in_executor(self._worker, round_.work).add_done_callback(finished)

    def _prepare(self, files: Sequence[File]) -> _Round:
        """The work of a sync: fsync of each file, then of the folders with new names; descriptors are pinned."""
        round_ = _Round()
        round_.folders, self._renamed = self._renamed, {}
        for file in dict.fromkeys(files):
            if not isinstance(file, DiskFile):
                continue
            fd = file.pin()
            if fd >= 0:
                round_.pinned.append(file)
                round_.targets.append(fd)
            elif file.closed:
                continue
            else:
                round_.targets.append(f"{self.root}/{file.path}")
            round_.covered.append(file)
            if file.created:
                folder = os.path.dirname(f"{self.root}/{file.path}")
                round_.folders[folder] = None
                round_.folders[os.path.dirname(folder)] = None  # the partition's folder may be new, too
        return round_

    # -- descriptors ----------------------------------------------------------------------------------------------

    @property
    def descriptors_wanted(self) -> int:
        return max(0, self._open_files_max - len(self._open))

    def with_descriptor(self, call: Callable[[], T]) -> T:
        """Result of a call that opens a file or folder; on EMFILE or ENFILE closes other files and repeats it."""
        while True:
            try:
                return call()
            except OSError as error:
                if not _is_exhausted(error) or not self._give_up_descriptors():
                    raise

    def _give_up_descriptors(self) -> bool:
        """Closes the older half of the open files. Returns whether any could be closed."""
        files = [file for file in self._open if not file.pins]
        for file in files[: (len(files) + 1) // 2]:
            del self._open[file]
            file.evict()
        return bool(files)

    def opened(self, file: DiskFile) -> None:
        """Closes old descriptors above the limit (clock algorithm: a file used since the last pass stays once)."""
        self._open[file] = None
        while len(self._open) > self._open_files_max:
            for _ in range(len(self._open)):
                oldest = next(iter(self._open))
                del self._open[oldest]
                if oldest is file or oldest.pins or oldest.used:
                    oldest.used = oldest is file
                    self._open[oldest] = None
                    continue
                oldest.evict()
                break
            else:
                if not self._evict_any(file):
                    return

    def _evict_any(self, kept: DiskFile) -> bool:
        for file in self._open:
            if file is not kept and not file.pins:
                del self._open[file]
                file.evict()
                return True
        return False

    def forget(self, file: DiskFile) -> None:
        self._open.pop(file, None)


def _is_exhausted(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def _answer(waiting: list[tuple[Sequence[File], asyncio.Future[None]]], error: BaseException | None) -> None:
    for _, done in waiting:
        if done.done():
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)


def write_private(file: Path, data: str | bytes) -> None:
    """Writes a file with secrets: as a whole, readable by its owner only. Raises OSError."""
    new = file.with_name(file.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(data.encode() if isinstance(data, str) else data)
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(file)
