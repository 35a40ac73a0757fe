"""BrokerDisk and DiskFault: what a test writes about the disk of one broker.

    kafka.disk(2).fail("fsync", errno.EIO, path="orders-0/*")
    kafka.disk(2).full()

Driven by: a test, from any thread. Emits: faults of disks to `Surroundings`, in the kit's thread.

Each call takes about a millisecond, so a coroutine may use it. What the broker does with an error is what Kafka does: it takes the log
directory offline, and stops if it has no other.
"""

from __future__ import annotations

import errno as errnos
from types import TracebackType
from typing import Any, Final, Self

from barnabas.testing.errors import KitError, unknown
from barnabas.testing.world.disks import CALLS
from barnabas.testing.world.surroundings import DiskState, Surroundings

__all__ = ["BrokerDisk", "DiskFault"]

SECONDS_MAX: Final = 3_600.0


class DiskFault:
    """One fault of a disk. With `with`, its end removes it."""

    def __init__(self, world: Surroundings, state: DiskState) -> None:
        self._world = world
        self._state = state

    @property
    def hits(self) -> int:
        """How many calls have failed."""
        self._world.host.wait(self._world.settled(self._state.broker))
        return self._state.count

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls that have failed, the first 1,000: broker, call and path."""
        self._world.host.wait(self._world.settled(self._state.broker))
        return list(self._state.met)

    def remove(self) -> None:
        """No further call fails."""
        self._world.host.wait(self._world.remove_disk_faults([self._state]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<{self._state.call} fails on broker {self._state.broker}, path {self._state.path!r}>"


class BrokerDisk:
    """The disk of one broker: all its log directories, or one of them."""

    def __init__(self, world: Surroundings, broker_id: int, log_dir: int | None = None) -> None:
        self._world = world
        self._broker = broker_id
        self._log_dir = log_dir

    def fail(self, call: str, errno: int = errnos.EIO, *, times: int | None = 1, path: str = "*") -> DiskFault:
        """Calls of the disk fail.

        Args:
            call: "fsync", "write", "read" or "open".
            errno: of the failure, for example errno.EIO.
            times: how many fail; None: all.
            path: pattern of paths relative to the log directory, for example "orders-0/*"; "*" also means the metadata log.

        Raises:
            KitError: an argument is wrong; the text has the nearest right word.
        """
        if call not in CALLS:
            raise KitError(unknown("call of a disk", call, CALLS))
        if isinstance(errno, bool) or errno not in errnos.errorcode:
            raise KitError(f"errno {errno!r} is unknown; use one of the module errno, for example errno.EIO")
        if times is not None and (isinstance(times, bool) or not isinstance(times, int) or times < 1):
            raise KitError(f"times={times!r}: a number from 1; times=None lets all calls fail")
        if not isinstance(path, str) or not path:
            raise KitError(f"path={path!r}: write a pattern as text, for example 'orders-0/*'")
        return self._add(DiskState(self._broker, call, int(errno), path, -1 if times is None else times))

    def full(self) -> DiskFault:
        """The disk has no room left: writes fail with ENOSPC, until `free`."""
        return self._add(DiskState(self._broker, "full", errnos.ENOSPC))

    def free(self) -> None:
        """The disk has room again."""
        self._remove("full")

    def slow(self, seconds: float) -> DiskFault:
        """Every fsync takes this much longer; `slow(0)` ends that."""
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= SECONDS_MAX:
            raise KitError(f"slow({seconds!r}): write a number of seconds from 0 to {SECONDS_MAX:g}")
        self._remove("slow")
        return self._add(DiskState(self._broker, "slow", seconds=float(seconds)))

    def flip_bit(self, topic: str, partition: int = 0, *, offset: int) -> None:
        """Flips a bit of a record on the disk, as a worn-out disk does.

        Args:
            offset: of the record; the bit is in the data of its batch, so the checksum of the batch becomes wrong.

        Raises:
            KitError: the broker is down, or has no such record.
        """
        arguments = {"topic": topic, "partition": partition, "offset": offset}
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise KitError(f"offset={offset!r}: write the offset of a record, a number from 0")
        core = self._world.host.core()
        problem = self._world.host.wait(core.command(self._broker, "flip_bit", arguments))
        if problem:
            raise KitError(f"broker {self._broker}: {problem}")

    def heal(self) -> None:
        """Removes every fault of this disk. A bit that was flipped stays; a broker that has stopped needs a restart."""
        self._remove(None)

    def _add(self, state: DiskState) -> DiskFault:
        state.log_dir = self._log_dir
        self._world.host.wait(self._world.add_disk_fault(state))
        return DiskFault(self._world, state)

    def _remove(self, call: str | None) -> None:
        states = [
            each
            for each in self._world.disks
            if each.broker == self._broker and call in (None, each.call) and self._log_dir in (None, each.log_dir)
        ]
        self._world.host.wait(self._world.remove_disk_faults(states))

    def __repr__(self) -> str:
        one = "" if self._log_dir is None else f", log directory {self._log_dir}"
        return f"<disk of broker {self._broker}{one}>"
