"""Process: whose callback it is, in a world where all processes share one loop.

Driven by: the world, which starts and kills; the loop, which asks before it runs a timer.
Emits: cancellation of the process's tasks, in creation order, when it dies.

Every task, timer and transport inherits the process from its context, as it does a context variable. A dead process's
timers and deliveries never run; its tasks are cancelled, and what their `finally` blocks try reaches ports that are cut.

Invariants: ports are cut before anything is cancelled; a process dies once; nothing of a dead one reaches the world.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
from collections.abc import Callable
from typing import Any

__all__ = ["Process", "ProcessDead", "current_process"]

_BURIALS_MAX = 100  # a task that outlives so many cancellations is dropped as it is

_CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("simulated_process", default=None)


class ProcessDead(OSError):
    """A dead process tried to reach the world through one of its ports."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the process is dead")


def current_process(context: contextvars.Context | None = None) -> Process | None:
    """The process that the running code, or the given context, belongs to; None for the world itself."""
    return _CURRENT.get() if context is None else context.get(_CURRENT)


class Process:
    """One incarnation of a program on a machine.

    Attributes:
        label: name and incarnation, e.g. "broker-1#3"; stands in the trace.
        context: the context its code runs in.
        alive: False from the moment it is killed or has ended.
        parked: while it is paused, what has become ready for it; else None.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.alive = True
        self.parked: list[asyncio.Handle] | None = None
        self.context = contextvars.copy_context()
        self.context.run(_CURRENT.set, self)
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._cuts: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Process {self.label}{'' if self.alive else ' (dead)'}>"

    def on_death(self, cut: Callable[[], None]) -> None:
        """Registers what cuts one of the process's ports."""
        self._cuts.append(cut)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Takes a task into account; one started after death is cancelled at once."""
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        if not self.alive:
            self._bury(task)

    def die(self) -> None:
        """Cuts the ports, then cancels the tasks in creation order. The caller's own task, if it is one of them, too."""
        if not self.alive:
            return
        self.alive = False
        self.parked = None
        for cut in self._cuts:
            cut()
        contextvars.Context().run(self._bury_all, _BURIALS_MAX)  # a context of no process: burials go on after death

    def _bury_all(self, rounds: int) -> None:
        """Cancels again what waits again: a task that closes its clients on the way out meets a wait at every step."""
        for task in list(self._tasks):
            self._bury(task)
        if self._tasks and rounds:
            next(iter(self._tasks)).get_loop().call_soon(self._bury_all, rounds - 1)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not self.alive and not task.cancelled():
            task.exception()  # marks it as seen: how a dead process's tasks ended is nobody's business

    def _bury(self, task: asyncio.Task[Any]) -> None:
        task._log_destroy_pending = False  # type: ignore[attr-defined] # a task that resists cancellation is dropped unheard
        task.cancel()
