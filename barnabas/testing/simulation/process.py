"""Process: the owner of tasks, timers and connections, in a world where all processes share one loop.

Every task, timer and transport inherits the process from its context, as a context variable. The timers and deliveries of a dead
process never run. Its tasks are cancelled, and calls of their `finally` blocks to the ports fail.

Invariants: ports are cut before tasks are cancelled. A process dies once. A dead process has no effect on the world.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
from collections.abc import Callable
from typing import Any

_CANCELLATIONS_MAX = 100  # a task that still runs after this number of cancellations is dropped

_CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("simulated_process", default=None)


class ProcessDead(OSError):
    """A dead process called one of its ports."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the process is dead")


def current_process(context: contextvars.Context | None = None) -> Process | None:
    """The process of the running code, or of the given context; None for the world itself."""
    return _CURRENT.get() if context is None else context.get(_CURRENT)


def check_alive() -> None:
    """Raises ProcessDead if the running code belongs to a dead process."""
    process = current_process()
    if process is not None and not process.alive:
        raise ProcessDead


class Process:
    """One incarnation of a program on a machine.

    Attributes:
        label: name and incarnation, e.g. "broker-1#3", for the trace.
        context: the context of its code.
        alive: False after it was killed or has ended.
        parked: callbacks that became ready during a pause; None while it runs.
        callback_ns: how long each of its callbacks takes; the next one runs after that time.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.alive = True
        self.parked: list[asyncio.Handle] | None = None
        self.callback_ns = 0
        self.context = contextvars.copy_context()
        self.context.run(_CURRENT.set, self)
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._cuts: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Process {self.label}{'' if self.alive else ' (dead)'}>"

    def on_death(self, cut: Callable[[], None]) -> None:
        """Registers a function that cuts one of the process's ports."""
        self._cuts.append(cut)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Adds a task. A task that starts after the process's death is cancelled at once."""
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        if not self.alive:
            self._drop(task)

    def die(self) -> None:
        """Cuts the ports, then cancels the tasks in creation order, including the calling task."""
        if not self.alive:
            return
        self.alive = False
        self.parked = None
        for cut in self._cuts:
            cut()
        contextvars.Context().run(
            self._cancel_all, _CANCELLATIONS_MAX
        )  # a context without a process: cancellation continues after death

    def _cancel_all(self, rounds: int) -> None:
        """Cancels tasks again that wait again: a task that closes its clients waits at each of them."""
        for task in list(self._tasks):
            self._drop(task)
        if self._tasks and rounds:
            next(iter(self._tasks)).get_loop().call_soon(self._cancel_all, rounds - 1)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not self.alive and not task.cancelled():
            task.exception()  # marks it as retrieved: errors of a dead process's tasks are not reported

    def _drop(self, task: asyncio.Task[Any]) -> None:
        task._log_destroy_pending = False  # type: ignore[attr-defined] # a task that resists cancellation is dropped without a warning
        task.cancel()
