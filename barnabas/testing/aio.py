"""ClusterAio: the methods of a cluster handle as coroutines, for asyncio and trio.

Driven by: `Cluster.aio`. The work runs in the kit's own thread, so a coroutine works on every loop, whatever loop started the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping

from barnabas.testing.handle import Handle
from barnabas.testing.world.handles import WorldAioMethods

__all__ = ["ClusterAio"]


class ClusterAio(WorldAioMethods):
    """Each method does what the method of `Cluster` with its name does."""

    def __init__(self, cluster: Handle) -> None:
        self._cluster = cluster

    async def start(self, *, wait: bool = True) -> None:
        """Starts the brokers."""
        await self._cluster.wait_async(self._cluster.begin(wait=wait))

    async def stop(self) -> None:
        """Ends the brokers."""
        await self._cluster.__aexit__(None, None, None)

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Creates a topic."""
        core = self._cluster.core()
        return await self._cluster.wait_async(core.create_topic(name, partitions, replication_factor, config))

    async def delete_topics(self, *names: str) -> None:
        """Deletes topics."""
        await self._cluster.wait_async(self._cluster.core().delete_topics(list(names)))

    async def topics(self) -> list[str]:
        """Names of all topics that are not internal."""
        return await self._cluster.wait_async(self._cluster.core().topics())

    async def stop_broker(self, broker_id: int = 1) -> None:
        """Stops a broker cleanly."""
        await self._cluster.wait_async(self._cluster.core().stop_broker(broker_id))

    async def restart(self, *broker_ids: int, wait: bool = True) -> None:
        """Starts brokers again; all without ids."""
        await self._cluster.wait_async(self._cluster.core().restart(*broker_ids, wait=wait))

    async def wait_until_ready(self, *broker_ids: int) -> None:
        """Returns when brokers that start serve."""
        await self._cluster.wait_async(self._cluster.core().wait_until_ready(*broker_ids))

    async def pause(self, broker_id: int = 1) -> None:
        """Stops a broker as SIGSTOP does."""
        await self._cluster.wait_async(self._cluster.core().pause(broker_id))

    async def resume(self, broker_id: int = 1) -> None:
        """Continues a paused broker."""
        await self._cluster.wait_async(self._cluster.core().resume(broker_id))

    async def rolling_restart(self) -> None:
        """Restarts one broker after the other."""
        work = self._cluster.core().rolling_restart()
        await self._cluster.wait_async(work, factor=len(self._cluster.backend("brokers").broker_ids))

    async def leader(self, topic: str, partition: int = 0) -> int:
        """Broker id of the leader of a partition."""
        return await self._cluster.wait_async(self._cluster.core().leader(topic, partition))

    async def controller(self) -> int:
        """Broker id of the active controller."""
        return await self._cluster.wait_async(self._cluster.core().controller())

    async def move_leader(self, topic: str, partition: int = 0, *, to: int | None = None) -> int:
        """Makes another replica the leader of a partition."""
        return await self._cluster.wait_async(self._cluster.core().move_leader(topic, partition, to), factor=2)
