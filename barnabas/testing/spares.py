"""Spares: clusters of several brokers that start while a test runs, for the next tests.

Driven by: the fixture `kafka`, which takes one for each test with several brokers. Emits: running clusters.

Three brokers need 30 ms of processor time and an election to start, so a test should not wait for them. The spares have the shape that
was used last. They start one after the other, so that each is ready as early as possible.

Invariants: at most SPARES_MAX exist beside the cluster in use; all have ended when `close` returns.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from barnabas.testing import kit_thread
from barnabas.testing.cluster import Cluster

__all__ = ["Spares"]

SPARES_MAX: Final = 2  # the second one is for tests that take less time than a start
START_S: Final = 40.0

_Begun = tuple[Cluster, Future[None]]


class Spares:
    """See the module. One thread at a time calls it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # the kit's thread begins the next spare when one has started
        self._begun: deque[_Begun] = deque()
        self._shape: object = None
        self._make: Callable[[], Cluster] | None = None  # None: begin none

    def take(self, shape: object, make: Callable[[], Cluster]) -> Cluster:
        """Returns a new cluster that runs. Clusters of one shape are interchangeable; `make` makes one."""
        if shape != self._shape:
            self.close()
        with self._lock:
            cluster, started = self._begun.popleft() if self._begun else _begin(make)
        try:
            started.result(START_S)
        except BaseException:
            _end((cluster, started))
            raise
        with self._lock:
            self._shape, self._make = shape, make
        self._fill(None)
        return cluster

    def close(self) -> None:
        """Ends the spare clusters."""
        with self._lock:
            self._make = None
            begun, self._begun = self._begun, deque()
        for each in begun:
            _end(each)

    def _fill(self, started: Future[None] | None) -> None:
        """Begins a spare if there is room and no other one is on its way; continues when it has started."""
        if started is not None and (started.cancelled() or started.exception() is not None):
            return  # the test that takes it gets the error
        with self._lock:
            on_its_way = any(not each.done() for _, each in self._begun)
            if self._make is None or on_its_way or len(self._begun) >= SPARES_MAX:
                return
            begun = _begin(self._make)
            self._begun.append(begun)
        begun[1].add_done_callback(self._fill)


def _begin(make: Callable[[], Cluster]) -> _Begun:
    cluster = make()
    return cluster, kit_thread.loop_thread().submit(cluster.begin())


def _end(begun: _Begun) -> None:
    cluster, started = begun
    started.exception(START_S)
    cluster.stop()
