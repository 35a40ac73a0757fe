"""BrokerDisk and DiskFault: disk faults of one broker."""

from __future__ import annotations

import asyncio
import errno as errnos
from typing import Any, Final, Self

from barnabas.testing.backend import LOSSES, Lose
from barnabas.testing.errors import (
    KitError,
    KitTimeout,
    NearestNames,
    checked_number,
    checked_seconds,
    named_arguments,
    unknown,
)
from barnabas.testing.extension import settle
from barnabas.testing.kit_thread import Aio, blocking, coroutine
from barnabas.testing.world.disks import CALLS, CHANGE, PARTS_DONE, SPACE, DiskRule, PartDone
from barnabas.testing.world.surroundings import DiskState, Surroundings

SECONDS_MAX: Final = 3_600.0
WAIT_S: Final = 10.0


class DiskFaultAio(Aio["DiskFault"]):
    """The coroutine of a disk fault."""

    @coroutine
    async def wait(self, hits: int = 1, timeout: float = WAIT_S) -> DiskFault:
        """Returns when `hits` calls have met it; if it kills, when the broker is down. Raises KitTimeout after `timeout` seconds."""
        fault, state = self._of, self._of._state
        checked_number("wait: hits", hits)
        timeout = checked_seconds("wait: timeout", timeout, zero=True)
        if 0 <= state.rule.times < hits:
            raise KitError(
                f"wait: hits={hits}: this fault meets {state.rule.times} at most; write times={hits} where it begins"
            )
        try:
            async with asyncio.timeout(timeout):
                await fault._world.met(state, hits)
        except TimeoutError:
            end = ", and the broker has not ended" if state.rule.effect == "kill" and state.count else ""
            raise KitTimeout(f"{fault}: {state.count} of {hits} calls within {timeout:g} s{end}") from None
        return fault


class DiskFault(NearestNames):
    """One fault of a disk. With `with`, its end removes it."""

    def __init__(self, world: Surroundings, state: DiskState) -> None:
        self._world = world
        self._state = state

    @property
    def hits(self) -> int:
        """How many calls have met it."""
        self._settle()
        return self._state.count

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls that have met it, the first 1,000: broker, call, path; offset and size of the bytes that it reads or writes."""
        self._settle()
        return list(self._state.met)

    def _settle(self) -> None:
        settle(self._world.host.wait, self._world.settled(self._state.broker))

    @property
    def aio(self) -> DiskFaultAio:
        """The method that waits, as a coroutine."""
        return DiskFaultAio(self)

    _called = "fault"
    wait = blocking(DiskFaultAio.wait, waits_for_application=True)

    def remove(self) -> None:
        """No further call meets it."""
        self._world.host.wait(self._world.remove_disk_faults([self._state]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<{self._state}>"


class BrokerDisk(NearestNames):
    """The disk of one broker: all its log directories, or one of them.

    The calls are "write" (also the creation of a file or a folder, and a truncation), "fsync", "rename", "remove", "read", "open" and
    "change", which is each of the first four. A `path` is a pattern of paths relative to the log directory, for example "orders-0/*"; "*"
    also means the metadata log.
    """

    def __init__(self, world: Surroundings, broker_id: int, log_dir: int | None = None) -> None:
        self._world = world
        self._broker = broker_id
        self._log_dir = log_dir

    @named_arguments
    def fail(
        self,
        call: str,
        errno: int = errnos.EIO,
        *,
        nth: int = 1,
        times: int | None = 1,
        path: str = "*",
        strict: bool = True,
    ) -> DiskFault:
        """Calls of the disk fail.

        Args:
            call: see the class.
            errno: of the failure, for example errno.EIO.
            nth: the first call that fails, counted from now on and again from each start of the broker.
            times: how many fail; None: all.
            path: see the class.
            strict: the test fails if no call has met it.

        Raises KitError: an argument is wrong; the text has the nearest right word.
        """
        _check(call, path, nth, strict)
        if isinstance(errno, bool) or errno not in errnos.errorcode:
            raise KitError(f"errno {errno!r} is unknown; use one of the module errno, for example errno.EIO")
        if times is not None and (isinstance(times, bool) or not isinstance(times, int) or times < 1):
            raise KitError(f"times={times!r}: a number from 1; times=None lets all calls fail")
        left = -1 if times is None else times
        return self._add("fail", call, number=int(errno), path=path, skip=nth - 1, times=left, strict=strict)

    @named_arguments
    def kill(
        self,
        call: str,
        *,
        nth: int = 1,
        done: PartDone = "nothing",
        lose: Lose = "nothing",
        path: str = "*",
        strict: bool = True,
    ) -> DiskFault:
        """The broker ends at a call of its disk, as SIGKILL does. The end is no failure of the test; `restart` starts the broker again.

        Args:
            call: see the class.
            nth: the number of the call, counted from now on and again from each start of the broker.
            done: how much of the call is done: "nothing"; "half": the first half of the bytes of a write; "all": the broker ends
                before it can do anything else.
            lose: "page_cache": it also loses what it has not synced, as in a power loss.
            path: see the class.
            strict: the test fails if the broker was not killed.

        Raises KitError: an argument is wrong; the text has the nearest right word.
        """
        _check(call, path, nth, strict)
        if done not in PARTS_DONE:
            raise KitError(unknown("part of a call that is done", done, PARTS_DONE))
        if lose not in LOSSES:
            raise KitError(unknown("loss", lose, LOSSES))
        if done == "half" and call not in ("write", CHANGE):
            raise KitError(f"kill({call!r}, done='half'): only a write has a half; write done='nothing' or done='all'")
        if done == "half" and lose == "page_cache":
            raise KitError("kill(done='half', lose='page_cache'): the half is lost, too; write done='nothing'")
        return self._add("kill", call, path=path, skip=nth - 1, times=1, done=done, lose=lose, strict=strict)

    @named_arguments
    def watch(self, call: str = CHANGE, *, path: str = "*") -> DiskFault:
        """Counts calls of the disk, and does nothing to them: `hits` and `calls` of the result."""
        _check(call, path)
        return self._add("watch", call, path=path)

    def full(self) -> DiskFault:
        """The disk has no room left: writes fail with ENOSPC, until `free`."""
        return self._add("fail", SPACE, number=errnos.ENOSPC)

    def free(self) -> None:
        """The disk has room again."""
        self._remove(SPACE)

    @named_arguments
    def slow(self, seconds: float, call: str = "fsync", *, path: str = "*") -> DiskFault:
        """Every such call takes this much longer; `slow(0)` ends that.

        Nothing else of a broker runs during a call that is no fsync, as with a real disk.
        """
        _check(call, path)
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= SECONDS_MAX:
            raise KitError(f"slow({seconds!r}): write a number of seconds from 0 to {SECONDS_MAX:g}")
        self._remove(call, "slow")
        return self._add("slow", call, path=path, seconds=float(seconds))

    def flip_bit(self, topic: str, partition: int = 0, *, offset: int) -> None:
        """Flips a bit of a record on the disk, as a worn-out disk does.

        `offset`: of the record; the bit is in the data of its batch, so the checksum of the batch becomes wrong. Raises KitError: the
        broker is down, or has no such record.
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

    def _add(self, effect: str, call: str, *, strict: bool = False, **rule: Any) -> DiskFault:
        state = DiskState(self._broker, DiskRule(0, effect, (call,), log_dir=self._log_dir, **rule), strict)
        self._world.host.wait(self._world.add_disk_fault(state))
        return DiskFault(self._world, state)

    def _remove(self, call: str | None, effect: str | None = None) -> None:
        states = [
            each
            for each in self._world.disks
            if each.broker == self._broker
            and (call is None or call in each.rule.calls)
            and effect in (None, each.rule.effect)
            and self._log_dir in (None, each.rule.log_dir)
        ]
        self._world.host.wait(self._world.remove_disk_faults(states))

    def __repr__(self) -> str:
        one = "" if self._log_dir is None else f", log directory {self._log_dir}"
        return f"<disk of broker {self._broker}{one}>"


def _check(call: object, path: object, nth: object = 1, strict: object = True) -> None:
    """Raises KitError for a wrong argument that several methods have."""
    if call not in CALLS:
        raise KitError(unknown("call of a disk", call, CALLS))
    if not isinstance(path, str) or not path:
        raise KitError(f"path={path!r}: write a pattern as text, for example 'orders-0/*'")
    checked_number("nth", nth, 1)
    if not isinstance(strict, bool):
        raise KitError(f"strict={strict!r}: True or False")
