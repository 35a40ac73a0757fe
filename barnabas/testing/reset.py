"""Resets a used cluster for the next test, if each broker's state then equals that of a new one: a restart changes a registration, an election an epoch.
Clusters with injected network, disk or clock changes, or large files, are never reused.
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
