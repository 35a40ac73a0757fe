"""SimDisk: the disk of one simulated machine: a memory disk with faults, delays and a trace.

Each `sync` takes a time drawn from the seed, some of them a long time. Syncs run one after another, as on a device.

Invariants: a dead process changes nothing, neither through the disk nor through an open file.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence

from barnabas.ports import Buffer, DiskLock, File
from barnabas.testing.simulation.clock import SimRng
from barnabas.testing.simulation.loop import SimLoop
from barnabas.testing.simulation.process import check_alive
from barnabas.testing.world.disks import FaultyMemoryDisk

SYNC_MIN_US = 200
SYNC_MAX_US = 5_000
SLOW_SYNC_MAX_US = 200_000  # a device during its internal garbage collection
_SLOW_ONE_IN = 8
_US_PER_S = 1_000_000
_READS = ("pread", "open", "listdir", "read")


class SimDisk(FaultyMemoryDisk):
    """The disk of a machine, and the Disk port of its processes.

    Attributes:
        before_change: called before each change with the text of its trace event; may kill the process.

    Args:
        name: the machine's name, for the trace.
        loop: its virtual time passes during `sync`.
        rng: draws the duration of a sync.
    """

    def __init__(self, name: str, loop: SimLoop, rng: SimRng) -> None:
        super().__init__(f"/{name}")
        self.before_change: Callable[[str], None] = _nothing
        self._name = name
        self._loop = loop
        self._rng = rng
        self._busy_until_s = 0.0

    @property
    def faulty(self) -> bool:
        """True: every call is checked, for the trace."""
        return True

    def before(self, call: str, paths: Sequence[str], place: tuple[int, int], data: Buffer) -> None:
        """Adds a change to the trace. Raises ProcessDead for a dead process."""
        check_alive()
        if call in _READS:
            return
        what = f"{call} {' '.join(paths)} {place[0]} {place[1]} {zlib.crc32(data):08x}"
        self.before_change(what)
        check_alive()
        self._loop.trace.note(self._loop.now_ns, f"disk {self._name} {what}")

    async def discard(self, *paths: str) -> None:
        """Removes one path after the other, each in its own turn of the loop: a crash may happen between any two."""
        for path in paths:
            await super().discard(path)
            await asyncio.sleep(0)

    def lock(self, path: str) -> DiskLock:
        self.before("lock", (path,), (0, 0), b"")
        return super().lock(path)

    async def sync(self, files: Sequence[File]) -> None:
        """Makes files durable. The device runs one sync after another; a fault shows at its end."""
        self.before("sync", [each.path for each in files], (0, 0), b"")
        self.real.on_sync = self._wait
        await self._sync(files)
        self.before("synced", (), (0, 0), b"")

    async def _wait(self, files: Sequence[File]) -> None:
        longest = SLOW_SYNC_MAX_US if self._rng.randrange(_SLOW_ONE_IN) == 0 else SYNC_MAX_US
        delay_us = SYNC_MIN_US + self._rng.randrange(longest - SYNC_MIN_US + 1)
        slowed_s = self._slowed_s(files)
        self._busy_until_s = max(self._busy_until_s, self._loop.time()) + delay_us / _US_PER_S + slowed_s
        await asyncio.sleep(self._busy_until_s - self._loop.time())
        self._check_sync(files)


def _nothing(what: str) -> None:
    """The default callback, which does nothing."""
