"""SimDisk: the Disk port of one simulated process: a machine's memory disk with delays and a trace.

Each `sync` takes a time drawn from the seed, some of them a long time. Syncs run one after another, as on a device. The memory disk
survives the process: it has the contents, simulates kills and power losses, and raises faults (`fail`).

Invariants: a dead process changes nothing, neither through the disk nor through an open file.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence

from barnabas.ports import Buffer, DiskLock, File
from barnabas.storage.disk import MemoryDisk
from barnabas.testing.simulation.clock import SimRng
from barnabas.testing.simulation.loop import SimLoop
from barnabas.testing.simulation.process import ProcessDead

SYNC_MIN_US = 200
SYNC_MAX_US = 5_000
SLOW_SYNC_MAX_US = 200_000  # a device during its internal garbage collection
_SLOW_ONE_IN = 8
_US_PER_S = 1_000_000


class SimFile:
    """An open file of a simulated process."""

    __slots__ = ("_disk", "inner")

    def __init__(self, disk: SimDisk, inner: File) -> None:
        self._disk = disk
        self.inner = inner

    @property
    def path(self) -> str:
        return self.inner.path

    def pread(self, size: int, offset: int) -> bytes:
        self._disk.check_alive()
        return self.inner.pread(size, offset)

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._disk.change(f"pwrite {self.path} {offset} {len(data)} {zlib.crc32(data):08x}")
        self.inner.pwrite(data, offset)

    def truncate(self, size: int) -> None:
        self._disk.change(f"truncate {self.path} {size}")
        self.inner.truncate(size)

    def size(self) -> int:
        self._disk.check_alive()
        return self.inner.size()

    def close(self) -> None:
        self.inner.close()


class SimDisk:
    """The Disk port of one process on a simulated machine.

    Args:
        name: the machine's name, for the trace.
        memory: the machine's disk.
        loop: its virtual time passes during `sync`.
        rng: draws the duration of a sync.
        before_change: called before each change with the text of its trace event; may kill the process.
        pause_s: seconds that each sync takes in addition to its drawn time.
    """

    def __init__(
        self,
        name: str,
        memory: MemoryDisk,
        loop: SimLoop,
        rng: SimRng,
        before_change: Callable[[str], None] | None = None,
        pause_s: Callable[[], float] | None = None,
    ) -> None:
        self._name = name
        self._memory = memory
        self._loop = loop
        self._rng = rng
        self._alive = True
        self._before_change = before_change
        self._pause_s = pause_s
        self._busy_until_s = 0.0

    @property
    def root(self) -> str:
        return self._memory.root

    def cut(self) -> None:
        """Ends the port after the process's death: no later call has an effect."""
        self._alive = False

    def check_alive(self) -> None:
        if not self._alive:
            raise ProcessDead

    def change(self, what: str) -> None:
        """Adds the next change to the trace. Raises ProcessDead for a dead process."""
        self.check_alive()
        if self._before_change is not None:
            self._before_change(what)
            self.check_alive()
        self._loop.trace.note(self._loop.now_ns, f"disk {self._name} {what}")

    def open(self, path: str, *, create: bool = False) -> File:
        self.check_alive()
        if create and not self._memory.exists(path):
            self.change(f"create {path}")
        return SimFile(self, self._memory.open(path, create=create))

    def handle(self, path: str) -> File:
        return self.open(path)

    def exists(self, path: str) -> bool:
        self.check_alive()
        return self._memory.exists(path)

    def listdir(self, path: str) -> list[str]:
        self.check_alive()
        return self._memory.listdir(path)

    def mkdir(self, path: str, *, private: bool = False) -> None:
        self.change(f"mkdir {path}")
        self._memory.mkdir(path)

    def remove(self, *paths: str) -> None:
        for path in paths:
            self.change(f"remove {path}")
            self._memory.remove(path)

    async def discard(self, *paths: str) -> None:
        """Removes one path after the other, each in its own turn of the loop: a crash may happen between any two."""
        for path in paths:
            self.change(f"discard {path}")
            await self._memory.discard(path)
            await asyncio.sleep(0)

    def rename(self, source: str, target: str) -> None:
        self.change(f"rename {source} {target}")
        self._memory.rename(source, target)

    def size(self, path: str) -> int:
        self.check_alive()
        return self._memory.size(path)

    def read(self, path: str) -> bytes:
        self.check_alive()
        return self._memory.read(path)

    def replace(self, path: str, data: Buffer) -> None:
        self.change(f"replace {path} {len(data)} {zlib.crc32(data):08x}")
        self._memory.replace(path, data)

    def lock(self, path: str) -> DiskLock:
        self.change(f"lock {path}")
        return self._memory.lock(path)

    async def sync(self, files: Sequence[File]) -> None:
        """Makes files durable. The device runs one sync after another."""
        self.change(f"sync {' '.join(file.path for file in files)}")
        self._memory.on_sync = self._wait
        await self._memory.sync([file.inner if isinstance(file, SimFile) else file for file in files])
        self.change("synced")

    def sync_now(self, files: Sequence[File]) -> None:
        self.change(f"sync_now {' '.join(file.path for file in files)}")
        self._memory.sync_now([file.inner if isinstance(file, SimFile) else file for file in files])

    def total_bytes(self) -> int:
        self.check_alive()
        return self._memory.total_bytes()

    def available_bytes(self) -> int:
        self.check_alive()
        return self._memory.available_bytes()

    async def _wait(self, files: Sequence[File]) -> None:
        longest = SLOW_SYNC_MAX_US if self._rng.randrange(_SLOW_ONE_IN) == 0 else SYNC_MAX_US
        delay_us = SYNC_MIN_US + self._rng.randrange(longest - SYNC_MIN_US + 1)
        pause_s = self._pause_s() if self._pause_s is not None else 0.0
        self._busy_until_s = max(self._busy_until_s, self._loop.time()) + delay_us / _US_PER_S + pause_s
        await asyncio.sleep(self._busy_until_s - self._loop.time())
