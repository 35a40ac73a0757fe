"""ClusterAio: the methods of a cluster handle as coroutines for asyncio and trio. They run in the kit's thread, so any event loop can await them."""

from __future__ import annotations

from collections.abc import Mapping

from barnabas.testing.backend import Lose
from barnabas.testing.errors import named_arguments
from barnabas.testing.handle import Handle
from barnabas.testing.kit_thread import coroutine
from barnabas.testing.world.handles import isolate, partition, world_of
from barnabas.testing.world.links import Cut
from barnabas.testing.world.placement import move_coordinator
from barnabas.testing.world.sides import Direction


class ClusterAio:
    """See the module."""

    def __init__(self, cluster: Handle) -> None:
        self._cluster = cluster

    @property
    def _limit_s(self) -> float:
        """For the kit: longest duration of a method."""
        return self._cluster._limit_s

    async def start(self, *, wait: bool = True) -> None:
        await self._cluster.wait_async(self._cluster.begin(wait=wait))

    async def stop(self) -> None:
        await self._cluster.__aexit__(None, None, None)

    # -- topics

    @coroutine
    @named_arguments
    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Creates a topic and returns its name when every broker knows it and its replicas are in sync.

        Args:
            replication_factor: None takes the brokers' default: 3, or the number of brokers if that is less.
            config: Kafka's topic settings, for example {"cleanup.policy": "compact"}.
        """
        return await self._cluster.core().create_topic(name, partitions, replication_factor, config)

    @coroutine
    async def delete_topics(self, *names: str) -> None:
        """Deletes topics; returns when no broker knows them."""
        await self._cluster.core().delete_topics(list(names))

    @coroutine
    async def topics(self) -> list[str]:
        """Names of all topics that are not internal."""
        return await self._cluster.core().topics()

    # -- brokers: their id may be left out where the cluster has only one

    @coroutine
    async def stop_broker(self, broker_id: int | None = None) -> None:
        """Stops a broker cleanly, after handing over its leaderships; `restart` starts it again."""
        core = self._cluster.core()
        await core.stop_broker(core.check_broker(broker_id))

    @coroutine
    @named_arguments
    async def restart(self, *broker_ids: int, wait: bool = True) -> None:
        """Starts brokers on their data and ports, all at once; without ids all brokers.

        Running ones stop cleanly first, paused ones are killed.
        A broker serves only while a majority of the cluster runs: after the end of most brokers start them in one call. `wait=False`
        returns once the starts have begun; `wait_until_ready` waits for them.
        """
        await self._cluster.core().restart(*broker_ids, wait=wait)

    @coroutine
    async def wait_until_ready(self, *broker_ids: int) -> None:
        """Returns when starting brokers serve and every broker knows them; without ids all that are not down.

        Raises KitError, KitTimeout.
        """
        await self._cluster.core().wait_until_ready(*broker_ids)

    @coroutine
    async def pause(self, broker_id: int | None = None) -> None:
        """Stops a broker like SIGSTOP: its connections stay open but it answers nothing."""
        core = self._cluster.core()
        await core.pause(core.check_broker(broker_id))

    @coroutine
    async def resume(self, broker_id: int | None = None) -> None:
        """Continues a paused broker."""
        core = self._cluster.core()
        await core.resume(core.check_broker(broker_id))

    @coroutine
    async def rolling_restart(self) -> None:
        """Restarts the brokers one by one; each is in sync again before the next one stops."""
        await self._cluster.core().rolling_restart()

    # -- leaders

    @coroutine
    async def leader(self, topic: str, partition: int = 0) -> int:
        """Broker id of the leader of a partition; −1 without one."""
        return await self._cluster.core().leader(topic, partition)

    @coroutine
    async def controller(self) -> int:
        """Broker id of the active controller; −1 without one."""
        return await self._cluster.core().controller()

    @coroutine
    async def move_leader(self, topic: str, partition: int = 0, *, to: int | None = None) -> int:
        """Elects another replica of a partition and returns its broker id; `to=None` takes the next running replica."""
        return await self._cluster.core().move_leader(topic, partition, to)

    # -- the world around the brokers

    @coroutine
    async def kill(self, broker_id: int | None = None, *, lose: Lose = "nothing") -> None:
        """Ends a broker as SIGKILL does: without notice.

        Args:
            broker_id: may be left out where the cluster has only one.
            lose: "nothing": what it has written stays. "page_cache": only what it has synced stays, as after a power loss.
        """
        core = self._cluster.core()
        await core.kill(core.check_broker(broker_id), lose)

    @coroutine
    async def partition(self, one: object, two: object, *, direction: Direction = "both") -> Cut:
        """Cuts the links between two sides, as if cables were pulled: nothing arrives, and no side is told.

        Args:
            one, two: ids of brokers, "clients", or "client:" and a pattern of client ids; several in a list. Clients that are not
                named reach all brokers.
            direction: "both"; "out": only what `one` sends is lost; "in": only what `two` sends.
        """
        return await partition(self._cluster, one, two, direction)

    @coroutine
    async def isolate(self, broker_id: int, *, direction: Direction = "both") -> Cut:
        """Cuts the links between a broker and all others; clients still reach it."""
        return await isolate(self._cluster, broker_id, direction)

    @coroutine
    async def heal(self) -> None:
        """Ends every cut of `partition` and `isolate`."""
        await world_of(self._cluster, "heal").heal()

    @coroutine
    async def move_coordinator(self, *, txn: str | None = None, group: str | None = None, to: int | None = None) -> int:
        """Moves the coordinator of a transactional id or of a group to another broker; returns the id of that broker.

        Args:
            to: a broker with a replica of the coordinator's partition; None takes the next running one.
        """
        return await move_coordinator(self._cluster.core(), txn, group, to)
