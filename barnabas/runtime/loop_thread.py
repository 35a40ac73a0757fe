"""LoopThread: an event loop in its own thread, with blocking calls into it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from barnabas.runtime.loop import loop_factory

T = TypeVar("T")

END_S: Final = 10.0  # the loop's present callback must return within this time, at an end or a pause
LAST_TURNS: Final = 3  # turns of the loop in which closed transports release their sockets


class LoopThread:
    """A daemon thread with a loop, started at once. No task or transport is left when `end` returns, also from a pause."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._loop = loop_factory()()
        self._gate: threading.Event | None = None  # set: the loop is paused
        self._last: Callable[[], None] | None = None
        self._ending = False
        self._stopped = False  # the loop has a stop request
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def paused(self) -> bool:
        return self._gate is not None

    @property
    def alive(self) -> bool:
        return not self._ending and self._thread.is_alive()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts a coroutine on the loop. Raises RuntimeError if the thread has ended."""
        if not self.alive:
            work.close()
            raise RuntimeError(f"thread {self.name} has ended")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None, what: str) -> T:
        """Runs a coroutine on the loop and waits for its result.

        Raises:
            TimeoutError: not within `timeout_s`; it is cancelled. The text begins with `what`.
            RuntimeError: the caller is the loop's own thread, or the thread has ended.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(f"{what}: a callback of thread {self.name} cannot wait for that thread")
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            if future.done():  # the coroutine itself has raised it
                raise
            future.cancel()
            raise TimeoutError(f"{what} did not end within {timeout_s:g} s") from None
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], None]) -> None:
        """Runs a function in the loop's next turn, without waiting; no effect after the end."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def pause(self) -> None:
        """Stops the loop until `resume`, as SIGSTOP would. Raises TimeoutError if its present callback does not return."""
        if self._gate is not None or not self.alive:
            return
        gate, stands = threading.Event(), threading.Event()

        def stand() -> None:
            stands.set()
            gate.wait()
            if self._ending:
                self._end_now()

        self._gate = gate
        self.call(stand)
        if not stands.wait(END_S):
            self.resume()
            raise TimeoutError(f"thread {self.name} did not stop within {END_S:g} s")

    def resume(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.set()

    def end_soon(self, last: Callable[[], None] | None = None) -> None:
        """As `end`, without waiting."""
        if not self._ending:
            self._last = last
            self._ending = True
            if self._gate is None:
                self.call(self._end_now)
            self.resume()

    def end(self, last: Callable[[], None] | None = None) -> None:
        """Runs `last` on the loop, cancels every task and ends the thread. Raises TimeoutError if a task hangs."""
        self.end_soon(last)
        if threading.current_thread() is not self._thread:
            self._thread.join(END_S)
            if self._thread.is_alive():
                raise TimeoutError(f"thread {self.name} did not end within {END_S:g} s")

    def _end_now(self) -> None:
        # The end of a pause may call this again; a second stop would interrupt the cancellation.
        if self._stopped:
            return
        self._stopped = True
        last, self._last = self._last, None
        try:
            if last is not None:
                last()
        finally:
            self._loop.stop()

    def _main(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._ending = True
            self._loop.run_until_complete(self._cancel_tasks())
            self._loop.close()

    async def _cancel_tasks(self) -> None:
        """Cancels all other tasks in creation order, and lets closed transports release their sockets."""
        mine = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not mine]
        for task in tasks:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S / 2):
                await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)
