"""Admin client plus one internal request: removing a KIP-848 member."""

from __future__ import annotations

from typing import Final

from barnabas.client import Admin
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest

LEAVE_EPOCH: Final = -1  # KIP-848: the member epoch of a heartbeat by which a member leaves


class OwnAdmin(Admin):
    """See the module."""

    async def leave_for(self, group_id: str, member_id: str, instance_id: str | None) -> None:
        """Sends the last heartbeat of a member of a consumer group (KIP-848) in its place: LeaveGroup refuses such members.

        Raises KafkaError: the coordinator has refused it, for example because there is no such member (UNKNOWN_MEMBER_ID).
        """
        leave = ConsumerGroupHeartbeatRequest(
            group_id=group_id, member_id=member_id, member_epoch=LEAVE_EPOCH, instance_id=instance_id
        )
        await self._coordinated("group", group_id, leave)
