"""Three of the four ports of Barnabas to the operating system: clock, randomness, disk. The fourth is in `network_port`.

The ports are Protocol classes. `barnabas.runtime` has the real implementations, `barnabas.storage.disk` the memory disk, and
`barnabas.testing.simulation` the simulated ones. One composition root injects them (`broker/node/node.py`, the client's constructor).
Nothing else in the package calls `time`, `random`, `os.urandom`, `uuid4`, `open`, `loop.create_server` or similar functions.

Paths on a Disk are relative, separated by "/", e.g. "orders-0/00000000000000000000.log".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    """Time in milliseconds. Deadlines use `monotonic_ms`, timestamps in files and on the wire use `now_ms`."""

    def now_ms(self) -> int:
        """Wall clock: milliseconds since the Unix epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start; never goes back."""
        ...


class Rng(Protocol):
    """Source of every random decision; seeded in simulation."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...

    def randrange(self, stop: int) -> int:
        """An int in [0, stop)."""
        ...

    def uuid(self) -> bytes:
        """16 random bytes in the form of a version-4 UUID; never the reserved all-zero or all-zero-one ids."""
        ...


class File(Protocol):
    """An open file. Offsets and sizes are bytes. Every method may raise OSError."""

    @property
    def path(self) -> str: ...

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end of the file."""
        ...

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Writes all of `data` at `offset` or raises OSError. A failed call may have written a prefix."""
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class DiskLock(Protocol):
    """A held lock of a data directory."""

    def release(self) -> None: ...


NAME_BYTES_MAX: Final = 255  # of the name of a file or folder, without its parents
SECTOR_SIZE: Final = 512  # bytes that a disk writes atomically; a torn write ends at a multiple of it


class Disk(Protocol):
    """One data directory. Writes are durable only after `sync`; `replace` is durable when it returns.

    A name of more than NAME_BYTES_MAX bytes is refused with ENAMETOOLONG.
    """

    @property
    def root(self) -> str:
        """The place of the directory, for messages: the absolute path of a real directory."""
        ...

    def open(self, path: str, *, create: bool = False) -> File:
        """Opens a file for reading and writing. FileNotFoundError if it is missing and `create` is false."""
        ...

    def handle(self, path: str) -> File:
        """A handle for `sync` and `close` only, so that the file need not be opened on the loop. For a missing file this call raises
        FileNotFoundError, or the sync does nothing."""
        ...

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """The names in a folder, sorted. "" is the root. FileNotFoundError if the folder is missing."""
        ...

    def mkdir(self, path: str, *, private: bool = False) -> None:
        """Creates the folder and its parents. No error if the folder exists.

        Args:
            private: only the owner of the process may read a folder that this call creates.
        """
        ...

    def remove(self, *paths: str) -> None:
        """Removes files, in parallel if they are many. No error if a file is missing."""
        ...

    async def discard(self, *paths: str) -> None:
        """Removes files, and folders with their contents, in a thread. No error if one is missing."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Renames a file or a folder, replacing a file at `target`."""
        ...

    def size(self, path: str) -> int: ...

    def read(self, path: str) -> bytes:
        """The whole of a small file (checkpoints, properties)."""
        ...

    def replace(self, path: str, data: Buffer) -> None:
        """Writes a small file atomically and durably: to a temporary file, which is synced and renamed to `path`; then syncs the folder."""
        ...

    def lock(self, path: str) -> DiskLock:
        """Takes an exclusive lock as Java's FileChannel.lock does (fcntl).

        Raises:
            barnabas.errors.DirectoryInUse: another live process holds it.
        """
        ...

    async def sync(self, files: Sequence[File]) -> None:
        """Makes all earlier writes to `files` durable, with their folder entries. Runs in a thread, together with other calls."""
        ...

    def sync_now(self, files: Sequence[File]) -> None:
        """Does the same as `sync`, but blocks. Only for the start and a clean stop."""
        ...

    def total_bytes(self) -> int:
        """Size of the volume, for DescribeLogDirs."""
        ...

    def available_bytes(self) -> int:
        """Free space of the volume, for DescribeLogDirs and to refuse writes."""
        ...
