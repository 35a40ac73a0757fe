"""Scope: a group of tasks, started and cancelled in creation order.
asyncio.TaskGroup and asyncio.wait iterate over sets, ordered by memory address: a simulated run would not repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from barnabas.errors import LocalProtocolError

T = TypeVar("T")


class Scope:
    """A group of tasks and of inner scopes. No task runs after `stop` has returned.

    Used as `async with Scope("node 1") as scope:` or through `start` … `await stop()`. The end of the block cancels
    running tasks; await `join()` inside the block to let them finish first. The first exception of a task cancels the
    others.

    Args:
        name: prefix of the tasks' names, for logs.
        on_crash: called with the first exception of a task. `join` and the end of the `async with` block raise it, too.
            Without any of these, the loop's exception handler receives it.
    """

    __slots__ = (
        "_body",
        "_children",
        "_crash",
        "_crash_waiters",
        "_interrupted",
        "_on_crash",
        "_parent",
        "_stopping",
        "_tasks",
        "_waiters",
        "name",
    )

    def __init__(self, name: str, *, on_crash: Callable[[BaseException], None] | None = None) -> None:
        self.name = name
        self._on_crash = on_crash
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a dict keeps creation order, a set would not
        self._children: dict[Scope, None] = {}
        self._parent: Scope | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._crash: BaseException | None = None
        # `async with` blocks and joins that will raise the crash: with one, the loop's handler is not called
        self._crash_waiters = 0
        self._stopping = False
        self._body: asyncio.Task[Any] | None = None  # the task inside `async with`, interrupted by a crash
        self._interrupted = False

    @property
    def crash(self) -> BaseException | None:
        return self._crash

    @property
    def stopping(self) -> bool:
        """A cancelled scope starts no new tasks."""
        return self._stopping

    def __len__(self) -> int:
        """Running tasks, including those of inner scopes."""
        return len(self._tasks) + sum(len(child) for child in self._children)

    def start(self, coroutine: Coroutine[Any, Any, T], *, name: str = "task") -> asyncio.Task[T]:
        """Raises LocalProtocolError if the scope is stopping."""
        if self._stopping:
            coroutine.close()
            raise LocalProtocolError(f"scope {self.name!r} is stopping, task {name!r} cannot start")
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self.name}/{name}")
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    def child(self, name: str, *, on_crash: Callable[[BaseException], None] | None = None) -> Scope:
        """An inner scope. Without `on_crash` its crash is this scope's, too. Raises LocalProtocolError when stopping."""
        if self._stopping:
            raise LocalProtocolError(f"scope {self.name!r} is stopping, scope {name!r} cannot start")
        scope = Scope(f"{self.name}/{name}", on_crash=on_crash or self._crashed)
        scope._parent = self
        self._children[scope] = None
        return scope

    def cancel(self) -> None:
        """Cancels every task but the calling one, in creation order, inner scopes first; returns at once."""
        self._stopping = True
        for child in list(self._children):
            child.cancel()
        current = _current_task()
        for task in list(self._tasks):
            if task is not current:
                task.cancel()
        self._wake_waiters()

    async def stop(self) -> None:
        """Cancels and awaits every task but the calling one. Does not raise their exceptions."""
        self.cancel()
        await self._ended()

    async def join(self) -> None:
        """Waits until every task has ended; raises the first crash."""
        self._crash_waiters += 1
        try:
            await self._ended()
        finally:
            self._crash_waiters -= 1
        if self._crash is not None:
            raise self._crash

    async def __aenter__(self) -> Scope:
        self._crash_waiters += 1
        self._body = asyncio.current_task()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        body, self._body = self._body, None
        self.cancel()
        try:
            await self._ended()
        finally:
            self._crash_waiters -= 1
            if self._interrupted and body is not None:
                body.uncancel()
        if self._crash is not None and (error is None or isinstance(error, asyncio.CancelledError)):
            raise self._crash
        return False

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._crashed(error)
        self._wake_waiters()

    def _crashed(self, error: BaseException) -> None:
        if self._crash is not None:
            return
        self._crash = error
        if self._on_crash is not None:
            self._on_crash(error)
        elif not self._crash_waiters:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"a task of scope {self.name!r} crashed", "exception": error}
            )
        elif self._body is not None:
            self._interrupted = True
            self._body.cancel()
        self.cancel()

    def _wake_waiters(self) -> None:
        """Wakes waiters of this scope and its parents. Removes a stopped, empty scope from its parent."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
        parent = self._parent
        if parent is not None:
            if self._stopping and not self._tasks and not self._children:
                self._parent = None
                parent._children.pop(self, None)
            parent._wake_waiters()

    def _running(self, ignored: asyncio.Task[Any] | None) -> bool:
        return any(task is not ignored for task in self._tasks) or any(
            child._running(ignored) for child in self._children
        )

    async def _ended(self) -> None:
        current = _current_task()
        while self._running(current):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # called outside a running loop, as when a test tears down
        return None
