"""Work: a long computation as a generator, which yields so that a turn of the event loop takes at most 10 ms.

Code whose time grows with a list, a file or a number from outside yields after every few elements:
- an int: units worked since the last yield, of about 10 microseconds; UNITS_PER_SLICE make a slice;
- SLICE: ends the present slice;
- a function: C code that releases Python's lock, or a system call. It may run in a thread, never raises, and leaves its
  result or error for the generator.
Units, not time, end a slice, so that the simulated loop splits work exactly as the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from heapq import merge
from itertools import groupby, islice
from typing import Any, Final, TypeVar

UNITS_PER_SLICE: Final = 128  # 1 to 3 ms
SLICE: Final = UNITS_PER_SLICE

SORTED_AT_ONCE: Final = 2_048  # names: 0.5 ms
HASHED_PER_UNIT: Final = 64  # names
DISCARDED_PER_UNIT: Final = 64  # small objects

T = TypeVar("T")
Steps = Generator[int | Callable[[], None], None, T]  # work with a result of type T
Work = Steps[Any]


def finished(work: Steps[T]) -> T:
    """Runs work at once, its C code in place: for short work, tests and tools. Returns its result."""
    while True:
        try:
            step = next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        if not isinstance(step, int):
            step()


def sorted_in_slices(names: list[str]) -> Steps[Iterator[str]]:
    """The names in ascending order, each once, in a few microseconds each."""
    runs = []
    for start in range(0, len(names), SORTED_AT_ONCE):
        runs.append(sorted(set(names[start : start + SORTED_AT_ONCE])))
        yield UNITS_PER_SLICE // 4
    return (name for name, _ in groupby(merge(*runs)))


def distinct_in_slices(names: Iterable[str]) -> Steps[dict[str, None]]:
    """The names, each once, in the order of their first occurrence."""
    found: dict[str, None] = {}
    rest = iter(names)
    while some := dict.fromkeys(islice(rest, HASHED_PER_UNIT)):
        found.update(some)
        yield 1
    return found


def discarded(entries: dict[Any, Any]) -> Steps[None]:
    """Empties an unused dict: freeing 100,000 entries at once takes 10 ms."""
    for number in range(1, len(entries) + 1):
        entries.popitem()
        if not number % DISCARDED_PER_UNIT:
            yield 1
