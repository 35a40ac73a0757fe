"""Group: actions on a consumer group, classic or KIP-848. A member is named by member id, client id or group.instance.id, if that is unique."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from barnabas.broker.coordinator.host.partitioning import partition_for
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC
from barnabas.testing.errors import KitError, unknown
from barnabas.testing.kit_thread import Aio, blocking, coroutine

if TYPE_CHECKING:
    from barnabas.client.admin.types import GroupDescription, GroupMemberDescription
    from barnabas.testing.core import Core
    from barnabas.testing.faults.handles import Fault
    from barnabas.testing.running import Running

T = TypeVar("T")


class GroupActionsAio(Aio["GroupActions"]):
    """The methods of a group as coroutines."""

    @coroutine
    async def members(self) -> list[GroupMemberDescription]:
        """Its members: member_id, group_instance_id, client_id, client_host and assignment. Empty if the group does not exist."""
        return await members(self._of._cluster.core(), self._of.name)

    @coroutine
    async def evict(self, member: str) -> None:
        """Removes a member, as an administrator does. The member learns it from its next heartbeat, and joins again as a new one.

        `member`: member id, client id or group.instance.id. Raises KitError: no member, or more than one, has this name.
        """
        await evict(self._of._cluster.core(), self._of.name, member)

    @coroutine
    async def move(self, partition: tuple[str, int], *, to: str) -> None:
        """Gives a partition of one member to another one, by a rebalance; returns when that member has it.

        The applications must poll during the call, as in every rebalance. A later rebalance assigns as the group does otherwise.

        Args:
            partition: (topic, partition).
            to: member id, client id or group.instance.id.

        Raises:
            KitError: no partition, or not one member, has this name; the member has the partition or does not subscribe to it; no
                member has it; its assignments cannot be read.
            KitTimeout: a member did not take part; the text names it.
            NotPossible: in mode `remote`.
        """
        await _move(self._of._cluster.core(), self._of.name, partition, to)


class GroupActions:
    """A consumer group by its name; it need not exist yet."""

    _called = "group"
    members = blocking(GroupActionsAio.members)
    evict = blocking(GroupActionsAio.evict)
    move = blocking(GroupActionsAio.move)

    def __init__(self, cluster: Running, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise KitError(f"group({name!r}): write the id of a group as text")
        self.name = name
        self._cluster = cluster

    @property
    def aio(self) -> GroupActionsAio:
        """The methods that wait, as coroutines."""
        return GroupActionsAio(self, self._cluster._limit_s)

    def hold(self, api: str = "SyncGroup", *, times: int | None = None) -> Fault:
        """Requests of its members wait until `release()` of the returned fault.

        Args:
            api: one whose requests name a group, for example "SyncGroup", "JoinGroup", "OffsetCommit", "ConsumerGroupHeartbeat".
            times: how many wait; None: all.
        """
        held: Fault = self._cluster.faults.on(api, group=self.name, times=times).hold()
        return held

    def __repr__(self) -> str:
        return f"<group {self.name!r}>"


async def _described(core: Core, name: str) -> GroupDescription | None:
    from barnabas.client import KafkaError
    from barnabas.errors import ErrorCode

    async with core.limit(f"the description of group '{name}'"):
        try:
            return await (await core.admin()).describe_group(name)
        except KafkaError as error:
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                return None
            raise KitError(f"group '{name}': {error}") from error


async def members(core: Core, name: str) -> list[GroupMemberDescription]:
    """The members of a group; none if it does not exist."""
    found = await _described(core, name)
    return [] if found is None else list(found.members)


async def evict(core: Core, name: str, member: str) -> None:
    """Removes the member of a group with this member id, client id or group.instance.id. Raises KitError."""
    from barnabas.client import KafkaError

    group = await _described(core, name)
    who = _one(name, member, [] if group is None else list(group.members))
    async with core.limit(f"the eviction of member '{member}' of group '{name}'"):
        admin = await core.admin()
        try:
            if group is not None and group.type == "consumer":
                # Kafka's LeaveGroup refuses members of the new protocol; a member of it leaves by a heartbeat.
                await admin.leave_for(name, who.member_id, who.group_instance_id)
            elif who.group_instance_id is not None:
                await admin.remove_group_members(name, instance_ids=[who.group_instance_id])
            else:
                await admin.remove_group_members(name, member_ids=[who.member_id])
        except KafkaError as error:
            raise KitError(f"member '{member}' of group '{name}' was not evicted: {error}") from error


async def _move(core: Core, name: str, partition: tuple[str, int], to: str) -> None:
    core.own("group().move")
    topic, number = _checked_partition(partition)
    await core.leader(topic, number)  # raises KitError for an unknown one
    group = await _described(core, name)
    who = _one(name, to, [] if group is None else list(group.members))
    arguments = {"group": name, "topic": topic, "partition": number, "to": who.member_id}
    coordinator = -1

    async def told(command: str) -> str:
        answer: dict[str, str] = await core.backend.command(coordinator, command, arguments)
        if "refused" in answer:
            raise KitError(f"{topic}-{number} was not moved: {answer['refused']}")
        return answer.get("missing", "")

    async def begin() -> str:
        nonlocal coordinator
        offsets = await core.partitions(GROUP_METADATA_TOPIC)
        coordinator = int(offsets[partition_for(name, len(offsets))]["leader"])
        return await told("begin_move") if coordinator in core.running() else "a coordinator of the group that runs"

    async def progress() -> str:
        if core.backend.state(coordinator) == "down":
            raise KitError(
                f"{topic}-{number} was not moved: broker {coordinator}, the coordinator, has ended during the move"
            )
        return await told("move_progress")

    async with core.limit(f"the move of {topic}-{number} to member '{to}' of group '{name}'"):
        try:
            await _until_nothing_is_missing(core, begin)
            await _until_nothing_is_missing(core, progress)
        finally:
            if coordinator in core.running():
                await core.backend.command(coordinator, "end_move", arguments)


async def _until_nothing_is_missing(core: Core, missing: Callable[[], Awaitable[str]]) -> None:
    """Asks until the answer is empty; the error of the caller's deadline has the last answer."""

    async def complete() -> bool:
        core._missing = await missing()
        return not core._missing

    await core._until(complete, "")


def _checked_partition(partition: object) -> tuple[str, int]:
    if isinstance(partition, tuple) and len(partition) == 2:
        topic, number = partition
        if isinstance(topic, str) and isinstance(number, int) and not isinstance(number, bool):
            return topic, number
    raise KitError(f"move({partition!r}): name a partition as a pair of topic and number, for example ('orders', 0)")


def _one(name: str, member: str, members: list[GroupMemberDescription]) -> GroupMemberDescription:
    found = [each for each in members if member in (each.member_id, each.client_id, each.group_instance_id)]
    if not found:
        raise KitError(unknown(f"member of group '{name}'", member, [each.client_id for each in members]))
    if len(found) > 1:
        ids = ", ".join(each.member_id for each in found)
        raise KitError(
            f"{len(found)} members of group '{name}' have the client id '{member}': name one by its member id: {ids}"
        )
    return found[0]
