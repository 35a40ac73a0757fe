"""LoginSteps: queue of a node's long login steps, run one after the other in a thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Offload

_Done: TypeAlias = Callable[[Exception | None], None]


class LoginSteps:
    """At most one step per open connection; `offload` runs one."""

    def __init__(self, reactor: Reactor, offload: Offload) -> None:
        self._reactor = reactor
        self._offload = offload
        self._waiting: dict[int, tuple[Callable[[], None], _Done]] = {}  # in the order of arrival
        self._number = 0
        self._running = False

    def __len__(self) -> int:
        return len(self._waiting)

    def run(self, work: Callable[[], None], done: _Done) -> Callable[[], None]:
        """Runs `work` later, then `done` with None or its exception. Returns a cancel function."""
        self._number += 1
        number = self._number
        self._waiting[number] = work, done
        self._next()
        return lambda: self._forget(number)

    def _forget(self, number: int) -> None:
        self._waiting.pop(number, None)

    def _next(self) -> None:
        if self._running or not self._waiting:
            return
        self._running = True
        work, done = self._waiting.pop(next(iter(self._waiting)))
        self._reactor.run_beside(self._offload, work, partial(self._ended, done))

    def _ended(self, done: _Done, failure: Exception | None) -> None:
        self._running = False
        self._next()
        done(failure)
