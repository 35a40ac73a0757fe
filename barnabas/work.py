"""Work: a long computation as a generator, which yields so that a turn of the event loop takes at most 10 ms.

The rule: a turn of the event loop takes at most 10 ms of CPU, whatever peers send and files contain. Code whose time grows with a list,
a file or a number from outside is a generator. It yields after every few elements, so that the loop serves others in between:

- An int says how many units it has worked since the last yield. A unit is about 10 microseconds. UNITS_PER_SLICE of them make a slice.
- SLICE ends the present slice, whatever was counted in it.
- A function is C code that releases Python's lock, or a computation on what does not change (`in_worker`). It runs in a thread, if the node was given one,
  and the generator continues after it. It never raises: it leaves its result, or its error, where the generator looks for it.

Units, not time, end a slice, so that the simulated loop splits work exactly as the real one does.

`broker/scheduling/slices.py` runs all work of a node, one slice in each turn of the loop. `finished` runs work at once: for short work,
tests and tools.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

UNITS_PER_SLICE: Final = 128  # 1 to 3 ms
SLICE: Final = UNITS_PER_SLICE

DISCARDED_PER_UNIT: Final = 64  # small objects

# Bytes of a message: a shorter one is decoded, answered and encoded at once, in at most 2 ms; a longer one in the worker thread.
LONG_BYTES: Final = 16 * 1024

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


def in_worker(call: Callable[[], T]) -> Steps[T]:
    """Calls a function in the worker thread: it must touch nothing that the event loop changes. Returns its result, or raises its exception.

    The interpreter gives the event loop's thread its turn after each switch interval.
    """
    found: list[T] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            failed.append(error)

    yield run
    if failed:
        raise failed.pop()
    return found.pop()


def discarded(entries: dict[Any, Any]) -> Steps[None]:
    """Empties an unused dict: freeing 100,000 entries at once takes 10 ms."""
    for number in range(1, len(entries) + 1):
        entries.popitem()
        if not number % DISCARDED_PER_UNIT:
            yield 1
