"""ClusterPool: started spare clusters and reset used ones for the next tests. At most SPARES_MAX start ahead, one after the other, in the last used
shape: three brokers need 28 ms of processor time and an election.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from barnabas.testing import kit_thread
from barnabas.testing.cluster import Cluster
from barnabas.testing.core import Core
from barnabas.testing.errors import KitError, patience

if TYPE_CHECKING:
    from barnabas.testing.cluster import Cluster

RENEWAL_S: Final = 1.0
POLL_FIRST_S: Final = 0.0005
POLL_S: Final = 0.01


class AsNew:
    """The state of a new cluster, and the way back to it."""

    def __init__(self, states: list[Any]) -> None:
        self._states = states

    @classmethod
    async def of(cls, cluster: Cluster) -> AsNew:
        """Notes the state of a cluster that has just started."""
        return cls(await _states(cluster.core()))

    def is_possible(self, core: Core) -> bool:
        """Whether `again` can succeed."""
        everybody_runs = len(core.running()) == len(core.backend.broker_ids)
        return everybody_runs and not any(each.leaves_traces for each in core.extensions)

    async def again(self, core: Core) -> bool:
        """Deletes what a test has left. Returns whether the cluster is as new; if not, it must be ended."""
        from barnabas.client import KafkaError

        core.extensions.clear()
        core.created.clear()
        try:
            async with asyncio.timeout(RENEWAL_S):
                return await self._emptied(core)
        except (TimeoutError, KafkaError, KitError, RuntimeError):  # a broker has ended, or its answer is missing
            return False

    async def _emptied(self, core: Core) -> bool:
        if await core.client_connections():
            return False
        admin = await core.admin()
        left = await admin.list_topics()
        if left:
            await admin.delete_topics(left)
        pause_s = POLL_FIRST_S
        while True:
            await _each(core, "forget_test")
            if await _states(core) == self._states:
                return not await core.client_connections()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S)


async def _states(core: Core) -> list[Any]:
    return await _each(core, "lasting_state")


async def _each(core: Core, command: str) -> list[Any]:
    """Asks all brokers at once: each has a thread or a process of its own, which may have to wait for a processor."""
    return await asyncio.gather(*(core.backend.command(each, command, {}) for each in core.backend.broker_ids))


SPARES_MAX: Final = 2  # the second one is for tests that end brokers and take less time than a start
START_S: Final = 40.0

_Begun = tuple[Cluster, Future[AsNew]]


class ClusterPool:
    """See the module. One thread at a time calls it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # the kit's thread begins the next spare when one has started
        self._begun: deque[_Begun] = deque()
        self._taken: dict[Cluster, AsNew] = {}  # in use, of the present shape
        self._shape: object = None
        self._make: Callable[[], Cluster] | None = None  # None: begin none

    def take(self, shape: object, make: Callable[[], Cluster]) -> Cluster:
        """Returns a cluster that runs and holds nothing. Clusters of one shape are interchangeable; `make` makes one."""
        if shape != self._shape:
            self.close()
        with self._lock:
            begun = next((each for each in self._begun if each[1].done()), self._begun[0] if self._begun else None)
            if begun is None:
                begun = _begin(make)
            else:
                self._begun.remove(begun)
        cluster, started = begun
        try:
            as_new = started.result(START_S * patience())
        except BaseException:
            _end(begun)
            raise
        with self._lock:
            self._shape, self._make = shape, make
            self._taken[cluster] = as_new
        self._fill(None)
        return cluster

    def give_back(self, cluster: Cluster) -> None:
        """Ends the use of a cluster. Raises KitError if a broker had stopped by itself."""
        as_new = self._taken.pop(cluster, None)
        if not cluster.runs:
            return  # its test has ended it
        if as_new is None or self._make is None or not as_new.is_possible(cluster.core()):
            cluster.stop()
            return
        core, fresh = cluster.hand_over(), self._make()
        with self._lock:
            self._begun.appendleft((fresh, _submit(_renewed(fresh, core, as_new))))

    def close(self) -> None:
        """Ends the spare clusters."""
        with self._lock:
            self._make = None
            begun, self._begun = self._begun, deque()
            self._taken.clear()
        for each in begun:
            _end(each)

    def _fill(self, started: Future[AsNew] | None) -> None:
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


def _submit(work: Coroutine[Any, Any, AsNew]) -> Future[AsNew]:
    return kit_thread.loop_thread().submit(work)


def _begin(make: Callable[[], Cluster]) -> _Begun:
    cluster = make()
    return cluster, _submit(_started(cluster))


async def _started(cluster: Cluster) -> AsNew:
    await cluster.begin()
    return await AsNew.of(cluster)


async def _renewed(fresh: Cluster, core: Core, as_new: AsNew) -> AsNew:
    """Gives used brokers to a new handle, or new ones."""
    if await as_new.again(core):
        await fresh.take_over(core)
        return as_new
    kit_thread.release(core)
    await core.stop()
    return await _started(fresh)


def _end(begun: _Begun) -> None:
    cluster, started = begun
    started.exception(START_S * patience())
    cluster.stop()
