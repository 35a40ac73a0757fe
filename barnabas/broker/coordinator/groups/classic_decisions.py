"""Classic group decisions: offsets (KIP-211, KIP-496), deletion, conversion to a consumer group (KIP-848)."""

from __future__ import annotations

from collections.abc import Sequence

from barnabas.broker.coordinator.groups import committing, migration
from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.state import GroupState
from barnabas.broker.coordinator.groups.committing import Committer
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup
from barnabas.broker.coordinator.groups.consumer.member import JOIN_EPOCH
from barnabas.broker.coordinator.groups.effects import (
    At,
    Conversion,
    DeadlineKey,
    Effects,
    HeartbeatCall,
    JoinCall,
    Responder,
)
from barnabas.broker.coordinator.groups.group import ExistingGroup, OffsetExpiry
from barnabas.broker.coordinator.groups.records import AnyRecord, ConsumerRecord, GroupRecord, OffsetRecord
from barnabas.broker.coordinator.groups.tables import GroupTables
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from barnabas.protocol.messages.groups import MemberIdentity, MemberResponse, SyncGroupRequest


class ClassicDecisions(ExistingGroup[ClassicGroup]):
    """A classic group as a `Group`; `ClassicProtocol` has the rules of members."""

    __slots__ = ("_protocol",)

    def __init__(self, tables: GroupTables, group: ClassicGroup) -> None:
        super().__init__(tables, group)
        self._protocol = tables.classic_protocol

    # -- membership ----------------------------------------------------------------------------------------------------

    def join(self, call: JoinCall, at: At, effects: Effects) -> None:
        self._protocol.join(self._group, call, at, effects)

    def sync(self, request: SyncGroupRequest, reply: Responder, at: At, effects: Effects) -> None:
        self._protocol.sync(self._group, request, reply, at, effects)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, at: At) -> None:
        self._protocol.heartbeat(self._group, member_id, instance_id, generation, at)

    def leave(self, members: Sequence[MemberIdentity], at: At, effects: Effects) -> list[MemberResponse]:
        return self._protocol.leave(self._group, members, at, effects)

    def consumer_heartbeat(self, call: HeartbeatCall, at: At, effects: Effects) -> ConsumerGroupHeartbeatResponse:
        """Converts the group to a consumer group and lets the client join it."""
        classic, tables = self._group, self._tables
        if call.request.member_epoch != JOIN_EPOCH:
            raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")
        context = tables.context(self.group_id, at)
        group = ConsumerGroup(self.group_id)
        records: list[ConsumerRecord] = []
        if not self.is_empty:
            migration.check_upgrade(classic, context.settings)
            records = migration.upgraded(classic, context.topics)
            for record in records:
                group.apply(record)
        response = tables.consumer_protocol.heartbeat(group, call, context, records)
        effects.records += [GroupRecord(self.group_id, None), *records]
        if not self.is_empty:
            self._protocol.end_for_upgrade(classic, effects)
            effects.conversions.append(Conversion(self.group_id, rebalances=False))
        return response

    # -- time ----------------------------------------------------------------------------------------------------------

    def start_sessions(self, at: At) -> None:
        self._protocol.start_sessions(self._group, at)

    def rebalance(self, at: At, effects: Effects) -> None:
        self._protocol.rebalance(self._group, at, effects)

    def is_over_size(self) -> bool:
        return len(self._group.members) > self._tables.settings.size_max

    def on_deadline(self, key: DeadlineKey, at: At, effects: Effects) -> bool:
        self._protocol.on_deadline(self._group, key, at, effects)
        return False

    # -- offsets -------------------------------------------------------------------------------------------------------

    def check_commit(self, committer: Committer, offsets: Sequence[OffsetRecord], at: At) -> None:
        committing.check_classic(self._group, committer)
        if not committer.is_transactional:
            self._protocol.extend_session(self._group, committer.member_id, at)

    def check_offset_delete(self) -> None:
        if not self.is_empty and not self._group.uses_consumer_protocol:
            raise BrokerError(ErrorCode.NON_EMPTY_GROUP)

    def offset_expiry(self) -> OffsetExpiry | None:
        """Without members from when the group became Empty; while consumers are Stable, offsets of topics that they do not read."""
        group = self._group
        if group.protocol_type is None:
            return OffsetExpiry(None)
        if self.is_empty:
            return OffsetExpiry(group.state_timestamp_ms if group.state_timestamp_ms >= 0 else None)
        knows_topics = group.uses_consumer_protocol and group.subscribed is not None
        return OffsetExpiry(None) if knows_topics and group.state is GroupState.STABLE else None

    # -- deletion ------------------------------------------------------------------------------------------------------

    def tombstones(self) -> Sequence[AnyRecord]:
        return [GroupRecord(self.group_id, None)]
