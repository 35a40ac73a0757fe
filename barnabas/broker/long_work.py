"""LongWork: runs long C calls in a thread, one piece of work at a time, in steps between which the loop serves others.

Driven by: the Produce handler, with the inspection of a long batch as a generator of steps (`storage/steps`); ListOffsets and loading
coordinators, with the decompression of a large batch. Emits: the result.

Two mechanisms split long work. `slices` is for Python code over many elements: it counts units and stays on the loop, and several
works take turns. This one is for one large element whose C code releases Python's lock. The C code runs in a thread, if the
node was given one (in the simulation it runs in place); the Python code is split into steps, one in each turn of the loop.

This module also counts the cost of batches that are inspected at once in the present turn, so that many of them do not make it long.

Invariants: one piece of work runs at a time, so that memory stays within the buffers of one batch; pieces end in the
order in which they began; a connection has at most one, because its request blocks it. Work whose result is no longer needed is
dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from barnabas.broker.reactor import Reactor
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.storage.steps import Steps

__all__ = ["FREE_COST", "LongWork", "Offload", "in_place"]

log = logging.getLogger(__name__)

TURN_COST_MAX: Final = 8_192  # of the batches that all requests append in one wake-up (`AppendInfo.cost`): 4 ms
FREE_COST: Final = 64  # of a batch, not counted: the usual cost of a request
COMPRESSED_COST: Final = 512  # of decompressing a batch

Offload = Callable[[Callable[[], None]], Awaitable[None]]
T = TypeVar("T")


async def in_place(work: Callable[[], None]) -> None:
    """The Offload of a node without threads."""
    work()


class LongWork:
    """The long work of one node. The module docstring describes it.

    Attributes:
        turn_is_over: whether the present wake-up has inspected enough: requests continue in the next one.
    """

    def __init__(self, reactor: Reactor, offload: Offload) -> None:
        self._reactor = reactor
        self._offload = offload
        self._queue: deque[_Job[Any]] = deque()
        self._busy = False
        self._spent = 0
        self.turn_is_over = False

    # -- at once

    def count(self, cost: int, *, compressed: bool) -> None:
        """Counts an inspection of a batch in the present wake-up, with the cost of the walk over its records."""
        cost = max(cost - FREE_COST, 0) + (COMPRESSED_COST if compressed else 0)
        if cost:
            if not self._spent:
                self._reactor.soon(self._begin_turn)
            self._spent += cost
            self.turn_is_over = self._spent >= TURN_COST_MAX

    def _begin_turn(self) -> None:
        self._spent = 0
        self.turn_is_over = False

    # -- in steps

    def begin(self, steps: Steps[T], done: Callable[[T | BrokerError], None]) -> Callable[[], None]:
        """Runs the steps, then calls `done` with their result, or with the BrokerError that they raised.

        Returns:
            A function that cancels the work.
        """
        job = _Job(steps, done)
        self._queue.append(job)
        if not self._busy and not self._reactor.scope.stopping:
            self._busy = True
            self._reactor.scope.start(self._run(), name="long work")
        return job.cancel

    def run(self, work: Callable[[], None], done: Callable[[], None]) -> Callable[[], None]:
        """Runs one piece of C code, which never raises, then calls `done`; returns what `begin` returns."""

        def steps() -> Steps[None]:
            yield work

        return self.begin(steps(), lambda _outcome: done())

    async def _run(self) -> None:
        while self._queue:
            job = self._queue.popleft()
            outcome: object
            try:
                outcome = await self._perform(job)
            except BrokerError as error:
                outcome = error.with_traceback(None)  # its frames hold this variable: a cycle
            except Exception:  # a bug of ours costs one request, not the node
                log.exception("long work failed")
                outcome = BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR)
            if not job.cancelled:
                try:
                    job.done(outcome)
                except InvariantViolated:
                    raise
                except Exception:  # as above
                    log.exception("the callback of long work failed")
            job.steps.close()
        self._busy = False

    async def _perform(self, job: _Job[T]) -> T | None:
        while not job.cancelled:
            try:
                work = next(job.steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if work is None:
                await asyncio.sleep(0)
            else:
                await self._offload(work)
        return None


class _Job(Generic[T]):
    __slots__ = ("cancelled", "done", "steps")

    def __init__(self, steps: Steps[T], done: Callable[[T | BrokerError], None]) -> None:
        self.steps = steps
        self.done = done
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
