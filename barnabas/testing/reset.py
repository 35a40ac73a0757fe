"""Resets a used cluster for the next test.

Three brokers need 28 ms of processor time to start; to delete what a short test has left takes a few. A cluster is taken again only if
each broker's state afterwards equals that before the first test: topics and their leaders, settings, features, registrations, groups,
transactional ids, replicas, connections. So what a test did to the brokers needs no list here: a restart is another registration, an
election another leader epoch. Offsets and numbers of producers go on only where no new cluster promises them: in the topics of the
coordinators, and in producer ids.

Invariants: a cluster whose wire, network, disks or clock a test has changed is never taken again; nor is one whose files have grown
large, since the files of deleted topics stay for file.delete.delay.ms.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from barnabas.testing.core import Core
from barnabas.testing.errors import KitError

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
