"""A thread with an event loop of its own, and calls into it from other threads.

`pause` stops everything that runs on the loop, as SIGSTOP stops a process: the kernel still accepts connections and bytes for it.
A wait has a deadline, so no caller waits without limit.

Invariants: no task and no transport of the loop is left when `end` returns. `end` also works while the loop is paused; then nothing
of the loop runs before the function that is given to `end`.
"""

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
    """See the module. The thread starts at once; it is a daemon, so it never prevents the end of the process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._loop = loop_factory()()
        self._gate: threading.Event | None = None  # set: the loop is paused
        self._last: Callable[[], None] | None = None
        self._ending = False
        self._stopped = False  # the loop was told to stop
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def paused(self) -> bool:
        """Whether it was paused and not resumed."""
        return self._gate is not None

    @property
    def alive(self) -> bool:
        """Whether it accepts calls."""
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
            TimeoutError: it has not ended within `timeout_s`; it is cancelled. The text begins with `what`.
            RuntimeError: the caller is the loop's own thread, which would wait for itself; or the thread has ended.
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
        """Runs a function in the loop's next turn, without waiting for it; does nothing after the end."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def pause(self) -> None:
        """Stops the loop until `resume`; returns when it stands. Raises TimeoutError if its present callback does not return."""
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
        """Continues after `pause`; does nothing without one."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.set()

    def end_soon(self, last: Callable[[], None] | None = None) -> None:
        """Does what `end` does, without waiting for it."""
        if not self._ending:
            self._last = last
            self._ending = True
            if self._gate is None:
                self.call(self._end_now)
            self.resume()

    def end(self, last: Callable[[], None] | None = None) -> None:
        """Runs `last` on the loop, then cancels every task and ends the thread. Does nothing if it has ended.

        Raises:
            TimeoutError: a callback or a task does not return.
        """
        self.end_soon(last)
        if threading.current_thread() is not self._thread:
            self._thread.join(END_S)
            if self._thread.is_alive():
                raise TimeoutError(f"thread {self.name} did not end within {END_S:g} s")

    def _end_now(self) -> None:
        # The end of a pause may call this a second time; a second stop would interrupt the cancelling of the tasks.
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
