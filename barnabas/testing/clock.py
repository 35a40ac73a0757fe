"""KafkaClock: the time of a cluster's brokers, `kafka.clock.advance(hours=25)`.

The clocks of all brokers move forward together, from one due timer to the next: each timer runs at its own time.
A member whose session ends after 45 s leaves the group empty then, so offsets expire seven days after that and not at the end of the jump.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from barnabas.runtime.clock import SystemClock
from barnabas.testing.core import Core
from barnabas.testing.errors import KitError, named_arguments, patience
from barnabas.testing.extension import Commands, Extension
from barnabas.testing.kit_thread import Aio, blocking, coroutine

if TYPE_CHECKING:
    from barnabas.testing.running import Running

DAYS_MAX: Final = 36_525  # 100 years, of all jumps together
STEPS_MAX: Final = 500  # due times on the way; the rest of the way is one jump
STEPS_S: Final = 8.0  # real time for them
WAIT_MS: Final = 2_000  # for the effects of one step
FORM: Final = "for example advance(hours=25) or advance(0.5)"


class ClockAio(Aio["KafkaClock"]):
    """The coroutine of a clock, for asyncio and trio."""

    @coroutine
    @named_arguments
    async def advance(
        self,
        by: float | timedelta = 0,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        """Moves the time of all brokers forward and returns when due work is done.

        Retention, the log cleaner, expiry of offsets, producer ids and transactional ids, group sessions and transaction timeouts run in
        the order of their times. Connections, replication, elections and clients keep the machine's time. `by` is seconds or a timedelta;
        the named units are added.

        Raises:
            KitError: not above 0 ms, no number, or more than 100 years in all.
            NotPossible: the brokers were started elsewhere.
        """
        clock = self._of
        core = clock._cluster.core()
        if clock not in core.extensions:
            raise KitError(
                "this clock is of brokers that have ended, and the cluster was started again: use kafka.clock"
            )
        jump_ms = clock.checked_ms(by, days=days, hours=hours, minutes=minutes, seconds=seconds)
        await _move_forward(core, clock, jump_ms)


class KafkaClock(Extension):
    """The brokers' time: as fast as the machine's, and moved forward by tests."""

    _called = "kafka.clock"

    def __init__(self, cluster: Running) -> None:
        self._cluster = cluster
        self.offset_ms = 0
        self.refusal = ""  # why this cluster's time must not be moved

    @property
    def aio(self) -> ClockAio:
        """The methods as coroutines."""
        return ClockAio(self, self._cluster._limit_s)

    @property
    def ahead(self) -> timedelta:
        """How far the brokers are ahead of the machine."""
        return timedelta(milliseconds=self.offset_ms)

    def now(self) -> datetime:
        """The brokers' wall clock in UTC."""
        return datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC) + self.ahead

    advance = blocking(ClockAio.advance)

    async def on_resumed(self, broker_id: int) -> None:
        """For the kit: a broker that was paused gets the time of the others."""
        if self.offset_ms:
            arguments = {"offset_ms": self.offset_ms, "wait_ms": 0}
            await self._cluster.core().command(broker_id, "move_clock", arguments)

    def before_start(self, broker_id: int) -> Commands:
        """For the kit: a broker starts with the time of the others."""
        return [("start_clock", {"offset_ms": self.offset_ms})]

    def checked_ms(self, by: float | timedelta, **units: float) -> int:
        """For the kit: the length of a jump in milliseconds. Raises KitError as `advance`."""
        if self.refusal:
            raise KitError(self.refusal)
        total_s = 0.0
        for name, value in (("by", by.total_seconds() if isinstance(by, timedelta) else by), *units.items()):
            if (
                isinstance(value, bool) or not isinstance(value, (int, float)) or value != value
            ):  # NaN differs from itself
                raise KitError(f"clock.advance({name}={value!r}): write a number, {FORM}")
            if value < 0:
                raise KitError(f"clock.advance({name}={value!r}): time goes forward only, {FORM}")
            if value > DAYS_MAX * 86_400:
                raise KitError(f"clock.advance({name}={value!r}): brokers can be at most {DAYS_MAX} days ahead")
            total_s += value * timedelta(**{"seconds" if name == "by" else name: 1}).total_seconds()
        if total_s * 1000 < 1:
            raise KitError(f"clock.advance: the jump is {total_s:g} s; it must be 1 ms or longer, {FORM}")
        if (self.ahead.total_seconds() + total_s) > DAYS_MAX * 86_400:
            raise KitError(
                f"clock.advance: the brokers would be {self.ahead.total_seconds() + total_s:g} s ahead; "
                f"{DAYS_MAX} days are possible"
            )
        return round(total_s * 1000)


async def _move_forward(core: Core, time: KafkaClock, delta_ms: int) -> None:
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


async def _walk(core: Core, time: KafkaClock, target_ms: int) -> None:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + STEPS_S * patience()
    following_ms = await _move(core, time, time.offset_ms)
    for _ in range(STEPS_MAX):
        if following_ms is None or following_ms >= target_ms or loop.time() > end_s:
            return
        following_ms = await _move(core, time, following_ms)


async def _move(core: Core, time: KafkaClock, offset_ms: int) -> int | None:
    """Returns the next offset at which a timer is due."""
    time.offset_ms = max(time.offset_ms, offset_ms)
    arguments = {"offset_ms": time.offset_ms, "wait_ms": WAIT_MS}
    due = [each for each in await _all(core, "move_clock", arguments) if each is not None]
    return min(due, default=None)


async def _all(core: Core, name: str, arguments: dict[str, Any]) -> list[Any]:
    """Runs a command in all running brokers concurrently."""
    return await asyncio.gather(*(core.command(each, name, arguments) for each in core.running()))
