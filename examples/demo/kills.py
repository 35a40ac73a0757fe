"""The kills of `make demo`, and how long each kill delayed the copy.

Invariants: a kill happens only during the copy. A broker is killed only while all replicas of every partition are in
sync, so that min.insync.replicas always holds. A killed process is started again before the next kill. At least 10 s
pass between two kills of the same broker, so that the controller does not treat it as unstable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.admin import Admin

LEADER, COORDINATOR, CONTROLLER, WORKER = (
    "the output's leader",
    "the transaction coordinator",
    "the controller",
    "the worker",
)
PLAN: Final = (LEADER, COORDINATOR, CONTROLLER, WORKER)
STEADY_S: Final = 1.0  # seconds of copying before each kill
DOWN_S: Final = 1.5  # seconds that a killed broker stays down, so that the others take over first
KILL_S: Final = 5.0  # approximate seconds of a kill, including the waits and the restart
SAME_BROKER_S: Final = 10.0
PROGRESS_S_MAX: Final = 10.0
IN_SYNC_POLL_S: Final = 0.1


@dataclass(slots=True)
class Kill:
    """A kill that happened.

    pause_s: the longest pause in the copy's progress since then, in seconds.
    """

    what: str
    at_s: float
    pause_s: float = 0.0


class Kills:
    """Carries out the planned kills.

    Use as `async with`: entering begins, leaving waits until killed brokers serve again.

    Attributes:
        done: the kills that happened, in order.
        worker: the current worker process.
    """

    def __init__(self, cluster: LocalCluster, output: str, transactional_id: str, tell: Callable[[str], None]) -> None:
        self.done: list[Kill] = []
        self.worker: asyncio.subprocess.Process | None = None
        self._cluster = cluster
        self._output = output
        self._transactional_id = transactional_id
        self._tell = tell
        self._task: asyncio.Task[None] | None = None
        self._progress_at_s = 0.0
        self._progressed = asyncio.Event()
        self._killed_at_s: dict[int, float] = {}

    @property
    def left_s(self) -> float:
        """Estimates the time for the remaining kills, in seconds; 0 after the last."""
        if self._task is not None and self._task.done():
            return 0.0
        return max(1, len(PLAN) - len(self.done)) * KILL_S

    def on_progress(self) -> None:
        """Records that the copy has committed a transaction.

        Raises:
            Exception: a kill or a restart failed.
        """
        now_s = time.monotonic()
        if self.done:
            last = self.done[-1]
            last.pause_s = max(last.pause_s, now_s - max(self._progress_at_s, last.at_s))
        self._progress_at_s = now_s
        self._progressed.set()
        if self._task is not None and self._task.done():
            self._task.result()

    async def _run(self) -> None:
        for what in PLAN:
            await self._progress()
            await asyncio.sleep(STEADY_S)
            await (self._kill_worker() if what == WORKER else self._kill_broker(what))
        await self._progress()

    async def _progress(self) -> None:
        """Waits for progress of the copy, at most PROGRESS_S_MAX: it may be complete if there are few rows."""
        self._progressed.clear()
        try:
            async with asyncio.timeout(PROGRESS_S_MAX):
                await self._progressed.wait()
        except TimeoutError:
            pass

    async def _kill_worker(self) -> None:
        worker = self.worker
        if worker is not None and worker.returncode is None:
            self._note(WORKER)
            worker.kill()
            self._tell(f"killed the worker (pid {worker.pid}) with SIGKILL")

    async def _kill_broker(self, what: str) -> None:
        await wait_in_sync(self._cluster.bootstrap)
        node = self._cluster.node(await self._find(what))
        await asyncio.sleep(self._killed_at_s.get(node.node_id, -SAME_BROKER_S) + SAME_BROKER_S - time.monotonic())
        pid = node.process.pid if node.process is not None else -1
        self._note(what)
        self._killed_at_s[node.node_id] = time.monotonic()
        await self._cluster.kill(node)
        self._tell(f"killed {what}, broker {node.node_id} (pid {pid}), with SIGKILL")
        await asyncio.sleep(DOWN_S)
        await self._cluster.start_node(node)

    def _note(self, what: str) -> None:
        self.done.append(Kill(what, time.monotonic()))

    async def _find(self, what: str) -> int:
        if what == LEADER:
            return await leader_of(self._cluster.bootstrap, self._output)
        async with Admin(bootstrap_servers=self._cluster.bootstrap) as admin:
            if what == COORDINATOR:
                return await admin.find_transaction_coordinator(self._transactional_id)
            return (await admin.describe_quorum()).leader_id

    async def __aenter__(self) -> Kills:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is None:
            return
        if error is not None:
            self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            if error is None:
                raise


async def leader_of(bootstrap: str, topic: str) -> int:
    """Returns the id of the leader of a topic's first partition."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        return (await admin.describe_topics([topic]))[topic].partitions[0].leader


async def wait_in_sync(bootstrap: str) -> None:
    """Waits until every partition of the cluster has all its replicas in sync."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        while True:
            topics = await admin.describe_topics(await admin.list_topics(include_internal=True))
            if all(len(p.isr) == len(p.replicas) for topic in topics.values() for p in topic.partitions):
                return
            await asyncio.sleep(IN_SYNC_POLL_S)
