"""The methods of a cluster handle about the world around its brokers, blocking and as coroutines."""

from __future__ import annotations

from barnabas.testing.backend import Lose, not_possible
from barnabas.testing.errors import KitError, named_arguments
from barnabas.testing.handle import Handle
from barnabas.testing.kit_thread import blocking, coroutine
from barnabas.testing.world.broker_disk import BrokerDisk
from barnabas.testing.world.ends import ExpectedEnd
from barnabas.testing.world.groups import GroupActions
from barnabas.testing.world.links import Cut, Link
from barnabas.testing.world.placement import move_coordinator
from barnabas.testing.world.sides import Direction, check_link, checked_direction, linked_sides, side
from barnabas.testing.world.surroundings import LinkState, Surroundings, with_cut


def world_of(handle: Handle, what: str) -> Surroundings:
    """The world of a cluster. Raises KitError if it does not run, NotPossible if it was started elsewhere."""
    core = handle.core()
    if core.backend.mode == "remote":
        raise not_possible(what, "remote")
    found = next((each for each in core.extensions if isinstance(each, Surroundings)), None)
    return found or Surroundings(handle)


async def _cut(world: Surroundings, states: list[LinkState], direction: Direction) -> Cut:
    await world.set_flows(*(with_cut(each, direction) for each in states))
    return Cut(world, states)


def _partitioned(
    handle: Handle, one: object, two: object, direction: object
) -> tuple[Surroundings, list[LinkState], Direction]:
    world, checked = world_of(handle, "partition"), checked_direction(direction)
    found = linked_sides(one, two, handle.core().check_broker)
    return world, [LinkState(a, b, is_cut=True) for a, b in found], checked


def _isolated(handle: Handle, broker_id: int, direction: object) -> tuple[Surroundings, list[LinkState], Direction]:
    core = handle.core()
    others = [each for each in core.backend.broker_ids if each != core.check_broker(broker_id)]
    if not others:
        raise KitError(
            f"broker {broker_id} is the only broker of this cluster; cut its clients off by partition({broker_id}, 'clients')"
        )
    return _partitioned(handle, [broker_id], others, direction)


class WorldAioMethods:
    """Methods of `Cluster.aio`."""

    _cluster: Handle

    @property
    def _limit_s(self) -> float:
        """For the kit: longest duration of a method."""
        return self._cluster._limit_s

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
        return await _cut(*_partitioned(self._cluster, one, two, direction))

    @coroutine
    async def isolate(self, broker_id: int, *, direction: Direction = "both") -> Cut:
        """Cuts the links between a broker and all others; clients still reach it."""
        return await _cut(*_isolated(self._cluster, broker_id, direction))

    @coroutine
    async def heal(self) -> None:
        """Ends every cut of `partition` and `isolate`."""
        await world_of(self._cluster, "heal").heal()

    @coroutine
    async def move_coordinator(self, *, txn: str | None = None, group: str | None = None, to: int | None = None) -> int:
        """Moves the coordinator of a transactional id or of a group to another broker; returns the id of that broker.

        `to`: a broker with a replica of the coordinator's partition; None takes the next running one.
        """
        return await move_coordinator(self._cluster.core(), txn, group, to)


class WorldMethods(Handle):
    """Methods of `Cluster`."""

    kill = blocking(WorldAioMethods.kill)
    partition = blocking(WorldAioMethods.partition)
    isolate = blocking(WorldAioMethods.isolate)
    heal = blocking(WorldAioMethods.heal)
    move_coordinator = blocking(WorldAioMethods.move_coordinator)

    def expect_end(self, broker_id: int | None = None) -> ExpectedEnd:
        """The end of a broker, by whatever the test does, is no failure of the test; until the next start of that broker.

        The end of a block `with kafka.expect_end(2):` waits until the broker is down; so does `wait` of the result.
        """
        return ExpectedEnd(world_of(self, "expect_end"), self.core().check_broker(broker_id))

    def link(self, one: object, two: object, *, direction: Direction = "both") -> Link:
        """The link between two brokers, or a broker and clients, to slow it down or break it.

        Args:
            one, two: the id of a broker, "clients", or "client:" and a pattern of client ids.
            direction: which bytes meet what is written: "both", "out": those that `one` sends, "in": those that `two` sends.
        """
        world, check = world_of(self, "link"), self.core().check_broker
        a, b = side(one, check), side(two, check)
        check_link(a, b)
        return Link(world, a, b, checked_direction(direction))

    @named_arguments
    def disk(self, broker_id: int, *, log_dir: int | None = None) -> BrokerDisk:
        """The disk of a broker, to make it fail, fill it, slow it down, damage a record, or end the broker at a call.

        `log_dir`: one log directory, from 1, where `log_dirs` gives the brokers several; None: all of them.
        """
        world, known = world_of(self, "disk"), self.core().backend.log_dirs
        if log_dir is not None and (
            isinstance(log_dir, bool) or not isinstance(log_dir, int) or not 1 <= log_dir <= known
        ):
            raise KitError(
                f"log_dir={log_dir!r}: this cluster has log_dirs={known}, so write a number from 1 to {known}"
            )
        return BrokerDisk(world, self.core().check_broker(broker_id), log_dir)

    def group(self, name: str) -> GroupActions:
        """A consumer group, to see its members, hold their requests or remove one."""
        return GroupActions(self, name)
