"""Reactor: the process services of a node's shells: clock, random numbers, scope, callbacks, `fatal`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from barnabas.broker.scheduling.timers import Timer, Timers
from barnabas.errors import InvariantViolated
from barnabas.loggers import logger
from barnabas.ports import Clock, Rng
from barnabas.runtime.scope import Scope

log = logger("kafka.server")

STALL_MS: Final = 500  # a timer this late means that the process was suspended; work alone delays no timer so long
SOON_PASSES_MAX: Final = 10_000  # callbacks run in one wake-up before the loop serves other events


def stall_ms(clock: Clock, deadline_ms: int) -> int:
    """Delay of the timer of `deadline_ms` by the clock, if that is more than any work takes; else 0."""
    late_ms = clock.monotonic_ms() - deadline_ms
    return late_ms if late_ms > STALL_MS else 0


class ClientTime:
    """Clock and timers of client timeouts (group sessions, rebalances, transactions), which a test kit moves forward."""

    def __init__(self, clock: Clock, timers: Timers) -> None:
        self.clock = clock  # wall clock and monotonic clock
        self.timers = timers  # deadlines by that clock

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """As `Reactor.call_later`."""
        return self.timers.call_later(delay_ms, callback)

    def stall_ms(self, deadline_ms: int) -> int:
        """As `Reactor.stall_ms`."""
        return stall_ms(self.clock, deadline_ms)


class Reactor:
    """Clock, random numbers, scope and callbacks of one node.

    InvariantViolated from a callback is fatal; any other exception is logged and changes nothing else.
    """

    def __init__(
        self,
        clock: Clock,
        rng: Rng,
        *,
        name: str,
        on_fatal: Callable[[BaseException], None],
        client_clock: Clock | None = None,
    ) -> None:
        """Needs no event loop before `attach`. `on_fatal` gets the first error; `client_clock` is `clock` by default."""
        self.clock = clock  # wall clock and monotonic clock
        self.rng = rng  # random numbers and uuids
        self.scope = Scope(name, on_crash=self.fatal)  # the tasks of the node
        self.failure: BaseException | None = None  # the error that stopped the node, else None
        self._killed = False
        self._on_fatal = on_fatal
        self._loop: asyncio.AbstractEventLoop | None = None
        self._soon: list[Callable[[], None]] = []
        self._soon_due = False
        self.timers = Timers(clock, self._loop_call_later, self.fatal)
        self.client_time = (
            ClientTime(clock, self.timers)
            if client_clock is None
            else ClientTime(client_clock, Timers(client_clock, self._loop_call_later, self.fatal))
        )

    def attach(self) -> None:
        self._loop = asyncio.get_running_loop()

    def soon(self, callback: Callable[[], None]) -> None:
        """Runs the callback at the end of the present wake-up, after all connections that received bytes."""
        self._soon.append(callback)
        if not self._soon_due and self._loop is not None:
            self._soon_due = True
            self._loop.call_soon(self._run_soon)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Runs the callback after `delay_ms`; `cancel` of the returned timer prevents it."""
        return self.timers.call_later(delay_ms, callback)

    def stall_ms(self, deadline_ms: int) -> int:
        """How long the process was suspended when the timer of `deadline_ms` (monotonic) had to run; 0 if it was not."""
        return stall_ms(self.clock, deadline_ms)

    def next_turn(self, callback: Callable[[], None]) -> None:
        """Runs the callback in the next turn of the loop, after everything that has arrived by then."""
        (self._loop or asyncio.get_running_loop()).call_soon(callback)

    def run_beside(
        self,
        offload: Callable[[Callable[[], None]], Awaitable[None]],
        call: Callable[[], None],
        done: Callable[[Exception | None], None],
    ) -> None:
        """Runs C code by `offload`, in a task; then calls `done` with None or its exception, unless the node stops before."""

        async def run() -> None:
            failure: Exception | None = None
            try:
                await offload(call)
            except Exception as error:
                failure = error
            done(failure)

        if not self.scope.stopping:
            self.scope.start(run(), name="C code")

    def fatal(self, error: BaseException) -> None:
        """Stops serving and notifies the owner: the node cannot continue. Only the first error counts."""
        if self.failure is None and not self._killed:
            self.failure = error
            self._on_fatal(error)

    async def stop(self) -> None:
        """Ends every task, cancels every deadline and runs the pending callbacks of `soon`."""
        await self.scope.stop()
        self.timers.stop()
        self.client_time.timers.stop()
        self._run_soon()

    def kill(self) -> None:
        """Ends at once: no task, deadline or callback runs any more, and no later error is fatal."""
        self._killed = True
        self._soon.clear()
        self.timers.stop()
        self.client_time.timers.stop()
        self.scope.cancel()

    def _loop_call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return (self._loop or asyncio.get_running_loop()).call_later(delay_s, callback)

    def _run_soon(self) -> None:
        passes = 0
        soon = self._soon
        while soon:
            if passes > SOON_PASSES_MAX and self._loop is not None:
                self._loop.call_soon(self._run_soon)
                return
            ready, soon[:] = soon[:], []
            for callback in ready:
                passes += 1
                try:
                    callback()
                except InvariantViolated as error:
                    self.fatal(error)
                except Exception:  # a bug of one callback must not stop the others of this wake-up
                    log.exception("Callback failed at the end of a wake-up: callback=%r", callback)
        self._soon_due = False
