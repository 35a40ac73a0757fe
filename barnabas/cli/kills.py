"""What `barnabas demo` kills while the copy runs, one after the other, and how long each kill held the copy up.

Driven by: the copy's progress (`on_progress`). Emits: SIGKILLs to brokers and to the worker, restarts of the brokers, and for each
kill the longest pause between two committed transactions from then to the next kill.

Invariants: a broker is killed only while every partition has all its replicas in sync, so that min.insync.replicas is never
undercut; what was killed is started again before the next kill.
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

__all__ = ["Kill", "Kills"]

LEADER, COORDINATOR, CONTROLLER, WORKER = (
    "the output's leader",
    "the transaction coordinator",
    "the controller",
    "the worker",
)
PLAN: Final = (
    (0.15, LEADER),
    (0.35, COORDINATOR),
    (0.55, CONTROLLER),
    (0.75, WORKER),
)  # from which share of the rows on
DOWN_S: Final = 1.5  # a killed broker stays away so long: the others take over first
IN_SYNC_LOOK_S: Final = 0.2


@dataclass(slots=True)
class Kill:
    """One kill.

    pause_s: the longest pause in the copy's progress since it, in seconds.
    """

    what: str
    at_s: float
    pause_s: float = 0.0


class Kills:
    """The plan and how far it has come. Use as `async with`: leaving it waits until killed brokers are back.

    Attributes:
        done: the kills so far, in order.
    """

    def __init__(self, cluster: LocalCluster, output: str, transactional_id: str, tell: Callable[[str], None]) -> None:
        self.done: list[Kill] = []
        self._cluster = cluster
        self._output = output
        self._transactional_id = transactional_id
        self._tell = tell
        self._plan = list(PLAN)
        self._busy: asyncio.Task[None] | None = None
        self._progress_at_s = 0.0

    @property
    def left(self) -> str:
        """What is still to be killed, in words."""
        return ", ".join(what for _, what in self._plan)

    def on_progress(self, share: float, worker: asyncio.subprocess.Process) -> None:
        """The copy has committed a transaction; `share` of all rows are copied.

        Raises:
            Exception: what a kill or a restart failed with.
        """
        now_s = time.monotonic()
        if self.done:
            last = self.done[-1]
            last.pause_s = max(last.pause_s, now_s - max(self._progress_at_s, last.at_s))
        self._progress_at_s = now_s
        if self._busy is not None and self._busy.done():
            self._busy.result()
            self._busy = None
        if self._plan and share >= self._plan[0][0] and self._busy is None:
            _, what = self._plan.pop(0)
            self._busy = asyncio.create_task(self._kill(what, worker))

    async def _kill(self, what: str, worker: asyncio.subprocess.Process) -> None:
        if what == WORKER:
            if worker.returncode is None:
                self._note(what)
                worker.kill()
                self._tell(f"killed the worker (pid {worker.pid}) with SIGKILL")
            return
        await self._all_in_sync()
        node = self._cluster.node(await self._find(what))
        pid = node.process.pid if node.process is not None else -1
        self._note(what)
        await self._cluster.kill(node)
        self._tell(f"killed {what}, broker {node.node_id} (pid {pid}), with SIGKILL")
        await asyncio.sleep(DOWN_S)
        await self._cluster.start_node(node)

    def _note(self, what: str) -> None:
        self.done.append(Kill(what, time.monotonic()))

    async def _find(self, what: str) -> int:
        async with Admin(bootstrap_servers=self._cluster.bootstrap) as admin:
            if what == LEADER:
                return (await admin.describe_topics([self._output]))[self._output].partitions[0].leader
            if what == COORDINATOR:
                return await admin.find_transaction_coordinator(self._transactional_id)
            return (await admin.describe_quorum()).leader_id

    async def _all_in_sync(self) -> None:
        async with Admin(bootstrap_servers=self._cluster.bootstrap) as admin:
            while True:
                topics = await admin.describe_topics(await admin.list_topics(include_internal=True))
                if all(len(p.isr) == len(p.replicas) for topic in topics.values() for p in topic.partitions):
                    return
                await asyncio.sleep(IN_SYNC_LOOK_S)

    async def __aenter__(self) -> Kills:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._busy is None:
            return
        if error is not None:
            self._busy.cancel()
        try:
            await self._busy
        except asyncio.CancelledError:
            if error is None:
                raise
