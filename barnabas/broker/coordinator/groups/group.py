"""Group: what requests ask of a group. Here for a group that does not exist; ClassicDecisions and ConsumerDecisions (KIP-848) have one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from barnabas.broker.coordinator.groups import committing
from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.records import group_record
from barnabas.broker.coordinator.groups.committing import Committer
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup
from barnabas.broker.coordinator.groups.consumer.member import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from barnabas.broker.coordinator.groups.effects import At, DeadlineKey, Effects, HeartbeatCall, JoinCall, Responder
from barnabas.broker.coordinator.groups.records import AnyRecord, ConsumerRecord, OffsetRecord
from barnabas.broker.coordinator.groups.tables import GroupTables
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from barnabas.protocol.messages.groups import MemberIdentity, MemberResponse, SyncGroupRequest

G = TypeVar("G", bound=ClassicGroup | ConsumerGroup)


class OffsetExpiry(NamedTuple):
    """How the offsets of a group expire (KIP-211)."""

    emptied_ms: int | None  # wall clock from which the retention counts; None: from each commit


class Group:
    """Decides about one group. This class has no group: the first member creates it, everything else is refused.

    Methods raise BrokerError to refuse a request; then nothing has changed.
    """

    __slots__ = ("_tables", "group_id")

    def __init__(self, tables: GroupTables, group_id: str) -> None:
        self._tables = tables
        self.group_id = group_id

    # -- membership

    def join(self, call: JoinCall, at: At, effects: Effects) -> None:
        self._join_new_group(call, at, effects)

    def _join_new_group(self, call: JoinCall, at: At, effects: Effects) -> None:
        """Creates a classic group, unless the request names a member id; an empty group that has this id is deleted."""
        request, tables = call.request, self._tables
        if request.member_id:
            effects.refuse_join(call.reply, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            return
        effects.records += self.tombstones()
        group = tables.classic[request.group_id] = ClassicGroup(request.group_id, state_timestamp_ms=at.now_ms)
        effects.records.append(group_record(group))  # the group is recorded even if its first join fails
        tables.classic_protocol.join(group, call, at, effects)

    def sync(self, request: SyncGroupRequest, reply: Responder, at: At, effects: Effects) -> None:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, at: At) -> None:
        """Extends the session of a classic member; raises as `ClassicProtocol.heartbeat`."""
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)

    def leave(self, members: Sequence[MemberIdentity], at: At, effects: Effects) -> list[MemberResponse]:
        """Removes members; a response for each. Raises BrokerError(UNKNOWN_MEMBER_ID) for a missing group."""
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)

    def consumer_heartbeat(self, call: HeartbeatCall, at: At, effects: Effects) -> ConsumerGroupHeartbeatResponse:
        """A member joins, stays or leaves. Raises BrokerError(GROUP_ID_NOT_FOUND), and as `ConsumerProtocol.heartbeat`."""
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

    # -- time

    def start_sessions(self, at: At) -> None:
        """After the group was loaded or converted."""

    def rebalance(self, at: At, effects: Effects) -> None:
        """Starts a rebalance if the group needs one to get a new assignment and its state allows it."""

    def is_over_size(self) -> bool:
        """Whether the group must rebalance because it has more members than the settings allow."""
        return False

    def on_deadline(self, key: DeadlineKey, at: At, effects: Effects) -> bool:
        """Returns whether `remove_members` must be called for the member of the passed deadline."""
        return False

    def remove_members(self, member_ids: tuple[str, ...], at: At, effects: Effects) -> None:
        """Removes the members for which `on_deadline` returned True."""

    # -- offsets

    def check_commit(self, committer: Committer, offsets: Sequence[OffsetRecord], at: At) -> None:
        """Checks that a member may commit these offsets; raises as `committing`. A commit extends the session of a classic member."""
        committing.check_missing(committer)

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Checks that a member may read offsets; raises as `committing.check_fetch`. Only consumer groups refuse."""

    def check_offset_delete(self) -> None:
        """Deletion needs the topics that members read. Raises BrokerError(GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP)."""
        raise self._not_found()

    def is_subscribed_to(self, topic: str) -> bool:
        return False

    def offset_expiry(self) -> OffsetExpiry | None:
        """None if offsets do not expire now."""
        return None

    # -- deletion

    @property
    def is_empty(self) -> bool:
        return True

    def check_delete(self) -> None:
        """Raises BrokerError(GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP)."""
        raise self._not_found()

    def tombstones(self) -> Sequence[AnyRecord]:
        """Tombstones that delete the group, without its offsets."""
        return []

    def _not_found(self) -> BrokerError:
        return BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} not found.")


class ExistingGroup(Group, Generic[G]):
    """What classic and consumer groups share."""

    __slots__ = ("_group",)

    def __init__(self, tables: GroupTables, group: G) -> None:
        super().__init__(tables, group.group_id)
        self._group = group

    @property
    def is_empty(self) -> bool:
        return self._group.is_empty

    def is_subscribed_to(self, topic: str) -> bool:
        return self._group.is_subscribed_to(topic)

    def check_delete(self) -> None:
        if not self.is_empty:
            raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
