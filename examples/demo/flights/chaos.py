"""The kills of `make demo-spark`.

Each kill happens at a point of the replayed year, in the middle of a batch, after the run has recovered from the
previous kill.

Spark replaces the Python worker of a task; `Driver` replaces the driver.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from typing import Final

from barnabas.cli.local_cluster import LocalCluster
from barnabas.client.admin import Admin
from barnabas.client.errors import KafkaError
from examples.demo.flights.driver import Driver
from examples.demo.flights.replay import TRANSACTIONAL_ID
from examples.demo.flights.story import Sample, Story
from examples.demo.kills import leader_of, wait_in_sync

WORKER, BROKER, DRIVER = "a Python worker", "a broker", "the driver"
POLL_S: Final = 0.05
SAMPLE_S: Final = 0.25
BROKER_DOWN_S: Final = 2.0
MOMENT_S_MAX: Final = 20.0  # longest wait for a busy worker or an open transaction; then the kill happens without one
UNDER_WAY: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


@dataclass(frozen=True, slots=True)
class Strike:
    """A planned kill, at `share` (0 to 1) of the replayed time."""

    share: float
    what: str


PLAN: Final = (Strike(0.15, WORKER), Strike(0.35, BROKER), Strike(0.6, DRIVER))


class Chaos:
    """Carries out the planned kills; see the module.

    Args:
        output: a result topic; the leader of its first partition is the broker to kill.
        tell: shows a line to the user.
    """

    def __init__(
        self, cluster: LocalCluster, driver: Driver, story: Story, output: str, tell: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._driver = driver
        self._story = story
        self._output = output
        self._tell = tell

    async def run(self, plan: Sequence[Strike], first: date, last: date) -> None:
        """Carries out the plan; returns when the run has recovered from the last kill."""
        for strike in plan:
            day = first + timedelta(days=(last - first).days * strike.share)
            await self._story.until(partial(self._has_read, str(day)))
            await {WORKER: self._worker, BROKER: self._broker, DRIVER: self._kill_driver}[strike.what]()
            if self._story.kills:
                await self._story.until(self._is_back)
                kill = self._story.kills[-1]
                self._tell(f"both queries continue {(kill.back_s or 0) - kill.at_s:.1f} s after {kill.what} was killed")

    def _has_read(self, day: str) -> bool:
        return self._story.read_until() >= day

    def _is_back(self) -> bool:
        return self._story.kills[-1].back_s is not None

    async def _worker(self) -> None:
        deadline_s = self._story.now_s + MOMENT_S_MAX
        while (found := self._driver.busy_worker()) is None and self._story.now_s < deadline_s:  # noqa: ASYNC110 # /proc sends no events
            await asyncio.sleep(POLL_S)
        if found is None:
            self._tell("no Python worker was found at work: none was killed")
            return
        os.kill(found, signal.SIGKILL)
        self._struck(WORKER, f"pid {found}, in the middle of a task")

    async def _broker(self) -> None:
        await wait_in_sync(self._cluster.bootstrap)
        node = self._cluster.node(await leader_of(self._cluster.bootstrap, self._output))
        await self._open_transactions()
        pid = node.process.pid if node.process is not None else -1
        await self._cluster.kill(node)
        self._struck(BROKER, f"number {node.node_id} (pid {pid}), which leads {self._output}")
        await asyncio.sleep(BROKER_DOWN_S)
        await self._cluster.start_node(node)
        self._story.note(f"broker {node.node_id} is back")

    async def _kill_driver(self) -> None:
        count = await self._open_transactions()
        pid = self._driver.kill()
        self._struck(DRIVER, f"pid {pid}, with {count or 'no'} open transaction{'s' * (count != 1)} of its sinks")

    def _struck(self, what: str, detail: str) -> None:
        self._story.on_kill(what, detail)
        self._tell(f"killed {what} with SIGKILL: {detail}")

    async def _open_transactions(self) -> int:
        """Waits until a sink has open transactions, so that the kill interrupts them; returns their number."""
        count = 0
        async with Admin(bootstrap_servers=self._cluster.bootstrap) as admin:
            deadline_s = self._story.now_s + MOMENT_S_MAX
            while count == 0 and self._story.now_s < deadline_s:
                count = await _under_way(admin, ("Ongoing",))
                await asyncio.sleep(0 if count else POLL_S)
        return count


async def watch_transactions(bootstrap: str, story: Story) -> None:
    """Records the number of open transactions of the sinks, until it is cancelled."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        while True:
            try:
                story.samples.append(Sample(story.now_s, await _under_way(admin, UNDER_WAY)))
            except KafkaError:
                pass  # a broker is away: no sample
            await asyncio.sleep(SAMPLE_S)


async def _under_way(admin: Admin, states: Sequence[str]) -> int:
    found = await admin.list_transactions(states=states)
    return sum(1 for each in found if each.transactional_id != TRANSACTIONAL_ID)
