"""MissingGroup: the first member creates the group, everything else is refused."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.broker.coordinator.groups import committing
from barnabas.broker.coordinator.groups.classic_decisions import join_new_group
from barnabas.broker.coordinator.groups.committing import Committer
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup
from barnabas.broker.coordinator.groups.consumer.member import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from barnabas.broker.coordinator.groups.effects import At, DeadlineKey, Effects, HeartbeatCall, JoinCall, Responder
from barnabas.broker.coordinator.groups.group import OffsetExpiry
from barnabas.broker.coordinator.groups.records import AnyRecord, ConsumerRecord, OffsetRecord
from barnabas.broker.coordinator.groups.tables import GroupTables
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from barnabas.protocol.messages.groups import MemberIdentity, MemberResponse, SyncGroupRequest


class MissingGroup:
    """A group that does not exist, as a `Group`."""

    __slots__ = ("_tables", "group_id")

    def __init__(self, tables: GroupTables, group_id: str) -> None:
        self._tables = tables
        self.group_id = group_id

    def join(self, call: JoinCall, at: At, effects: Effects) -> None:
        join_new_group(self._tables, call, at, effects, None)

    def sync(self, request: SyncGroupRequest, reply: Responder, at: At, effects: Effects) -> None:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, at: At) -> None:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)

    def leave(self, members: Sequence[MemberIdentity], at: At, effects: Effects) -> list[MemberResponse]:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)

    def consumer_heartbeat(self, call: HeartbeatCall, at: At, effects: Effects) -> ConsumerGroupHeartbeatResponse:
        epoch = call.request.member_epoch
        if epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            raise self._not_found()
        if epoch != JOIN_EPOCH:
            raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {self.group_id} not found.")
        records: list[ConsumerRecord] = []
        context = self._tables.context(self.group_id, at)
        response = self._tables.consumer_protocol.heartbeat(ConsumerGroup(self.group_id), call, context, records)
        effects.records += records
        return response

    def start_sessions(self, at: At) -> None:
        """No members."""

    def rebalance(self, at: At, effects: Effects) -> None:
        """No members."""

    def is_over_size(self) -> bool:
        return False

    def on_deadline(self, key: DeadlineKey, at: At, effects: Effects) -> bool:
        return False

    def remove_members(self, member_ids: tuple[str, ...], at: At, effects: Effects) -> None:
        """No members."""

    def check_commit(self, committer: Committer, offsets: Sequence[OffsetRecord], at: At) -> None:
        committing.check_missing(committer)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Allows every request; there are no offsets."""

    def check_offset_delete(self) -> None:
        raise self._not_found()

    def is_subscribed_to(self, topic: str) -> bool:
        return False

    def offset_expiry(self) -> OffsetExpiry | None:
        return None

    @property
    def is_empty(self) -> bool:
        return True

    def check_delete(self) -> None:
        raise self._not_found()

    def tombstones(self) -> Sequence[AnyRecord]:
        return []

    def _not_found(self) -> BrokerError:
        return BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} not found.")
