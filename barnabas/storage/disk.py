"""Memory disk: a Disk port that simulates kills and power losses.
A crash may keep, tear at a sector or lose each unsynced write; of uncommitted name changes a prefix survives. `replace`
is atomic and durable. Any sync commits all earlier name changes, as a journaling file system does.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Sequence

from barnabas.errors import DirectoryInUse
from barnabas.ports import NAME_BYTES_MAX, SECTOR_SIZE, Buffer, DiskLock, File, Rng

_Change = tuple[int, bytes | None]  # (offset, data) of a write; (size, None) of a truncate
_Name = tuple[str, str, str]  # (operation, path, target)


class _Inode:
    """Contents of one file. `image` is always `durable` with every entry of `pending` applied."""

    __slots__ = ("committed", "durable", "image", "pending")

    def __init__(self) -> None:
        self.image = bytearray()
        self.durable = bytearray()
        self.pending: list[_Change] = []
        self.committed = 0  # number of changes made durable so far

    def change(self, change: _Change) -> None:
        _apply(self.image, change)
        self.pending.append(change)

    def changed(self) -> int:
        return self.committed + len(self.pending)

    def commit(self, up_to: int) -> None:
        """Makes the first `up_to` changes durable."""
        count = up_to - self.committed
        if count > 0:
            for change in self.pending[:count]:
                _apply(self.durable, change)
            del self.pending[:count]
            self.committed = up_to

    def lose_power(self, rng: Rng | None) -> None:
        if rng is not None:
            for change in self.pending:
                survivor = _torn(change, rng)
                if survivor is not None:
                    _apply(self.durable, survivor)
        self.pending.clear()
        self.image = bytearray(self.durable)


def _apply(image: bytearray, change: _Change) -> None:
    offset, data = change
    if data is None:
        if offset < len(image):
            del image[offset:]
        else:
            image.extend(bytes(offset - len(image)))
        return
    if offset > len(image):
        image.extend(bytes(offset - len(image)))
    image[offset : offset + len(data)] = data


def _torn(change: _Change, rng: Rng) -> _Change | None:
    """What survives a power loss: the whole change, nothing, or a prefix that ends at a sector boundary."""
    offset, data = change
    draw = rng.randrange(4)
    if draw == 0:
        return None
    if data is None or draw != 1:
        return change
    boundaries = (offset + len(data)) // SECTOR_SIZE - offset // SECTOR_SIZE
    if boundaries == 0:
        return None
    end = (offset // SECTOR_SIZE + 1 + rng.randrange(boundaries)) * SECTOR_SIZE
    return offset, data[: end - offset]


class MemoryFile:
    """A file handle. It follows the file through a rename, as a POSIX descriptor does."""

    __slots__ = ("_disk", "_generation", "_inode", "_open", "_path")

    def __init__(self, disk: MemoryDisk, path: str, inode: _Inode, generation: int) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._generation = generation
        self._open = True

    @property
    def path(self) -> str:
        return self._path

    @property
    def inode(self) -> _Inode:
        return self._inode

    def pread(self, size: int, offset: int) -> bytes:
        self.check_alive()
        return bytes(self._inode.image[offset : offset + size])

    def pwrite(self, data: Buffer, offset: int) -> None:
        self.check_alive()
        if len(data):
            self._inode.change((offset, bytes(data)))

    def truncate(self, size: int) -> None:
        self.check_alive()
        if size != len(self._inode.image):
            self._inode.change((size, None))

    def size(self) -> int:
        self.check_alive()
        return len(self._inode.image)

    def close(self) -> None:
        self._open = False

    @property
    def closed(self) -> bool:
        return not self._open

    def check_alive(self) -> None:
        """Raises EIO if the process of this handle was killed, EBADF if the handle is closed."""
        if self._generation != self._disk.generation:
            raise OSError(errno.EIO, "the process that opened this file was killed", self._path)
        if not self._open:
            raise OSError(errno.EBADF, "file is closed", self._path)


class _MemoryLock:
    __slots__ = ("_disk", "_generation", "_path")

    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._generation = disk.generation

    def release(self) -> None:
        if self._generation == self._disk.generation:
            self._disk.locks.pop(self._path, None)


class MemoryDisk:
    """A data directory in memory that survives the node's kill.

    Attributes:
        generation: incremented by each kill and crash; handles of an earlier generation raise OSError.
        on_sync: awaited inside `sync` before it takes effect, to simulate slow syncs.
        capacity_bytes: `available_bytes` is this less the size of all files.
    """

    def __init__(self, root: str = "/memory", *, capacity_bytes: int = 1 << 40) -> None:
        self.root = root
        self.generation = 0
        self.capacity_bytes = capacity_bytes
        self.on_sync: Callable[[Sequence[File]], Awaitable[None]] | None = None
        self.locks: dict[str, None] = {}
        self._names: dict[str, _Inode] = {}
        self._folders: dict[str, None] = {"": None}
        self._durable_names: dict[str, _Inode] = {}
        self._durable_folders: dict[str, None] = {"": None}
        self._journal: list[tuple[_Name, _Inode | None]] = []
        self._names_committed = 0  # number of journal entries made durable so far

    def kill(self) -> None:
        """SIGKILL of the process: handles and locks end, written data stays."""
        self.generation += 1
        self.locks.clear()

    def crash(self, rng: Rng | None = None) -> None:
        """Power loss. `rng` draws whether each unsynced change survives, is torn or is lost; without it all are lost."""
        self.kill()
        kept = 0 if rng is None else rng.randrange(len(self._journal) + 1)
        self._commit_names(self._names_committed + kept)
        self._journal.clear()
        self._names = dict(self._durable_names)
        self._folders = dict(self._durable_folders)
        for path in sorted(self._names):
            self._names[path].lose_power(rng)

    # -- the Disk port --------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        inode = self._names.get(path)
        if inode is None:
            if not create or _parent(path) not in self._folders:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            inode = _Inode()
            self._change_names(("create", path, ""), inode)
        return MemoryFile(self, path, inode, self.generation)

    def handle(self, path: str) -> MemoryFile:
        return self.open(path)

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._folders

    def listdir(self, path: str) -> list[str]:
        if path not in self._folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        prefix = path + "/" if path else ""
        start = len(prefix)
        return sorted(
            name[start:]
            for names in (self._names, self._folders)
            for name in names
            if name and name.startswith(prefix) and "/" not in name[start:]
        )

    def mkdir(self, path: str, *, private: bool = False) -> None:
        steps = path.split("/")
        for depth in range(1, len(steps) + 1):
            folder = "/".join(steps[:depth])
            if folder in self._names:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), folder)
            if folder not in self._folders:
                self._change_names(("mkdir", folder, ""), None)

    def remove(self, *paths: str) -> None:
        for path in paths:
            if path in self._names:
                self._change_names(("remove", path, ""), None)

    async def discard(self, *paths: str) -> None:
        for path in paths:
            if self.exists(path):
                self._change_names(("discard", path, ""), None)

    def rename(self, source: str, target: str) -> None:
        if not self.exists(source) or _parent(target) not in self._folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        if source in self._folders and self.exists(target):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        self._change_names(("rename", source, target), None)

    def size(self, path: str) -> int:
        return len(self._inode_at(path).image)

    def read(self, path: str) -> bytes:
        return bytes(self._inode_at(path).image)

    def replace(self, path: str, data: Buffer) -> None:
        if _parent(path) not in self._folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        inode = _Inode()
        inode.change((0, bytes(data)))
        inode.commit(1)
        self._change_names(("create", path, ""), inode)
        self._commit_names(self._names_committed + len(self._journal))

    def lock(self, path: str) -> DiskLock:
        if path in self.locks:
            raise DirectoryInUse(f"{path} is locked by a live process; stop it or use another data directory")
        self.open(path, create=True).close()
        self.locks[path] = None
        return _MemoryLock(self, path)

    async def sync(self, files: Sequence[File]) -> None:
        marks = [(file, file.inode.changed()) for file in files if isinstance(file, MemoryFile)]
        names = self._names_committed + len(self._journal)
        generation = self.generation
        if self.on_sync is not None:
            await self.on_sync(files)
        if generation != self.generation:
            raise OSError(errno.EIO, "the process that asked for this sync was killed")
        self._commit(marks, names)

    def sync_now(self, files: Sequence[File]) -> None:
        marks = [(file, file.inode.changed()) for file in files if isinstance(file, MemoryFile)]
        for file, _ in marks:
            file.check_alive()
        self._commit(marks, self._names_committed + len(self._journal))

    def total_bytes(self) -> int:
        return self.capacity_bytes

    def available_bytes(self) -> int:
        return self.capacity_bytes - sum(len(inode.image) for inode in self._names.values())

    # -- names ----------------------------------------------------------------------------------------------------

    def _inode_at(self, path: str) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    def _change_names(self, name: _Name, inode: _Inode | None) -> None:
        _, path, target = name
        last = (target or path).rpartition("/")[2]
        if len(last.encode()) > NAME_BYTES_MAX:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), target or path)
        _apply_name(self._names, self._folders, name, inode)
        self._journal.append((name, inode))

    def _commit(self, marks: list[tuple[MemoryFile, int]], names: int) -> None:
        for file, up_to in marks:
            file.inode.commit(up_to)
        self._commit_names(names)

    def _commit_names(self, up_to: int) -> None:
        count = up_to - self._names_committed
        if count > 0:
            for name, inode in self._journal[:count]:
                _apply_name(self._durable_names, self._durable_folders, name, inode)
            del self._journal[:count]
            self._names_committed = up_to


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _apply_name(names: dict[str, _Inode], folders: dict[str, None], name: _Name, inode: _Inode | None) -> None:
    operation, path, target = name
    if operation == "create":
        if inode is not None:
            names[path] = inode
    elif operation == "mkdir":
        folders[path] = None
    elif operation == "remove":
        names.pop(path, None)
    elif operation == "discard":
        for table in (names, folders):
            for entry in [entry for entry in table if entry == path or entry.startswith(path + "/")]:
                del table[entry]
    elif path in names:
        names[target] = names.pop(path)
    elif path in folders:
        for entry in [entry for entry in names if entry.startswith(path + "/")]:
            names[target + entry[len(path) :]] = names.pop(entry)
        for entry in [entry for entry in folders if entry == path or entry.startswith(path + "/")]:
            del folders[entry]
            folders[target + entry[len(path) :]] = None
