"""Groups and offsets of one partition of `__consumer_offsets`: a shard of `host.shard.ShardHost`.

Driven by: decisions of the group coordinator (`join`, `sync`, … each returns a Decision), staged and replayed records, markers.
Emits: Decisions; to its owner, that it is active (deadlines to arm) or resigned (parked answers to refuse).

What the log holds is changed by `stage` and `replay` alone: offsets, and each group's last recorded generation. The phase between
two generations (who has joined, whose answers are parked, sessions) is memory of the coordinator and changes in the decision:
it is lost with the leadership, and the members find their way back.

Invariants: a shard that replays the log of another has the same offsets, and the same groups as far as they were recorded;
every group with an offset or a record is in `groups`; deletion and expiry concern only groups without members.
A group id is that of a classic group or of a consumer group, never of both; requests of the classic protocol for a consumer group
go to its classic members (KIP-848's migration).
Follows KIP-211 (offset expiry), KIP-447, KIP-496 (OffsetDelete), KIP-518, KIP-848, KIP-1043.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from barnabas.broker.coordinator.groups import committing, migration
from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.rebalance import Rebalancing
from barnabas.broker.coordinator.groups.classic.state import GroupState, Reply
from barnabas.broker.coordinator.groups.committing import Committer
from barnabas.broker.coordinator.groups.consumer.classic_members import ClassicMembers
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup, Topics
from barnabas.broker.coordinator.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerMember,
)
from barnabas.broker.coordinator.groups.consumer.protocol import ConsumerProtocol, ConsumerSettings, HeartbeatCall
from barnabas.broker.coordinator.groups.consumer.records import ConsumerRecord, Kind, ResolvedRegex
from barnabas.broker.coordinator.groups.effects import Answer, At, Effects, GroupSettings, JoinCall
from barnabas.broker.coordinator.groups.offset_expiry import expired_offsets
from barnabas.broker.coordinator.groups.offsets import NO_PRODUCER_ID, OffsetStore
from barnabas.broker.coordinator.groups.records import (
    AnyRecord,
    GroupRecord,
    OffsetRecord,
    decode_record,
    encode_record,
    group_from_record,
    group_record,
)
from barnabas.broker.coordinator.host.shard import Decision, ProducerStamp, Undo
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from barnabas.protocol.messages.groups import (
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from barnabas.protocol.messages.internal import GroupMetadataValue

__all__ = ["AnyRecord", "Committer", "Conversion", "GroupShard", "ShardOwner"]


class Conversion(NamedTuple):
    """A group that has changed its protocol by a decision; `GroupShard.settle_in` follows once that is staged."""

    group_id: str
    rebalances: bool  # a classic group that lost members and must find its next generation


class ShardOwner(Protocol):
    """What a shard tells the coordinator it belongs to."""

    def on_shard_active(self, partition: int, shard: GroupShard) -> None:
        """Loading is complete."""
        ...

    def on_shard_resigned(self, partition: int, replies: list[Reply]) -> None:
        """Leadership is lost with these answers parked."""
        ...

    @property
    def topics(self) -> Topics:
        """The metadata of topics as this node has them now."""
        ...

    def consumer_settings(self, group_id: str) -> ConsumerSettings:
        """What holds for one consumer group now."""
        ...


class GroupShard:
    """One partition's groups.

    Args:
        partition: of `__consumer_offsets`.
        owner: told of activation and resignation.
    """

    def __init__(self, partition: int, settings: GroupSettings, owner: ShardOwner) -> None:
        self.partition = partition
        self.settings = settings
        self.groups: dict[str, ClassicGroup] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.conversions: list[Conversion] = []  # decided, and not settled in yet
        self.offsets = OffsetStore()
        self.rebalancing = Rebalancing(settings)
        self.consumers = ConsumerProtocol(self.rebalancing.deadlines)
        self.classic_members = ClassicMembers(self.consumers)
        self._owner = owner

    # -- the log -------------------------------------------------------------------------------------------------------

    def encode(self, record: AnyRecord) -> tuple[bytes, bytes | None]:
        """Key and value for the log."""
        return encode_record(record)

    def decode(self, key: bytes | None, value: bytes | None) -> AnyRecord | None:
        """The record of a key and value; None for kinds that are not served here. Raises RemoteProtocolError."""
        return decode_record(key, value)

    def stage(self, record: AnyRecord, producer: ProducerStamp | None) -> Undo:
        """Applies a decided record; the append follows in this wake-up, or the undo is called."""
        if isinstance(record, OffsetRecord):
            return self._put_offset(record, NO_PRODUCER_ID if producer is None else producer.producer_id)
        if isinstance(record, ConsumerRecord):
            return self._apply_consumer(record)
        group = self.groups.get(record.group_id)
        if record.value is None:
            return self._remove_group(record.group_id)
        if group is None:
            return self._install(record.group_id, record.value)
        return self._record_group(group, record.value)

    def settle(self, record: AnyRecord) -> None:
        """Nothing hangs on the commit but the answers."""

    def replay(self, record: AnyRecord, producer_id: int, producer_epoch: int) -> None:
        """Applies a record of the log."""
        if isinstance(record, OffsetRecord):
            self._put_offset(record, producer_id)
        elif isinstance(record, ConsumerRecord):
            self._apply_consumer(record)
        elif record.value is None:
            self._remove_group(record.group_id)
        else:
            self._install(record.group_id, record.value)

    def replay_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """The producer's transaction has ended, as the log says."""
        self.offsets.complete(producer_id, commit=commit)

    def on_active(self) -> None:
        """Loading is complete."""
        self._owner.on_shard_active(self.partition, self)

    def on_resigned(self) -> None:
        """Leadership is lost."""
        replies: list[Reply] = []
        for group in self.groups.values():
            for member in group.members.values():
                replies += [
                    reply for reply in (group.park_join(member, None), member.awaiting_sync) if reply is not None
                ]
                member.awaiting_sync = None
        self._owner.on_shard_resigned(self.partition, replies)

    def _put_offset(self, record: OffsetRecord, producer_id: int) -> Undo:
        undo = self.offsets.put(record, producer_id)
        if record.value is None or record.group_id in self.groups or record.group_id in self.consumer_groups:
            return undo
        # Whoever commits without joining makes a simple group: Empty, without a protocol type.
        group = ClassicGroup(record.group_id, state_timestamp_ms=record.value.commit_timestamp_ms)
        group.is_recorded = True
        self.groups[record.group_id] = group

        def undo_both() -> None:
            undo()
            self.groups.pop(record.group_id, None)

        return undo_both

    def _apply_consumer(self, record: ConsumerRecord) -> Undo:
        group_id = record.group_id
        group = self.consumer_groups.get(group_id)
        if record.value is None and (group is None or record.kind is Kind.EPOCH):
            return self._remove_consumer_group(group_id)
        if group is not None:
            return group.apply(record)
        group = self.consumer_groups[group_id] = ConsumerGroup(group_id)
        group.apply(record)
        # A simple group, known by its offsets alone, has no record to end it.
        former = self.groups.pop(group_id, None)

        def undo() -> None:
            del self.consumer_groups[group_id]
            if former is not None:
                self.groups[group_id] = former

        return undo

    def _remove_consumer_group(self, group_id: str) -> Undo:
        group = self.consumer_groups.pop(group_id, None)
        if group is None:
            return _nothing

        def undo() -> None:
            self.consumer_groups[group_id] = group

        return undo

    def _install(self, group_id: str, value: GroupMetadataValue) -> Undo:
        former = self.groups.get(group_id)
        group = self.groups[group_id] = group_from_record(group_id, value)
        group.is_recorded = True

        def undo() -> None:
            if former is None:
                self.groups.pop(group_id, None)
            else:
                self.groups[group_id] = former

        return undo

    def _remove_group(self, group_id: str) -> Undo:
        group = self.groups.pop(group_id, None)
        if group is None:
            return _nothing
        self.rebalancing.forget(group)

        def undo() -> None:
            self.groups[group_id] = group

        return undo

    def _record_group(self, group: ClassicGroup, value: GroupMetadataValue) -> Undo:
        """The record of a living group: the first of it, or its members' assignment, with which it is Stable."""
        was_recorded, group.is_recorded = group.is_recorded, True
        assigns = group.state is GroupState.COMPLETING_REBALANCE and group.generation == value.generation
        if assigns:
            for recorded in value.members:
                group.members[recorded.member_id].assignment = recorded.assignment
            group.transition(GroupState.STABLE, value.current_state_timestamp)

        def undo() -> None:
            if not was_recorded:
                group.is_recorded = False
                if self.groups.get(group.group_id) is group:
                    del self.groups[group.group_id]
                    self.rebalancing.forget(group)
            if assigns and group.state is GroupState.STABLE and group.generation == value.generation:
                # Not a transition of the protocol: the one to Stable never happened.
                group.state, group.previous_state = GroupState.COMPLETING_REBALANCE, GroupState.PREPARING_REBALANCE

        return undo

    @property
    def topics(self) -> Topics:
        """The metadata of topics as this node has them now."""
        return self._owner.topics

    def consumer_settings(self, group_id: str) -> ConsumerSettings:
        """What holds for one consumer group now."""
        return self._owner.consumer_settings(group_id)

    # -- membership ----------------------------------------------------------------------------------------------------

    def group(self, group_id: str, missing: ErrorCode = ErrorCode.GROUP_ID_NOT_FOUND) -> ClassicGroup:
        """The group; raises BrokerError(missing) where there is none."""
        group = self.groups.get(group_id)
        if group is None:
            raise BrokerError(missing, f"Group {group_id} not found.")
        return group

    def join(self, call: JoinCall, at: At) -> Decision[list[Answer], AnyRecord]:
        """JoinGroup: parked in the group, or answered."""
        request = call.request
        group = self.groups.get(request.group_id)
        effects = Effects()
        consumers = self.consumer_groups.get(request.group_id)
        if consumers is not None and not consumers.is_empty:
            self._join_consumers(consumers, call, at, effects)
            return Decision(effects.answers, effects.records)
        if group is None and request.member_id:
            unknown = ErrorCode.UNKNOWN_MEMBER_ID
            refusal = JoinGroupResponse(error_code=unknown, member_id=request.member_id, protocol_name=None)
            return Decision([Answer(call.reply, refusal)])
        if group is None:
            if consumers is not None:  # nobody is in it: the newcomer's protocol decides
                effects.records += consumers.tombstones()
            group = self.groups[request.group_id] = ClassicGroup(request.group_id, state_timestamp_ms=at.now_ms)
            effects.records.append(group_record(group))  # so that the group is known, however its first join ends
        self.rebalancing.join(group, call, at, effects)
        return Decision(effects.answers, effects.records)

    def sync(self, request: SyncGroupRequest, reply: Reply, at: At) -> Decision[list[Answer], AnyRecord]:
        """SyncGroup: parked until the leader's, or answered."""
        effects = Effects()
        group = self.groups.get(request.group_id)
        consumers = self.consumer_groups.get(request.group_id)
        try:
            if consumers is not None:
                response = self.classic_members.sync(consumers, request, self.topics, at)
                effects.answers.append(Answer(reply, response))
            elif group is None:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
            else:
                self.rebalancing.sync(group, request, reply, at, effects)
        except BrokerError as error:
            effects.answers.append(Answer(reply, SyncGroupResponse(error_code=error.code)))
        return Decision(effects.answers, effects.records)

    def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation: int, at: At
    ) -> ErrorCode:
        """Heartbeat: NONE or REBALANCE_IN_PROGRESS; raises BrokerError with other codes."""
        consumers = self.consumer_groups.get(group_id)
        if consumers is not None:
            return self.classic_members.heartbeat(consumers, member_id, group_instance_id, generation, at)
        group = self.group(group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return self.rebalancing.heartbeat(group, member_id, group_instance_id, generation, at)

    def leave(self, request: LeaveGroupRequest, at: At) -> Decision[tuple[LeaveGroupResponse, list[Answer]], AnyRecord]:
        """LeaveGroup: its response, and answers of others that it sets free."""
        effects = Effects()
        consumers = self.consumer_groups.get(request.group_id)
        if consumers is not None:
            responses, gone = self.classic_members.leavers(consumers, request.members)
            if gone:
                self._put_out(consumers, gone, at, effects)
            return Decision((LeaveGroupResponse(members=responses), effects.answers), effects.records)
        group = self.group(request.group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        response = self.rebalancing.leave(group, request, at, effects)
        return Decision((response, effects.answers), effects.records)

    def _join_consumers(self, group: ConsumerGroup, call: JoinCall, at: At, effects: Effects) -> None:
        """A JoinGroup of a consumer group; it may take the place of the last member that speaks its own protocol."""
        topics, settings = self.topics, self.consumer_settings(group.group_id)
        instance_id = call.request.group_instance_id
        former_id = None if instance_id is None else group.static_members.get(instance_id)
        records: list[ConsumerRecord] = []
        try:
            response, member = self.classic_members.join(group, call, topics, settings, at, records)
        except BrokerError as error:
            refusal = JoinGroupResponse(error_code=error.code, protocol_name=None)
            effects.answers.append(Answer(call.reply, refusal))
            return
        effects.records += records
        effects.answers.append(Answer(call.reply, response))
        if member is not None and former_id not in (None, member.member_id):
            after = group.copy()
            for record in records:
                after.apply(record)
            self._downgrade_if_due(after, [group.members[former_id or ""]], at, effects, rebalances=False)

    # -- the consumer protocol -----------------------------------------------------------------------------------------

    def consumer_heartbeat(self, call: HeartbeatCall, at: At) -> Decision[list[Answer], AnyRecord]:
        """ConsumerGroupHeartbeat: joins, keeps or ends a membership."""
        effects = Effects()
        request = call.request
        try:
            if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
                response = self._leave_consumers(call, at, effects)
            else:
                response = self._heartbeat_of_consumer(call, at, effects)
        except BrokerError as error:
            response = ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message or None)
            return Decision([Answer(call.reply, response)])
        effects.answers.append(Answer(call.reply, response))
        return Decision(effects.answers, effects.records)

    def _heartbeat_of_consumer(self, call: HeartbeatCall, at: At, effects: Effects) -> ConsumerGroupHeartbeatResponse:
        group_id = call.request.group_id
        topics, settings = self.topics, self.consumer_settings(group_id)
        group = self.consumer_groups.get(group_id)
        classic = self.groups.get(group_id)
        before: list[AnyRecord] = []
        if group is None:
            if call.request.member_epoch != JOIN_EPOCH:
                raise _not_there(group_id, classic, "Consumer group {} not found.")
            group = ConsumerGroup(group_id)
            if classic is not None:
                before = self._upgrade(classic, group, topics, settings)
        records: list[ConsumerRecord] = []
        response = self.consumers.heartbeat(group, call, topics, settings, at, records)
        effects.records += [*before, *records]
        if classic is not None and classic.state is not GroupState.EMPTY:
            # Decided: whoever waits for the classic group's next generation asks the new one.
            self.rebalancing.dissolve(classic, effects)
            self.conversions.append(Conversion(group_id, rebalances=False))
        return response

    def _upgrade(
        self, classic: ClassicGroup, group: ConsumerGroup, topics: Topics, settings: ConsumerSettings
    ) -> list[AnyRecord]:
        """What makes the classic group the consumer group `group`, which is filled with it."""
        end = GroupRecord(classic.group_id, None)
        if classic.state is GroupState.EMPTY:
            return [end]
        migration.check_upgrade(classic, settings)
        made = migration.upgraded(classic, topics)
        for record in made:
            group.apply(record)
        return [end, *made]

    def _leave_consumers(self, call: HeartbeatCall, at: At, effects: Effects) -> ConsumerGroupHeartbeatResponse:
        request = call.request
        group = self.consumer_groups.get(request.group_id)
        if group is None:
            raise _not_there(request.group_id, self.groups.get(request.group_id), "Group {} not found.")
        member = group.validate(request.member_id, request.instance_id)
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            records: list[ConsumerRecord] = []
            self.consumers.leave_for_a_while(group, member, records)
            effects.records += records
        else:
            self._put_out(group, (member.member_id,), at, effects)
        return ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)

    def _put_out(self, group: ConsumerGroup, member_ids: tuple[str, ...], at: At, effects: Effects) -> None:
        """Members leave or are put out; where only members of the classic protocol are left, the group is theirs again."""
        gone = [group.members[member_id] for member_id in member_ids]
        if not self._downgrade_if_due(group, gone, at, effects, rebalances=True):
            records: list[ConsumerRecord] = []
            self.consumers.remove(group, member_ids, self.topics, records)
            effects.records += records

    def _downgrade_if_due(
        self, group: ConsumerGroup, gone: list[ConsumerMember], at: At, effects: Effects, *, rebalances: bool
    ) -> bool:
        """Makes it a classic group where the members that have gone were the last of the consumer protocol."""
        rest = [member for member in group.members.values() if member not in gone]
        settings = self.consumer_settings(group.group_id)
        if not migration.may_downgrade(gone, rest, settings, self.settings.size_max):
            return False
        self.consumers.forget(group)
        effects.records += migration.downgraded(group, rest, self.topics, at)
        self.conversions.append(Conversion(group.group_id, rebalances))
        return True

    def settle_in(self, conversions: Sequence[Conversion], at: At) -> Decision[list[Answer], AnyRecord]:
        """Groups have changed their protocol: sessions begin anew, and members that have to are told to rebalance."""
        effects = Effects()
        for conversion in conversions:
            consumers = self.consumer_groups.get(conversion.group_id)
            classic = self.groups.get(conversion.group_id)
            if consumers is not None:
                self.consumers.arm(consumers, self.consumer_settings(conversion.group_id), at)
            elif classic is not None:
                self.rebalancing.arm(classic, at)
                if conversion.rebalances:
                    self.rebalancing.force(classic, at, effects)
        return Decision(effects.answers, effects.records)

    def resolved(self, group_id: str, found: dict[str, ResolvedRegex]) -> Decision[list[Answer], AnyRecord]:
        """Regular expressions were looked up."""
        records: list[ConsumerRecord] = []
        group = self.consumer_groups.get(group_id)
        if group is not None:
            self.consumers.resolved(group, found, self.topics, records)
        return Decision([], records)

    def reform(self, group_ids: Sequence[str], at: At) -> Decision[list[Answer], AnyRecord]:
        """Rebalances groups whose assignment could not be stored."""
        effects = Effects()
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is not None:
                self.rebalancing.force(group, at, effects)
        return Decision(effects.answers, effects.records)

    # -- time ----------------------------------------------------------------------------------------------------------

    def arm(self, at: At) -> Decision[list[Answer], AnyRecord]:
        """After loading: sessions begin anew; a group over the present size limit rebalances."""
        effects = Effects()
        for group in list(self.groups.values()):
            self.rebalancing.arm(group, at)
            if len(group.members) > self.settings.size_max:
                self.rebalancing.force(group, at, effects)
        for group_id, consumers in self.consumer_groups.items():
            self.consumers.arm(consumers, self.consumer_settings(group_id), at)
        return Decision(effects.answers, effects.records)

    def next_deadline_ms(self) -> int | None:
        """Monotonic ms at which `on_time` should be called; None: not before another decision."""
        return self.rebalancing.deadlines.earliest_ms()

    def on_time(self, at: At) -> Decision[list[Answer], AnyRecord]:
        """Whatever is due."""
        effects = Effects()
        deadlines = self.rebalancing.deadlines
        overdue: dict[str, dict[str, None]] = {}
        while (key := deadlines.pop(at.monotonic_ms)) is not None:
            group = self.groups.get(key[1])
            consumers = self.consumer_groups.get(key[1])
            if group is not None:
                self.rebalancing.on_deadline(group, key, at, effects)
            elif consumers is not None and self.consumers.is_overdue(consumers, key):
                overdue.setdefault(key[1], {})[key[2]] = None
        for group_id, member_ids in overdue.items():
            self._put_out(self.consumer_groups[group_id], tuple(member_ids), at, effects)
        return Decision(effects.answers, effects.records)

    def expired(self, at: At) -> list[AnyRecord]:
        """Tombstones of offsets past their retention, and of Empty groups that have none left."""
        records: list[AnyRecord] = []
        groups: list[ClassicGroup | ConsumerGroup] = [*self.groups.values(), *self.consumer_groups.values()]
        for group in groups:
            expired, all_expired = expired_offsets(group, self.offsets, self.settings.offsets_retention_ms, at.now_ms)
            records += expired
            if all_expired and group.is_empty:
                records += _tombstones(group)
        return records

    # -- offsets -------------------------------------------------------------------------------------------------------

    def check_commit(self, committer: Committer, offsets: Sequence[OffsetRecord], at: At) -> None:
        """Whether these offsets may be committed by this member; an OffsetCommit of a classic group counts as a heartbeat.

        Raises:
            BrokerError: as the functions of `committing`.
        """
        group = self.groups.get(committer.group_id)
        consumers = self.consumer_groups.get(committer.group_id)
        if consumers is not None:
            committing.check_consumer(consumers, committer, offsets, self.topics)
        elif group is None:
            committing.check_nobody(committer)
        else:
            committing.check_classic(group, committer)
            if not committer.is_transactional:
                self.rebalancing.keep_session(group, committer.member_id, at)

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Whether this member may read the group's offsets; raises as `committing.check_fetch`."""
        committing.check_fetch(self.consumer_groups.get(group_id), member_id, epoch)

    def delete_offset(self, group: ClassicGroup | ConsumerGroup, topic: str, partition: int) -> OffsetRecord | None:
        """The tombstone of one offset, committed or pending; None where there is none.

        Raises:
            BrokerError: GROUP_SUBSCRIBED_TO_TOPIC while members read the topic.
        """
        if group.is_subscribed_to(topic):
            raise BrokerError(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
        known = self.offsets.get(group.group_id, topic, partition) is not None
        if known or self.offsets.is_pending(group.group_id, topic, partition):
            return OffsetRecord(group.group_id, topic, partition, None)
        return None

    def check_offset_delete(self, group_id: str) -> ClassicGroup | ConsumerGroup:
        """The group whose offsets may be deleted.

        Raises:
            BrokerError: GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP where members are no consumers, so that their topics are not known.
        """
        consumers = self.consumer_groups.get(group_id)
        if consumers is not None:
            return consumers
        group = self.group(group_id)
        if group.state is not GroupState.EMPTY and not group.uses_consumer_protocol:
            raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
        return group

    def delete_group(self, group_id: str) -> Decision[None, AnyRecord]:
        """Tombstones of a group without members and of its offsets.

        Raises:
            BrokerError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        group = self.consumer_groups.get(group_id) or self.group(group_id)
        if not group.is_empty:
            raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
        keys = {
            (topic, partition): None for topic, found in self.offsets.topics(group_id).items() for partition in found
        }
        keys.update(dict.fromkeys(self.offsets.pending_partitions(group_id)))
        records: list[AnyRecord] = [OffsetRecord(group_id, topic, partition, None) for topic, partition in keys]
        return Decision(None, records + _tombstones(group))

    def offsets_of_topics(self, topics: frozenset[str], order: int) -> Iterator[list[AnyRecord]]:
        """Tombstones of the offsets of topics that were deleted when `offsets.order` was this."""
        for keys in self.offsets.of_topics(topics, order):
            yield [OffsetRecord(*key, None) for key in keys]


def _tombstones(group: ClassicGroup | ConsumerGroup) -> list[AnyRecord]:
    return [GroupRecord(group.group_id, None)] if isinstance(group, ClassicGroup) else [*group.tombstones()]


def _not_there(group_id: str, classic: ClassicGroup | None, message: str) -> BrokerError:
    text = message if classic is None else "Group {} is not a consumer group."
    return BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, text.format(group_id))


def _nothing() -> None:
    """Undo of what changed nothing."""
