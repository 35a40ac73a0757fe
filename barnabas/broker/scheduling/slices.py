"""Slices: runs all long work of a node, one slice in each turn of the loop. `barnabas/work.py` states the rule."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from types import GeneratorType
from typing import Any, Final, Generic, TypeVar

from barnabas.errors import BrokerError, InvariantViolated
from barnabas.loggers import logger
from barnabas.work import UNITS_PER_SLICE, Steps, Work

log = logger("kafka.server")

LARGE_REQUESTS_AT_ONCE: Final = 1  # decoded and not yet answered: each holds up to 100,000 elements, some 30 MB
INSPECTIONS_AT_ONCE: Final = 1  # of a produced batch: takes up to two buffers of BATCH_BYTES_MAX
SEARCHES_AT_ONCE: Final = 1  # in decompressed batches: takes up to DECOMPRESSED_BYTES_MAX
LOADS_AT_ONCE: Final = 2  # of coordinator shards: the first ones serve before the last one begins

TURN_UNITS_MAX: Final = 400  # of all requests that are served at once in one turn: 4 ms
LOGINS_PER_TURN: Final = 8  # connections with a login step in one turn: 1 ms
ARRIVALS_COUNTED: Final = 32  # a power of two: counting each read would cost each small request a callback
UNITS_PER_ARRIVAL: Final = 3  # a small request: 30 microseconds
COSTS_PER_UNIT: Final = 20  # of a batch (`AppendInfo.cost`)
FREE_COST: Final = 64  # of a batch, not counted: the usual cost of a request
COMPRESSED_COST: Final = 512  # of decompressing a batch

T = TypeVar("T")
Offload = Callable[[Callable[[], None]], Awaitable[None]]
# Runs the first function in a thread, then calls the second one on the loop with None, or with the exception of the first one.
InThread = Callable[[Callable[[], None], Callable[[Exception | None], None]], object]


async def in_place(call: Callable[[], None]) -> None:
    """The Offload of a node without threads."""
    call()


class WorkResult(Generic[T]):
    """The result of work, and the units of its last slice."""

    __slots__ = ("result", "units")

    def __init__(self, result: T, units: int) -> None:
        self.result = result
        self.units = units


def advance(work: Steps[T]) -> WorkResult[T] | Steps[T]:
    """Runs one slice; returns the result or the rest of the work. Raises what the work raises."""
    ended = _run_slice(work)
    if ended is None:
        return work
    return ended if isinstance(ended, WorkResult) else _after(ended, work)


def _run_slice(work: Steps[T]) -> WorkResult[T] | Callable[[], None] | None:
    """Runs one slice; returns C code that must run before the next one."""
    left = UNITS_PER_SLICE
    try:
        while left > 0:
            step = next(work)
            if not isinstance(step, int):
                return step
            left -= step
    except StopIteration as end:
        return WorkResult(end.value, UNITS_PER_SLICE - left)
    return None


def _after(call: Callable[[], None], work: Steps[T]) -> Steps[T]:
    yield call
    result = yield from work
    return result


class Line:
    """Work of one kind, of which a bounded number is in progress, in order of arrival: each holds much memory."""

    __slots__ = ("at_once", "running", "waiting")

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.running = 0
        self.waiting: deque[Slice] = deque()


class Slice:
    """One piece of long work."""

    __slots__ = ("done", "failed", "line", "work")

    def __init__(
        self, work: Work, done: Callable[[Any], None], failed: Callable[[BaseException], None], line: Line | None
    ) -> None:
        self.work: Work | None = work
        self.done = done
        self.failed = failed
        self.line = line

    def cancel(self) -> None:
        """Stops the work; calls neither callback. C code that runs in a thread runs to its end."""
        work = self.work
        self.end()
        if work is not None and not _running(work):
            work.close()

    def end(self) -> tuple[Callable[[Any], None], Callable[[BaseException], None]]:
        """Drops work and callbacks, which would form a cycle with this object of their owner. Returns the callbacks."""
        callbacks = self.done, self.failed
        self.work, self.done, self.failed = None, _nothing, _nothing
        return callbacks


def _nothing(_: object) -> None:
    pass


def _bare(error: Exception) -> Exception:
    """Drops the traceback of a refusal: its frames would keep the error in a cycle."""
    if isinstance(error, BrokerError):
        error.__traceback__ = None
    return error


def _running(work: Work) -> bool:
    return isinstance(work, GeneratorType) and work.gi_running


class Slices:
    """All long work of a node. Each turn of the loop runs one slice of the work that has waited longest.

    Requests below a slice are served at once until the turn has TURN_UNITS_MAX; then deferrable work begins in a later turn. Logins have
    their own LOGINS_PER_TURN places in each turn: logged-in clients never wait behind them. `on_busy` and `on_idle` stop the cyclic garbage
    collector during long work: one collection over a large request takes longer than many slices. Either `done` or `failed` of work is
    called, once, and neither after `cancel` or `close`. `fatal` gets the InvariantViolated of a callback. Without `in_thread` C code runs
    in place.
    """

    def __init__(
        self,
        next_turn: Callable[[Callable[[], None]], object],
        fatal: Callable[[InvariantViolated], None],
        in_thread: InThread | None = None,
        *,
        on_busy: Callable[[], None],
        on_idle: Callable[[], None],
    ) -> None:
        self._on_busy = on_busy
        self._on_idle = on_idle
        self._next_turn = next_turn
        self._fatal = fatal
        self.in_thread = in_thread or self._in_place
        self.requests = Line(LARGE_REQUESTS_AT_ONCE)  # large requests, from their decoding on
        self.inspections = Line(INSPECTIONS_AT_ONCE)  # long produced batches
        self.searches = Line(SEARCHES_AT_ONCE)  # work without a line, from its first C code on
        self.loads = Line(LOADS_AT_ONCE)  # coordinator shards
        self._active: deque[Slice] = deque()
        self._threaded: dict[Slice, None] = {}  # whose C code runs in a thread
        self._due = False
        self._holding = False
        self._closed = False
        self._spent = 0
        self._later: deque[Callable[[], None]] = deque()
        self._logins: deque[Callable[[], None]] = deque()
        self._many_arrived = False  # at least ARRIVALS_COUNTED in the present turn
        self.arrivals = 0  # reads with requests, so far; the reader calls `count_arrivals` after each ARRIVALS_COUNTED
        self.turn_is_over = False  # requests have used the present turn: deferrable work begins in a later one

    @property
    def busy(self) -> bool:
        return self._holding

    def start(
        self,
        work: Steps[T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
        *,
        line: Line | None = None,
    ) -> Slice:
        """From the next turn on. `failed` gets an exception of `work`. Without `line` it begins at once: it holds its memory already."""
        made = Slice(work, done, failed, line)
        if self._closed:
            made.cancel()
        elif line is None or line.running < line.at_once:
            self._begin(made)
        else:
            line.waiting.append(made)
        return made

    def go_on(
        self, work: Steps[T], done: Callable[[T], None], failed: Callable[[BaseException], None], *, line: Line
    ) -> Slice:
        """As `start`, for the rest of work that holds its memory already: it begins without waiting, and the line counts it to its end."""
        made = Slice(work, done, failed, line)
        if self._closed:
            made.cancel()
        else:
            self._begin(made)
        return made

    def close(self) -> None:
        self._closed = True
        for each in (*self._active, *self._threaded):
            each.cancel()
        self._active.clear()
        self._threaded.clear()
        for line in (self.requests, self.inspections, self.searches, self.loads):
            for each in line.waiting:
                each.cancel()
            line.waiting.clear()
        self._later.clear()
        self._logins.clear()
        self._rest()

    # -- immediate work

    def run(
        self,
        work: Steps[T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
        *,
        line: Line | None = None,
    ) -> Slice | None:
        """As `start`, but the first slice runs now, if the present turn has time for it. Returns None if that was enough."""
        if self.turn_is_over or self._closed or (line is not None and line.waiting):
            return self.start(work, done, failed, line=line)
        try:
            rest = advance(work)
        except Exception as error:
            self._call(failed, _bare(error))
            return None
        if isinstance(rest, WorkResult):
            self.count(rest.units)
            self._call(done, rest.result)
            return None
        self.count(UNITS_PER_SLICE)
        return self.start(rest, done, failed, line=line)

    def count(self, units: int) -> None:
        """Counts work that the present turn has done at once."""
        if units > 0 and not self._closed:
            if not self._spent:
                self._next_turn(self._on_next_turn)
            self._spent += units
            self.turn_is_over = self._spent >= TURN_UNITS_MAX

    def count_batch(self, cost: int, *, compressed: bool) -> None:
        """Counts a batch that was inspected at once, with the cost of the walk over its records."""
        cost = max(cost - FREE_COST, 0) + (COMPRESSED_COST if compressed else 0)
        self.count(-(-cost // COSTS_PER_UNIT))

    def count_arrivals(self) -> None:
        """After ARRIVALS_COUNTED reads with requests; they count if as many others came before them in the present turn."""
        if self._many_arrived:
            self.count(ARRIVALS_COUNTED * UNITS_PER_ARRIVAL)
        else:
            self._many_arrived = True
            self._next_turn(self._on_turn_after_arrivals)

    def _on_turn_after_arrivals(self) -> None:
        self._many_arrived = False

    def later(self, callback: Callable[[], None]) -> None:
        """Calls back in the first turn that has time for it, in order. The callback counts its work."""
        if not self._closed:
            self._later.append(callback)
            self._want_turn()

    def later_for_login(self, callback: Callable[[], None]) -> None:
        """Calls back in the first turn with one of its LOGINS_PER_TURN places left, after the callbacks of `later`."""
        if not self._closed:
            self._logins.append(callback)
            self._want_turn()

    def _on_next_turn(self) -> None:
        if not self._due:  # else `_turn` begins the turn, so that waiting work finds time in it
            self._begin_turn()

    def _begin_turn(self) -> None:
        self._spent = 0
        self.turn_is_over = False

    # -- turns

    def _begin(self, piece: Slice) -> None:
        if piece.line is not None:
            piece.line.running += 1
        if not self._holding:
            self._holding = True
            self._on_busy()
        self._queue(piece)

    def _queue(self, piece: Slice) -> None:
        self._active.append(piece)
        self._want_turn()

    def _want_turn(self) -> None:
        if not self._due:
            self._due = True
            self._next_turn(self._turn)

    def _leave(self, piece: Slice) -> None:
        """The work has ended or was cancelled: the next one of its line begins."""
        line = piece.line
        if line is None:
            return
        line.running -= 1
        while line.waiting and line.running < line.at_once:
            found = line.waiting.popleft()
            if found.work is not None:
                self._begin(found)

    def _rest(self) -> None:
        if self._holding:
            self._holding = False
            self._on_idle()

    def _turn(self) -> None:
        """Runs one slice of the longest waiting work, then deferred callbacks in their time, before the requests of this turn."""
        self._due = False
        self._begin_turn()
        while self._active and self._active[0].work is None:
            self._leave(self._active.popleft())
        if self._active:
            self._due = True
            self._next_turn(self._turn)
            self._run(self._active.popleft())
        elif not self._threaded:
            self._rest()
        while self._later and not self.turn_is_over:
            self._later.popleft()()
        for _ in range(min(len(self._logins), LOGINS_PER_TURN)):
            if self._logins:  # a callback may close the node
                self._logins.popleft()()
        if self._later or self._logins:
            self._want_turn()

    def _run(self, piece: Slice) -> None:
        work = piece.work
        if work is None:
            return
        try:
            ended = _run_slice(work)
        except Exception as error:
            _, failed = piece.end()
            self._end(piece, failed, _bare(error))
            return
        if isinstance(ended, WorkResult):
            done, _ = piece.end()
            self._end(piece, done, ended.result)
        elif piece.work is None:  # its own slice cancelled it
            work.close()
            self._leave(piece)
        elif ended is None:
            self._active.append(piece)
        else:
            self._run_c_code(piece, work, ended)

    def _run_c_code(self, piece: Slice, work: Work, call: Callable[[], None]) -> None:
        """Runs the C code of work, after a wait for the memory that the C code takes."""
        if piece.line is None:
            line = piece.line = self.searches
            if line.running >= line.at_once:
                piece.work = _after(call, work)
                line.waiting.append(piece)
                return
            line.running += 1
        self._threaded[piece] = None
        self.in_thread(call, lambda error: self._resume(piece, error))

    def _in_place(self, call: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        """Runs C code in this turn, and the work that waits for it in a later one."""
        call()
        done(None)

    def _resume(self, piece: Slice, error: Exception | None) -> None:
        if self._closed:
            return
        del self._threaded[piece]
        if error is not None and piece.work is not None:  # a bug: C code never raises
            failed = piece.failed
            piece.cancel()
            self._end(piece, failed, error)
        else:
            self._queue(piece)

    def _end(self, piece: Slice, callback: Callable[[T], None], value: T) -> None:
        self._leave(piece)
        self._call(callback, value)

    def _call(self, callback: Callable[[T], None], value: T) -> None:
        try:
            callback(value)
        except InvariantViolated as error:
            self._fatal(error)
        except Exception:  # a bug of ours costs one request, not the others that wait for their slices
            log.exception("Callback of long work failed")
