"""Moves the clocks of all brokers forward together, from one due timer to the next: each timer runs at its own time.
A member whose session ends after 45 s leaves the group empty then, so offsets expire seven days after that and not at the end of the jump.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from barnabas.ports import Clock
from barnabas.testing.core import Core
from barnabas.testing.errors import patience


class Travel:
    """The moved time of one broker; `machine` is the machine's clock."""

    def __init__(self, machine: Clock) -> None:
        self.offset_ms = 0  # ahead of the machine; never decreases
        self.clock: Clock = _MovedWall(machine, self)
        self.client_clock: Clock = _MovedBoth(machine, self)

    def move_to(self, offset_ms: int) -> None:
        self.offset_ms = max(self.offset_ms, offset_ms)


class _MovedWall:
    """Broker-to-broker timeouts (sessions, elections, replication) keep the machine's monotonic clock: no jump ends them."""

    __slots__ = ("_machine", "_travel", "monotonic_ms")

    def __init__(self, machine: Clock, travel: Travel) -> None:
        self._machine = machine
        self._travel = travel
        self.monotonic_ms = machine.monotonic_ms

    def now_ms(self) -> int:
        return self._machine.now_ms() + self._travel.offset_ms


class _MovedBoth:
    """Client timeouts (group sessions, transactions) move with the wall clock."""

    __slots__ = ("_machine", "_travel")

    def __init__(self, machine: Clock, travel: Travel) -> None:
        self._machine = machine
        self._travel = travel

    def now_ms(self) -> int:
        return self._machine.now_ms() + self._travel.offset_ms

    def monotonic_ms(self) -> int:
        return self._machine.monotonic_ms() + self._travel.offset_ms


STEPS_MAX: Final = 500  # due times on the way; the rest of the way is one jump
STEPS_S: Final = 8.0  # real time for them
WAIT_MS: Final = 2_000  # for the effects of one step


class Moved(Protocol):
    """The time of a cluster."""

    offset_ms: int  # how far its brokers are ahead of the machine


async def move_forward(core: Core, time: Moved, delta_ms: int) -> None:
    """Moves the time of all brokers; returns when due work is done. `delta_ms` is above 0.

    Retention, the cleaner and expiry run at the end; the cleaner also at the beginning, which starts the delete horizon of tombstones.
    """
    core.own("clock.advance")
    async with core.turn("clock.advance", factor=2):
        target_ms = time.offset_ms + delta_ms
        await _all(core, "begin_jump", {"wait_ms": WAIT_MS})
        await _walk(core, time, target_ms)
        await _move(core, time, target_ms)
        await _all(core, "check_logs", {})
        await _all(core, "expire_groups_and_ids", {"wait_ms": WAIT_MS})
        await _all(core, "clean_logs", {"wait_ms": WAIT_MS})


async def catch_up(core: Core, time: Moved, broker_id: int) -> None:
    """Gives a resumed broker the offset of the others."""
    if time.offset_ms:
        await core.command(broker_id, "move_clock", {"offset_ms": time.offset_ms, "wait_ms": 0})


async def _walk(core: Core, time: Moved, target_ms: int) -> None:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + STEPS_S * patience()
    following_ms = await _move(core, time, time.offset_ms)
    for _ in range(STEPS_MAX):
        if following_ms is None or following_ms >= target_ms or loop.time() > end_s:
            return
        following_ms = await _move(core, time, following_ms)


async def _move(core: Core, time: Moved, offset_ms: int) -> int | None:
    """Returns the next offset at which a timer is due."""
    time.offset_ms = max(time.offset_ms, offset_ms)
    arguments = {"offset_ms": time.offset_ms, "wait_ms": WAIT_MS}
    due = [each for each in await _all(core, "move_clock", arguments) if each is not None]
    return min(due, default=None)


async def _all(core: Core, name: str, arguments: dict[str, Any]) -> list[Any]:
    """Runs a command in all running brokers concurrently."""
    return await asyncio.gather(*(core.command(each, name, arguments) for each in core.running()))
