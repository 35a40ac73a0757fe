"""SimLoop: an asyncio event loop whose time is virtual.

Time does not pass while a callback is ready, and jumps to the next timer when none is. Ready callbacks run first in, first
out; timers by (deadline, order of creation). Futures, tasks, locks, timeouts and context variables are asyncio's own.
Methods that reach the real system (threads, executors, file descriptors, sockets, signals, subprocesses, name resolution)
raise NotSimulated.

Invariants: no wall clock, no thread, no randomness. An unhandled exception ends the run. A deadlock ends it, too (no ready callback, no
timer and no result), and so does a livelock (callbacks run without end and time does not pass).
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NoReturn, TypeVar

from barnabas.errors import BarnabasError
from barnabas.testing.simulation.process import Process, ProcessDead, current_process
from barnabas.testing.simulation.trace import Trace

T = TypeVar("T")

CALLBACKS_PER_INSTANT_MAX = 2_000_000  # callbacks at one virtual time: far more than any real load needs
_CLOSING_ROUNDS_MAX = 100  # cancellations of a task; one that still runs after them is dropped
_CANCELLED_TIMERS_MIN = 256  # with fewer cancelled timers the heap is not cleaned
_NS = 1_000_000_000


class NotSimulated(BarnabasError):
    """Simulated code called a function of the real system."""


class Deadlock(BarnabasError):
    """No callback is ready, no timer is set, and the run has no result."""


class Livelock(BarnabasError):
    """Callbacks run without end, and time does not pass."""


class TimeIsUp(BarnabasError):
    """The run's limit of virtual time has passed."""


class UnhandledError(BarnabasError):
    """An exception reached the loop's handler. It is the cause of this one."""


def _of_the_dead(error: BaseException | None) -> bool:
    """Whether the cause of an error is the cut port of a dead process. Garbage collection may report such an error later."""
    while error is not None:
        if isinstance(error, ProcessDead):
            return True
        error = error.__cause__ or error.__context__
    return False


def _forbidden(what: str) -> Any:
    """A method of the loop that raises NotSimulated."""

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise NotSimulated(f"the simulated loop has no {what}")

    return refuse


class SimLoop(asyncio.AbstractEventLoop):
    """The simulated loop. See the module. `trace` gets an event for each timer that fires."""

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = trace if trace is not None else Trace()
        self.callbacks_run = 0
        self._now_ns = 0
        self._sequence = 0
        self._ready: deque[tuple[asyncio.Handle, Process | None]] = deque()
        self._timers: list[tuple[int, int, asyncio.TimerHandle, Process | None]] = []
        self._cancelled_timers = 0
        self._running = False
        self._stopping = False
        self._closed = False
        self._process: Process | None = None  # the process of the running callback
        self._failure: BaseException | None = None
        self._exception_handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._task_number = 0

    # -- time ------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds since the loop was created."""
        return self._now_ns / _NS

    @property
    def now_ns(self) -> int:
        """Virtual nanoseconds since the loop was created."""
        return self._now_ns

    # -- running ---------------------------------------------------------------------------------------------------

    def run_until_complete(self, future: Generator[Any, None, T] | Coroutine[Any, Any, T] | Any) -> Any:
        """Runs until the future is done; returns its result.

        Raises:
            Deadlock, Livelock, UnhandledError: the run cannot or must not continue.
        """
        return self.run(future)

    def run(self, main: Any, *, time_limit_s: float | None = None) -> Any:
        """Does the same as `run_until_complete`, with a limit of virtual time.

        Raises:
            TimeIsUp: there is no result after `time_limit_s` virtual seconds.
        """
        self._check_open()
        future = main if isinstance(main, asyncio.Future) else self.create_task(main, name="main")
        limit = None if time_limit_s is None else self._now_ns + round(time_limit_s * _NS)
        self._loop_while(lambda: not future.done(), limit)
        if not future.done():
            raise TimeIsUp("the loop was stopped before its result was there")
        return future.result()

    def run_forever(self) -> None:
        """Runs until `stop`."""
        self._check_open()
        self._stopping = False
        self._loop_while(lambda: True, None)

    def stop(self) -> None:
        """Ends the run after the callbacks that are ready now."""
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Cancels all tasks and runs ready callbacks until the tasks end. Drops tasks that would need time, without a warning."""
        if self._closed:
            return
        asyncio._set_running_loop(self)
        try:
            for _ in range(_CLOSING_ROUNDS_MAX):
                left = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
                if not left:
                    break
                for task in left:
                    task._log_destroy_pending = False  # type: ignore[attr-defined] # no warning
                    task.cancel()
                for _ in range(len(self._ready)):
                    handle, self._process = self._ready.popleft()
                    if not handle.cancelled():
                        handle._run()
        finally:
            asyncio._set_running_loop(None)
        self._failure = None
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    async def shutdown_asyncgens(self) -> None:
        """Does nothing: the code that iterates an asynchronous generator closes it."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Does nothing: there is no executor."""

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        if self._running:
            raise RuntimeError("This event loop is already running")

    def _loop_while(self, unfinished: Callable[[], bool], limit_ns: int | None) -> None:
        self._running = True
        self._stopping = False
        instant, since = self._now_ns, self.callbacks_run
        asyncio._set_running_loop(self)
        try:
            while unfinished() and not self._stopping:
                self._run_once(limit_ns)
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure
                if self._now_ns != instant:
                    instant, since = self._now_ns, self.callbacks_run
                elif self.callbacks_run - since > CALLBACKS_PER_INSTANT_MAX:
                    raise Livelock(
                        f"{self.callbacks_run - since} callbacks ran at {self.time():.6f} s and time stands still"
                    )
        finally:
            asyncio._set_running_loop(None)
            self._running = False
            self._process = None

    def _run_once(self, limit_ns: int | None) -> None:
        ready, timers = self._ready, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
            self._cancelled_timers -= 1
        if not ready:
            if not timers:
                raise Deadlock(f"nothing will ever happen again after {self.time():.6f} s; waiting: {self._waiting()}")
            if limit_ns is not None and timers[0][0] > limit_ns:
                self._now_ns = limit_ns
                raise TimeIsUp(
                    f"the limit of virtual time is reached at {self.time():.6f} s; waiting: {self._waiting()}"
                )
            self._now_ns = max(self._now_ns, timers[0][0])
        while timers and timers[0][0] <= self._now_ns:
            when, sequence, handle, process = heapq.heappop(timers)
            if handle.cancelled():
                self._cancelled_timers -= 1
            elif process is None or process.alive:
                self.trace.note(self._now_ns, f"timer {sequence} {process.label if process else '-'} {when}")
                ready.append((handle, process))
        for _ in range(len(ready)):
            handle_, process = ready.popleft()
            if process is not None and process.parked is not None:
                process.parked.append(handle_)
            elif not handle_.cancelled():
                self._process = process
                self.callbacks_run += 1
                handle_._run()
                if self._failure is not None:
                    return
                if process is not None and process.callback_ns and process.alive and process.parked is None:
                    process.parked = []
                    self._call_at_ns(self._now_ns + process.callback_ns, self.wake, (process,), contextvars.Context())

    def wake(self, process: Process) -> None:
        """Resumes a paused process: its callbacks that became ready during the pause run now, in their order."""
        parked, process.parked = process.parked or [], None
        self._ready.extend((handle, process) for handle in parked)

    def _waiting(self) -> str:
        names = sorted(task.get_name() for task in asyncio.all_tasks(self))
        return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") or "no task"

    # -- scheduling ------------------------------------------------------------------------------------------------

    def call_soon(  # type: ignore[override] # typeshed's *args are type variables
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Runs the callback after those that are ready now."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        process = current_process(context)
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append((handle, process))
        return handle

    def call_later(  # type: ignore[override] # typeshed's *args are type variables
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Runs the callback `delay` virtual seconds from now."""
        return self._call_at_ns(self._now_ns + round(delay * _NS), callback, args, context)

    def call_at(  # type: ignore[override] # typeshed's *args are type variables
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Runs the callback when `time()` is `when`."""
        return self._call_at_ns(round(when * _NS), callback, args, context)

    def _call_at_ns(
        self, when_ns: int, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> asyncio.TimerHandle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        process = current_process(context)
        handle = asyncio.TimerHandle(when_ns / _NS, callback, args, self, context)
        handle._scheduled = True  # type: ignore[attr-defined] # so that cancel() tells us
        self._sequence += 1
        heapq.heappush(self._timers, (when_ns, self._sequence, handle, process))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by a handle's cancel(). Removes cancelled timers when they are the greater part of the heap."""
        self._cancelled_timers += 1
        if self._cancelled_timers > _CANCELLED_TIMERS_MIN and self._cancelled_timers * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    # -- futures and tasks -----------------------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override] # typeshed varies by Python version
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        """Creates a task of the running process, or of the context's process."""
        process = current_process(context)
        if name is None:
            self._task_number += 1
            name = f"task-{self._task_number}"
        if process is not None:
            name = f"{process.label}:{name}"
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        if process is not None:
            process.adopt(task)
        return task

    def get_task_factory(self) -> None:
        return None

    # -- errors ----------------------------------------------------------------------------------------------------

    def get_exception_handler(self) -> Any:
        return self._exception_handler

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Ends the run, unless the process that caused the error is dead."""
        cause = context.get("exception")
        if (self._process is not None and not self._process.alive) or _of_the_dead(cause):
            return
        if self._failure is None:
            owner = f" in {self._process.label}" if self._process else ""
            self._failure = UnhandledError(f"{context.get('message')}{owner} at {self.time():.6f} s: {cause!r}")
            self._failure.__cause__ = cause

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._exception_handler is not None:
            self._exception_handler(self, context)
        else:
            self.default_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Ignored: asyncio's debug mode reads the wall clock."""

    # -- not simulated -----------------------------------------------------------------------------------------------

    set_task_factory = _forbidden("task factories")
    call_soon_threadsafe = _forbidden("threads")
    run_in_executor = _forbidden("threads and executors")
    set_default_executor = _forbidden("threads and executors")
    add_reader = _forbidden("file descriptors")
    add_writer = _forbidden("file descriptors")
    remove_reader = _forbidden("file descriptors")
    remove_writer = _forbidden("file descriptors")
    add_signal_handler = _forbidden("signals")
    remove_signal_handler = _forbidden("signals")
    getaddrinfo = _forbidden("name resolution")
    getnameinfo = _forbidden("name resolution")
    create_server = _forbidden("sockets: use the Network port")
    create_connection = _forbidden("sockets: use the Network port")
    create_datagram_endpoint = _forbidden("sockets: use the Network port")
    create_unix_connection = _forbidden("sockets: use the Network port")
    create_unix_server = _forbidden("sockets: use the Network port")
    sock_accept = _forbidden("sockets: use the Network port")
    sock_connect = _forbidden("sockets: use the Network port")
    sock_recv = _forbidden("sockets: use the Network port")
    sock_recv_into = _forbidden("sockets: use the Network port")
    sock_recvfrom = _forbidden("sockets: use the Network port")
    sock_recvfrom_into = _forbidden("sockets: use the Network port")
    sock_sendto = _forbidden("sockets: use the Network port")
    sock_sendall = _forbidden("sockets: use the Network port")
    sock_sendfile = _forbidden("sockets: use the Network port")
    sendfile = _forbidden("sockets: use the Network port")
    start_tls = _forbidden("TLS")
    connect_read_pipe = _forbidden("pipes")
    connect_write_pipe = _forbidden("pipes")
    subprocess_exec = _forbidden("subprocesses")
    subprocess_shell = _forbidden("subprocesses")
