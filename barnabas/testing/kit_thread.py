"""The kit's thread: one event loop for all cluster handles and blocking clients, started on first use; a forked child starts its own."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from barnabas.runtime.loop_thread import LoopThread
from barnabas.testing.errors import KitError, KitTimeout

H = TypeVar("H")
P = ParamSpec("P")
T = TypeVar("T")

_thread: LoopThread | None = None
_owner = 0  # process id of the thread's process
_kept: dict[object, Callable[[], None]] = {}  # what is ended with the process, in the order of its start


def loop_thread() -> LoopThread:
    global _thread, _owner
    if _thread is None or _owner != os.getpid() or not _thread.alive:
        if _owner != os.getpid():
            _kept.clear()
            atexit.register(_end_all, os.getpid())
        _thread, _owner = LoopThread("barnabas-kit"), os.getpid()
    return _thread


def wait(work: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
    """Runs a coroutine in the kit's thread and blocks until it ends.

    Raises:
        KitTimeout: it took longer.
        KitError: the caller is a callback of the kit's thread itself.
    """
    try:
        return loop_thread().run(work, timeout_s, "a call of the test kit")
    except KitTimeout:
        raise
    except TimeoutError as error:
        raise KitTimeout(str(error)) from None
    except RuntimeError as error:
        if isinstance(error, (NotImplementedError, RecursionError)):
            raise
        raise KitError(str(error)) from error


async def wait_async(work: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
    """Runs a coroutine in the kit's thread and waits for it in the caller's loop: asyncio's or trio's. Raises KitTimeout."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return await _wait_on_trio(work, timeout_s)
    future = loop_thread().submit(work)
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            return await asyncio.wrap_future(future)
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise KitTimeout(f"a call of the test kit did not end within {timeout_s:g} s") from error


async def _wait_on_trio(work: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
    try:
        run_sync = import_module("trio.to_thread").run_sync
    except ImportError:
        work.close()
        raise KitError("the test kit's coroutines run on asyncio or trio; use the blocking methods elsewhere") from None
    result: T = await run_sync(wait, work, timeout_s)
    return result


class Aio(Generic[H]):
    """The methods of a handle that wait, as coroutines for asyncio and trio. `limit_s`: of a method without a parameter `timeout`."""

    def __init__(self, of: H, limit_s: float = 0.0) -> None:
        self._of = of
        self._limit_s = limit_s


def coroutine(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Makes a method that coroutines of any loop can await: its body runs in the kit's thread, `_limit_s` of its object at most.

    A method with a parameter `timeout` has no other limit.
    """

    @functools.wraps(work)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await wait_async(work(*args, **kwargs), _limit(work, args[0]))

    return call


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], *, waits_for_application: bool = False
) -> Callable[Concatenate[Any, P], T]:
    """The blocking form of a method of `.aio` that `coroutine` has made, for the class with the property `aio`.

    `waits_for_application`: refuse it in a coroutine, because it would stop the loop in which the application may run.
    """
    work: Callable[..., Coroutine[Any, Any, T]] = method.__wrapped__  # type: ignore[attr-defined]  # set by functools.wraps

    @functools.wraps(method)
    def call(handle: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        hint = ""
        if _in_coroutine():
            hint = f"it stops the event loop: write `await {handle._called}.aio.{method.__name__}(…)`"
            if waits_for_application:
                raise KitError(f"{handle._called}.{method.__name__}() in a coroutine: {hint}")
        try:
            return wait(work(handle.aio, *args, **kwargs), _limit(work, handle.aio))
        except KitTimeout as error:
            if not hint:
                raise
            raise KitTimeout(f"{error}. The call is in a coroutine: {hint}") from error

    return call


def _limit(work: Callable[..., Any], aio: Any) -> float | None:
    if "timeout" in work.__code__.co_varnames:
        return None
    limit_s: float = aio._limit_s
    return limit_s


def _in_coroutine() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def keep(owner: object, end: Callable[[], None]) -> None:
    """Calls `end` at the end of this process, unless `release` was called for the owner."""
    loop_thread()
    _kept[owner] = end


def release(owner: object) -> None:
    """The owner has been ended."""
    _kept.pop(owner, None)


def kept() -> list[object]:
    """What is still to be ended, in the order of its start."""
    return list(_kept) if _owner == os.getpid() else []


def _end_all(pid: int) -> None:
    """At the end of the process: ends what is left, the latest first."""
    if os.getpid() != pid:
        return
    while _kept:
        owner, end = _kept.popitem()
        try:
            end()
        except Exception as error:  # the others must be ended, too
            import logging

            logging.getLogger(__name__).error("%r was not ended: %s", owner, error)
