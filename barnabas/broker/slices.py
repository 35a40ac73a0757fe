"""Slices: splits work that is too long for one turn of the loop, so that the loop serves others in between.

Driven by: callers with such work, a generator that yields after each unit (about 10 microseconds of work), and the loop.
Emits: the result of the generator, passed to its callback.

`long_work` is for one large buffer whose C code may run in a thread; its docstring compares the two.

A slice is a number of units, not a time, so that the simulated loop splits work as the real one does. All long work of a node takes
turns: each turn of the loop runs one slice, however much work waits. At most LARGE_REQUESTS_AT_ONCE run, because each may hold
some 30 MB of decoded request; the others wait in the order of arrival.

During long work the owner stops the cyclic garbage collector (`on_busy`, `on_idle`): one collection over the objects of a large
request takes longer than many slices.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from heapq import merge
from itertools import groupby
from types import GeneratorType
from typing import Any, Final, Generic, TypeVar

from barnabas.errors import BrokerError, InvariantViolated

__all__ = ["UNITS_PER_SLICE", "Ended", "Slice", "Slices", "Work", "advance", "sorted_in_slices"]

log = logging.getLogger(__name__)

UNITS_PER_SLICE: Final = 128  # 1 to 3 ms
LARGE_REQUESTS_AT_ONCE: Final = 2  # decoded and not yet answered; each holds up to 100,000 elements

SORTED_AT_ONCE: Final = 2_048  # names: 0.5 ms

T = TypeVar("T")
Work = Generator[int, None, Any]  # yields the number of units since the last yield


class Ended(Generic[T]):
    """The result of a generator, and the units of its last slice."""

    __slots__ = ("result", "units")

    def __init__(self, result: T, units: int) -> None:
        self.result = result
        self.units = units


def advance(work: Generator[int, None, T]) -> Ended[T] | None:
    """Runs one slice; returns None if more is left. Raises what the generator raises."""
    left = UNITS_PER_SLICE
    try:
        while left > 0:
            left -= next(work)
    except StopIteration as end:
        return Ended(end.value, UNITS_PER_SLICE - left)
    return None


def sorted_in_slices(names: list[str]) -> Work:
    """Returns an iterator over the names in ascending order, each once. It takes a few microseconds for each."""
    runs = []
    for start in range(0, len(names), SORTED_AT_ONCE):
        runs.append(sorted(set(names[start : start + SORTED_AT_ONCE])))
        yield UNITS_PER_SLICE // 4
    return (name for name, _ in groupby(merge(*runs)))


class Slice:
    """One piece of long work."""

    __slots__ = ("done", "failed", "work")

    def __init__(self, work: Work, done: Callable[[Any], None], failed: Callable[[BaseException], None]) -> None:
        self.work: Work | None = work
        self.done = done
        self.failed = failed

    def cancel(self) -> None:
        """Stops the work; calls neither callback."""
        work = self.work
        self.end()
        if work is not None and not _running(work):
            work.close()

    def end(self) -> tuple[Callable[[Any], None], Callable[[BaseException], None]]:
        """Forgets work and callbacks, because their owner keeps this object: together they would be a cycle. Returns the callbacks."""
        callbacks = self.done, self.failed
        self.work, self.done, self.failed = None, _nothing, _nothing
        return callbacks


def _nothing(_: object) -> None:
    pass


def _running(work: Work) -> bool:
    return isinstance(work, GeneratorType) and work.gi_running


class Slices:
    """All long work of a node.

    Args:
        next_turn: calls back in the next turn of the loop, after everything that has arrived by then.
        fatal: gets the InvariantViolated of a callback.
        on_busy: called when long work begins and there was none.
        on_idle: called when no long work is left.
    """

    def __init__(
        self,
        next_turn: Callable[[Callable[[], None]], object],
        fatal: Callable[[InvariantViolated], None],
        *,
        on_busy: Callable[[], None],
        on_idle: Callable[[], None],
    ) -> None:
        self._on_busy = on_busy
        self._on_idle = on_idle
        self._next_turn = next_turn
        self._fatal = fatal
        self._active: deque[Slice] = deque()
        self._waiting: deque[Slice] = deque()
        self._due = False
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether long work is in progress."""
        return self._due

    def start(
        self,
        work: Generator[int, None, T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
        *,
        begun: bool = False,
    ) -> Slice:
        """Runs `work` to its end, from the next turn on.

        Args:
            done: called with the result of `work`.
            failed: called with an exception of `work`; then nothing else is called.
            begun: whether the work holds memory already, so that it must not wait for others to end.
        """
        made = Slice(work, done, failed)
        if self._closed:
            made.cancel()
            return made
        if begun or len(self._active) < LARGE_REQUESTS_AT_ONCE:
            self._active.append(made)
        else:
            self._waiting.append(made)
        if not self._due:
            self._due = True
            self._on_busy()
            self._next_turn(self._turn)
        return made

    def close(self) -> None:
        """The node stops: no work continues or begins."""
        self._closed = True
        for each in (*self._active, *self._waiting):
            each.cancel()
        self._active.clear()
        self._waiting.clear()
        self._rest()

    def _rest(self) -> None:
        if self._due:
            self._due = False
            self._on_idle()

    def _turn(self) -> None:
        """Runs one slice of the work that has waited longest."""
        if not self._due:
            return
        while self._active and self._active[0].work is None:
            self._active.popleft()
        while self._waiting and len(self._active) < LARGE_REQUESTS_AT_ONCE:
            found = self._waiting.popleft()
            if found.work is not None:
                self._active.append(found)
        if not self._active:
            self._rest()
            return
        self._next_turn(self._turn)
        current = self._active.popleft()
        work = current.work
        if work is None:
            return
        try:
            ended = advance(work)
        except Exception as error:
            _, failed = current.end()
            if isinstance(error, BrokerError):
                error.__traceback__ = None  # a refusal: the frames of its traceback would keep it in a cycle
            self._call(failed, error)
            return
        if ended is not None:
            done, _ = current.end()
            self._call(done, ended.result)
        elif current.work is None:  # its own slice cancelled it
            work.close()
        else:
            self._active.append(current)

    def _call(self, callback: Callable[[T], None], value: T) -> None:
        try:
            callback(value)
        except InvariantViolated as error:
            self._fatal(error)
        except Exception:  # a bug of ours costs one request, not the others that wait for their slices
            log.exception("the callback of long work failed")
