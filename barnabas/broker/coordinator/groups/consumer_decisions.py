"""Consumer group decisions (KIP-848): offsets, deletion, conversion to a classic group."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.broker.coordinator.groups import committing, migration
from barnabas.broker.coordinator.groups.committing import Committer
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup
from barnabas.broker.coordinator.groups.consumer.member import LEAVE_EPOCH, LEAVE_STATIC_EPOCH, ConsumerMember
from barnabas.broker.coordinator.groups.effects import (
    At,
    Conversion,
    DeadlineKey,
    Effects,
    HeartbeatCall,
    JoinCall,
    MemberAnswer,
    Responder,
)
from barnabas.broker.coordinator.groups.group import ExistingGroup, OffsetExpiry
from barnabas.broker.coordinator.groups.records import AnyRecord, ConsumerRecord, OffsetRecord
from barnabas.broker.coordinator.groups.tables import GroupTables
from barnabas.errors import BrokerError
from barnabas.loggers import logger
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from barnabas.protocol.messages.groups import JoinGroupResponse, MemberIdentity, MemberResponse, SyncGroupRequest

log = logger("kafka.coordinator.group")


class ConsumerDecisions(ExistingGroup[ConsumerGroup]):
    """A consumer group as a `Group`; `ConsumerProtocol` and `ClassicMembers` have the rules of members.

    It needs no rebalance of its own: each member gets its next assignment at its next heartbeat.
    """

    __slots__ = ("_protocol",)

    def __init__(self, tables: GroupTables, group: ConsumerGroup) -> None:
        super().__init__(tables, group)
        self._protocol = tables.consumer_protocol

    # -- members of the classic protocol -------------------------------------------------------------------------------

    def join(self, call: JoinCall, at: At, effects: Effects) -> None:
        if self.is_empty:
            self._join_new_group(call, at, effects)
            return
        group = self._group
        instance_id = call.request.group_instance_id
        former_id = None if instance_id is None else group.static_members.get(instance_id)
        records: list[ConsumerRecord] = []
        context = self._tables.context(self.group_id, at)
        try:
            response, member = self._tables.classic_members.join(group, call, context, records)
        except BrokerError as error:
            refusal = JoinGroupResponse(error_code=error.code, protocol_name=None)
            effects.answers.append(MemberAnswer(call.reply, refusal))
            return
        effects.records += records
        effects.answers.append(MemberAnswer(call.reply, response))
        if member is not None and former_id is not None and former_id != member.member_id:
            after = group.copy()
            for record in records:
                after.apply(record)
            self._downgrade_if_due(after, [group.members[former_id]], at, effects, rebalances=False)

    def sync(self, request: SyncGroupRequest, reply: Responder, at: At, effects: Effects) -> None:
        response = self._tables.classic_members.sync(self._group, request, self._tables.topics, at)
        effects.answers.append(MemberAnswer(reply, response))

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, at: At) -> None:
        self._tables.classic_members.heartbeat(self._group, member_id, instance_id, generation, at)

    def leave(self, members: Sequence[MemberIdentity], at: At, effects: Effects) -> list[MemberResponse]:
        responses, member_ids = self._tables.classic_members.members_to_remove(self._group, members)
        if member_ids:
            self.remove_members(member_ids, at, effects)
        return responses

    # -- members of the consumer protocol ------------------------------------------------------------------------------

    def consumer_heartbeat(self, call: HeartbeatCall, at: At, effects: Effects) -> ConsumerGroupHeartbeatResponse:
        if call.request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            return self._leave(call, at, effects)
        records: list[ConsumerRecord] = []
        response = self._protocol.heartbeat(self._group, call, self._tables.context(self.group_id, at), records)
        effects.records += records
        return response

    def _leave(self, call: HeartbeatCall, at: At, effects: Effects) -> ConsumerGroupHeartbeatResponse:
        request = call.request
        member = self._group.validate(request.member_id, request.instance_id)
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            records: list[ConsumerRecord] = []
            self._protocol.leave_static(self._group, member, records)
            effects.records += records
        else:
            self.remove_members((member.member_id,), at, effects)
        return ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)

    def remove_members(self, member_ids: tuple[str, ...], at: At, effects: Effects) -> None:
        """If only members of the classic protocol remain, the group becomes a classic group."""
        group = self._group
        gone = [group.members[member_id] for member_id in member_ids]
        if not self._downgrade_if_due(group, gone, at, effects, rebalances=True):
            records: list[ConsumerRecord] = []
            self._protocol.remove(group, member_ids, self._tables.topics, records)
            effects.records += records

    def _downgrade_if_due(
        self, group: ConsumerGroup, gone: list[ConsumerMember], at: At, effects: Effects, *, rebalances: bool
    ) -> bool:
        """Converts the group to a classic group if the last members of the consumer protocol leave (`gone`)."""
        tables = self._tables
        settings = tables.consumer_settings(group.group_id)
        rest = migration.rest_to_downgrade(group, gone, settings, tables.settings.size_max)
        if not rest:
            return False
        self._protocol.cancel_deadlines(group)
        effects.records += migration.downgraded(group, rest, tables.topics, at)
        effects.conversions.append(Conversion(group.group_id, rebalances))
        return True

    # -- time ----------------------------------------------------------------------------------------------------------

    def start_sessions(self, at: At) -> None:
        self._protocol.start_sessions(self._group, self._tables.consumer_settings(self.group_id), at)

    def on_deadline(self, key: DeadlineKey, at: At, effects: Effects) -> bool:
        overdue = self._protocol.is_overdue(self._group, key)
        if overdue:
            log.info(
                "Member has expired and is removed: group=%s member=%s deadline=%s",
                self._group.group_id,
                key[2],
                key[0],
            )
        return overdue

    # -- offsets -------------------------------------------------------------------------------------------------------

    def check_commit(self, committer: Committer, offsets: Sequence[OffsetRecord], at: At) -> None:
        committing.check_consumer(self._group, committer, offsets, self._tables.topics)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        committing.check_fetch(self._group, member_id, epoch)

    def check_offset_delete(self) -> None:
        """Allows every request: the topics of all members are known."""

    def offset_expiry(self) -> OffsetExpiry | None:
        return OffsetExpiry(None)

    # -- deletion ------------------------------------------------------------------------------------------------------

    def tombstones(self) -> Sequence[AnyRecord]:
        return self._group.tombstones()
