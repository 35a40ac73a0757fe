"""Group: what a test does to a consumer group, of the classic or of the consumer protocol (KIP-848).

    kafka.group("billing").evict("worker-1")

Driven by: a test, through `kafka.group(name)`. Emits: requests of the kit's admin client, faults on the wire.

A member is named by its member id, its client id, or its group.instance.id, as far as that is the name of one member only.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from barnabas.testing.errors import KitError, unknown

if TYPE_CHECKING:
    from barnabas.client.admin.types import GroupDescription, GroupMemberDescription
    from barnabas.testing.core import Core
    from barnabas.testing.faults.fault import Fault
    from barnabas.testing.faults.handles import Faults

__all__ = ["GroupActions", "GroupActionsAio", "evict", "members"]

T = TypeVar("T")
LEAVE_EPOCH = -1  # KIP-848: the member epoch of a heartbeat by which a member leaves


class _Cluster(Protocol):
    """What a group needs from the handle of its cluster."""

    def core(self) -> Core: ...

    def wire_faults(self) -> Faults: ...

    def wait(self, work: Coroutine[Any, Any, T]) -> T: ...

    async def wait_async(self, work: Coroutine[Any, Any, T]) -> T: ...


class GroupActions:
    """A consumer group by its name; it need not exist yet."""

    def __init__(self, cluster: _Cluster, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise KitError(f"group({name!r}): write the id of a group as text")
        self.name = name
        self._cluster = cluster

    @property
    def aio(self) -> GroupActionsAio:
        """The methods that wait, as coroutines."""
        return GroupActionsAio(self._cluster, self.name)

    def members(self) -> list[GroupMemberDescription]:
        """Its members: member_id, group_instance_id, client_id, client_host and assignment. Empty if the group does not exist."""
        return self._cluster.wait(members(self._cluster.core(), self.name))

    def hold(self, api: str = "SyncGroup", *, times: int | None = None) -> Fault:
        """Requests of its members wait until `release()` of the returned fault.

        Args:
            api: one whose requests name a group, for example "SyncGroup", "JoinGroup", "OffsetCommit", "ConsumerGroupHeartbeat".
            times: how many wait; None: all.
        """
        return self._cluster.wire_faults().on(api, group=self.name, times=times).hold()

    def evict(self, member: str) -> None:
        """Removes a member, as an administrator does. The member learns it from its next heartbeat, and joins again as a new one.

        Args:
            member: member id, client id or group.instance.id.

        Raises:
            KitError: no member, or more than one, has this name.
        """
        self._cluster.wait(evict(self._cluster.core(), self.name, member))

    def __repr__(self) -> str:
        return f"<group {self.name!r}>"


class GroupActionsAio:
    """The methods of a group that wait, as coroutines for asyncio and trio."""

    def __init__(self, cluster: _Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    async def members(self) -> list[GroupMemberDescription]:
        """Its members."""
        return await self._cluster.wait_async(members(self._cluster.core(), self._name))

    async def evict(self, member: str) -> None:
        """Removes a member."""
        await self._cluster.wait_async(evict(self._cluster.core(), self._name, member))


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
    from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest

    group = await _described(core, name)
    who = _one(name, member, [] if group is None else list(group.members))
    async with core.limit(f"the eviction of member '{member}' of group '{name}'"):
        admin = await core.admin()
        try:
            if group is not None and group.type == "consumer":
                # Kafka's LeaveGroup refuses members of the new protocol; a member of it leaves by a heartbeat.
                leave = ConsumerGroupHeartbeatRequest(
                    group_id=name, member_id=who.member_id, member_epoch=LEAVE_EPOCH, instance_id=who.group_instance_id
                )
                await admin._coordinated("group", name, leave, lambda response: response)
            elif who.group_instance_id is not None:
                await admin.remove_group_members(name, instance_ids=[who.group_instance_id])
            else:
                await admin.remove_group_members(name, member_ids=[who.member_id])
        except KafkaError as error:
            raise KitError(f"member '{member}' of group '{name}' was not evicted: {error}") from error


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
