"""The four ports through which Barnabas reaches the world: clock, randomness, disk, network.

Protocol classes only. The real ones live in `barnabas.runtime`, the memory disk in `barnabas.storage.disk`, the simulated
ones in `barnabas.testing.simulation`. They are injected at one composition root (`broker/node.py`, the client's constructor);
nothing else in the package calls `time`, `random`, `os.urandom`, `uuid4`, `open` or `loop.create_server` and kin.

Paths on a Disk are relative, separated by "/", e.g. "orders-0/00000000000000000000.log".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

__all__ = [
    "NAME_BYTES_MAX",
    "PLAIN_LISTENER",
    "Buffer",
    "Clock",
    "Disk",
    "DiskLock",
    "File",
    "Listener",
    "ListenerOptions",
    "Network",
    "Rng",
]

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


NAME_BYTES_MAX: Final = 255  # of a file or folder, without those above it


class Disk(Protocol):
    """One data directory. Writes are durable only after `sync`; `replace` is durable when it returns.

    A name of more than NAME_BYTES_MAX bytes is refused with ENAMETOOLONG.
    """

    @property
    def root(self) -> str:
        """Where it is, in words for people: the absolute path of a real one."""
        ...

    @property
    def boot_id(self) -> str:
        """Another one after every event that may lose what was written and not synced; "" where that cannot be told."""
        ...

    def open(self, path: str, *, create: bool = False) -> File:
        """Opens for reading and writing. FileNotFoundError where it is missing and `create` is false."""
        ...

    def handle(self, path: str) -> File:
        """A file of which only `sync` and `close` are asked, so that it need not be opened on the loop. A missing one has nothing to
        sync, or raises FileNotFoundError here."""
        ...

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Names in a folder, sorted. "" is the root. FileNotFoundError where there is no such folder."""
        ...

    def mkdir(self, path: str) -> None:
        """Makes the folder and its parents; no error where it exists."""
        ...

    def remove(self, *paths: str) -> None:
        """Removes files, many of them in parallel; no error where one is missing."""
        ...

    async def discard(self, *paths: str) -> None:
        """Removes files, and folders with all in them, off the loop; no error where one is missing."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Renames a file or a folder, replacing a file at `target`."""
        ...

    def size(self, path: str) -> int: ...

    def read(self, path: str) -> bytes:
        """The whole of a small file (checkpoints, properties)."""
        ...

    def replace(self, path: str, data: Buffer) -> None:
        """Writes a small file atomically and durably: aside, synced, renamed over `path`, folder synced."""
        ...

    def lock(self, path: str) -> DiskLock:
        """Takes an exclusive lock as Java's FileChannel.lock does (fcntl).

        Raises:
            barnabas.errors.DirectoryInUse: another live process holds it.
        """
        ...

    async def sync(self, files: Sequence[File]) -> None:
        """Makes everything written to `files` before this call durable, with their folder entries. Off the loop; grouped."""
        ...

    def sync_now(self, files: Sequence[File]) -> None:
        """The same, blocking: at start-up and at a clean stop only."""
        ...

    def total_bytes(self) -> int:
        """Size of the volume, for DescribeLogDirs."""
        ...

    def available_bytes(self) -> int:
        """Free space of the volume, for DescribeLogDirs and refusals before a write."""
        ...


class Listener(Protocol):
    """A bound address."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port really bound (port 0 asks for a free one)."""
        ...

    async def accept(self) -> None:
        """Accepts connections from here on, where `listen` was told not to yet. OSError where the address is taken."""
        ...

    def pause(self) -> None:
        """Takes no more connections until `resume`; those that come wait. Within `factory` it holds from the next one on."""
        ...

    def resume(self) -> None:
        """Takes connections again, those that wait first."""
        ...

    def close(self) -> None:
        """Stops accepting; open connections stay."""
        ...


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """How a listener's sockets are set up. Simulated networks have no such sockets.

    Attributes:
        backlog: connections that the kernel keeps before they are accepted (at most net.core.somaxconn on Linux).
        send_buffer_bytes, receive_buffer_bytes: SO_SNDBUF and SO_RCVBUF of its connections; -1 leaves them to the kernel.
        descriptors_left: descriptors that it leaves free for other listeners, above those that are reserved for files.
    """

    backlog: int = 1_024
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    descriptors_left: int = 0


PLAIN_LISTENER = ListenerOptions()


class Network(Protocol):
    """Streams between nodes and clients, driven by asyncio protocols (plain or buffered)."""

    async def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        accept: bool = True,
        options: ListenerOptions = ...,
    ) -> Listener:
        """Serves `factory()` per connection; where not `accept`, connections are refused until `Listener.accept`.
        OSError where the address is taken."""
        ...

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """OSError where nothing listens. Time-outs are the caller's (`asyncio.timeout`)."""
        ...
