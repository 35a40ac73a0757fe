"""Ports to the operating system: clock, randomness, disk; `network_port` has the fourth. Only they call the system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    """Time in milliseconds. Deadlines use `monotonic_ms`, timestamps in files and on the wire `now_ms`."""

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
        """16 bytes of a version-4 UUID; never the reserved all-zero or all-zero-one ids."""
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

    Paths are relative with "/", e.g. "orders-0/00000000000000000000.log". Names above NAME_BYTES_MAX bytes raise
    ENAMETOOLONG.
    """

    @property
    def root(self) -> str:
        """Place of the directory, for messages: the absolute path of a real one."""
        ...

    def open(self, path: str, *, create: bool = False) -> File:
        """Raises FileNotFoundError if the file is missing and `create` is false."""
        ...

    def handle(self, path: str) -> File:
        """A handle for `sync` and `close`, which need not open the file. A missing one raises here or syncs nothing."""
        ...

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Names in a folder, sorted; "" is the root. FileNotFoundError if missing."""
        ...

    def mkdir(self, path: str, *, private: bool = False) -> None:
        """Creates the folder and its parents. `private`: a created one is readable only by the owner of the process."""
        ...

    def remove(self, *paths: str) -> None:
        """Removes files, many in parallel. No error for a missing one."""
        ...

    async def discard(self, *paths: str) -> None:
        """Removes files, and folders with their contents, in a thread. No error for a missing one."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Renames a file or a folder, replacing a file at `target`."""
        ...

    def size(self, path: str) -> int: ...

    def read(self, path: str) -> bytes:
        """The whole of a small file (checkpoints, properties)."""
        ...

    def replace(self, path: str, data: Buffer) -> None:
        """Writes a small file atomically and durably: a temporary file is synced and renamed, then the folder synced."""
        ...

    def lock(self, path: str) -> DiskLock:
        """Exclusive lock, as Java's FileChannel.lock (fcntl). Raises DirectoryInUse if another live process holds it."""
        ...

    async def sync(self, files: Sequence[File]) -> None:
        """Makes all earlier writes to `files` durable, with their folder entries, in a thread with other calls."""
        ...

    def sync_now(self, files: Sequence[File]) -> None:
        """As `sync`, blocking: only for start and clean stop."""
        ...

    def total_bytes(self) -> int:
        """Size of the volume, for DescribeLogDirs."""
        ...

    def available_bytes(self) -> int:
        """Free space of the volume, for DescribeLogDirs and to reject writes."""
        ...
