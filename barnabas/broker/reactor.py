"""Reactor: what every shell of a node needs from the process: clock, rng, scope, `soon`, `call_later`, the next turn, `fatal`.

Driven by: the asyncio loop, and by the node, which attaches the loop at its start and stops or kills the reactor at its end.
Emits: callbacks. Those of `soon` run at the end of the present wake-up, those of `call_later` at their deadline, those of
`next_turn` in the next turn of the loop, after whatever has arrived by then.

An InvariantViolated that a callback raises is fatal; any other exception is logged and ends nothing. The reactor holds no parts of the
node: a shell that needs one takes it as an argument of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from barnabas.broker.waiting import Timer, Timers
from barnabas.errors import InvariantViolated
from barnabas.ports import Clock, Rng
from barnabas.runtime.scope import Scope

__all__ = ["Reactor"]

log = logging.getLogger(__name__)

SOON_PASSES_MAX: Final = 10_000  # callbacks in one wake-up before the loop serves others


class Reactor:
    """See the module.

    Attributes:
        clock: wall clock and monotonic clock.
        rng: the source of random numbers and uuids.
        scope: the tasks of the node.
        failure: what made the node stop by itself, else None.
    """

    def __init__(self, clock: Clock, rng: Rng, *, name: str, on_fatal: Callable[[BaseException], None]) -> None:
        """Touches no loop.

        Args:
            name: of the scope, for messages.
            on_fatal: called once, with the first error that `fatal` gets.
        """
        self.clock = clock
        self.rng = rng
        self.scope = Scope(name, on_crash=self.fatal)
        self.failure: BaseException | None = None
        self._on_fatal = on_fatal
        self._loop: asyncio.AbstractEventLoop | None = None
        self._soon: list[Callable[[], None]] = []
        self._soon_due = False
        self.timers = Timers(clock, self._loop_call_later, self.fatal)

    def attach(self) -> None:
        """The running loop is the node's from now on."""
        self._loop = asyncio.get_running_loop()

    def soon(self, callback: Callable[[], None]) -> None:
        """Runs it at the end of the present wake-up, after every connection that received something."""
        self._soon.append(callback)
        if not self._soon_due and self._loop is not None:
            self._soon_due = True
            self._loop.call_soon(self._run_soon)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Runs it after `delay_ms`; the result's `cancel` prevents it."""
        return self.timers.call_later(delay_ms, callback)

    def next_turn(self, callback: Callable[[], None]) -> None:
        """Runs it in the next turn of the loop."""
        (self._loop or asyncio.get_running_loop()).call_soon(callback)

    def fatal(self, error: BaseException) -> None:
        """The node cannot go on: it stops serving and tells its owner. Only the first error counts."""
        if self.failure is None:
            self.failure = error
            self._on_fatal(error)

    async def stop(self) -> None:
        """Ends every task, forgets every deadline and runs what `soon` has still to run."""
        await self.scope.stop()
        self.timers.stop()
        self._run_soon()

    def kill(self) -> None:
        """Ends at once: no task, deadline or callback goes on."""
        self._soon.clear()
        self.timers.stop()
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
                except Exception:
                    log.exception("%r failed at the end of a wake-up", callback)
        self._soon_due = False
