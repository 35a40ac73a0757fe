"""Groups and offsets of one partition of `__consumer_offsets`: a shard of `shard.ShardHost`.

Driven by: decisions of the group coordinator (`join`, `sync`, … each returns a Decision), staged and replayed records, markers.
Emits: Decisions; to its owner, that it is active (deadlines to arm) or resigned (parked answers to refuse).

What the log holds is changed by `stage` and `replay` alone: offsets, and each group's last recorded generation. The phase between
two generations (who has joined, whose answers are parked, sessions) is memory of the coordinator and changes in the decision:
it is lost with the leadership, and the members find their way back.

Invariants: a shard that replays the log of another has the same offsets, and the same groups as far as they were recorded;
every group with an offset or a record is in `groups`; deletion and expiry concern only groups without members.
Follows KIP-211 (offset expiry), KIP-447, KIP-496 (OffsetDelete), KIP-518, KIP-848's ListGroups types, KIP-1043.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from barnabas.broker.coordinator.classic_group import ClassicGroup
from barnabas.broker.coordinator.group_effects import Answer, At, Effects, GroupSettings, JoinCall
from barnabas.broker.coordinator.group_records import (
    NO_EXPIRY,
    CommittedOffset,
    GroupRecord,
    OffsetRecord,
    decode_record,
    encode_record,
    group_from_record,
    group_record,
)
from barnabas.broker.coordinator.group_state import GroupState, Reply
from barnabas.broker.coordinator.offsets import NO_PRODUCER_ID, OffsetStore
from barnabas.broker.coordinator.rebalance import Rebalancing
from barnabas.broker.coordinator.shard import Decision, ProducerStamp, Undo
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.groups import (
    DescribedGroup,
    DescribedGroupMember,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    SyncGroupRequest,
    SyncGroupResponse,
)
from barnabas.protocol.messages.internal import GroupMetadataValue

__all__ = ["AnyRecord", "Committer", "GroupShard", "ShardOwner"]

AnyRecord = GroupRecord | OffsetRecord
GROUP_TYPE = "classic"


class ShardOwner(Protocol):
    """What a shard tells the coordinator it belongs to."""

    def on_shard_active(self, partition: int, shard: GroupShard) -> None:
        """Loading is complete."""
        ...

    def on_shard_resigned(self, partition: int, replies: list[Reply]) -> None:
        """Leadership is lost with these answers parked."""
        ...


class Committer:
    """Who commits offsets: member and generation as the request names them; generation −1 and "" for nobody in particular."""

    __slots__ = ("generation", "group_id", "group_instance_id", "member_id")

    def __init__(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.generation = generation


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
        self.offsets = OffsetStore()
        self.rebalancing = Rebalancing(settings)
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
        if record.value is None or record.group_id in self.groups:
            return undo
        # Whoever commits without joining makes a simple group: Empty, without a protocol type.
        group = ClassicGroup(record.group_id, state_timestamp_ms=record.value.commit_timestamp_ms)
        group.is_recorded = True
        self.groups[record.group_id] = group

        def undo_both() -> None:
            undo()
            self.groups.pop(record.group_id, None)

        return undo_both

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
        if group is None and request.member_id:
            refusal = JoinGroupResponse(
                error_code=ErrorCode.UNKNOWN_MEMBER_ID, member_id=request.member_id, protocol_name=None
            )
            return Decision([Answer(call.reply, refusal)])
        if group is None:
            group = self.groups[request.group_id] = ClassicGroup(request.group_id, state_timestamp_ms=at.now_ms)
            effects.records.append(group_record(group))  # so that the group is known, however its first join ends
        self.rebalancing.join(group, call, at, effects)
        return Decision(effects.answers, effects.records)

    def sync(self, request: SyncGroupRequest, reply: Reply, at: At) -> Decision[list[Answer], AnyRecord]:
        """SyncGroup: parked until the leader's, or answered."""
        effects = Effects()
        group = self.groups.get(request.group_id)
        try:
            if group is None:
                raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
            self.rebalancing.sync(group, request, reply, at, effects)
        except BrokerError as error:
            effects.answers.append(Answer(reply, SyncGroupResponse(error_code=error.code)))
        return Decision(effects.answers, effects.records)

    def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation: int, at: At
    ) -> ErrorCode:
        """Heartbeat: NONE or REBALANCE_IN_PROGRESS; raises BrokerError with other codes."""
        group = self.group(group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return self.rebalancing.heartbeat(group, member_id, group_instance_id, generation, at)

    def leave(self, request: LeaveGroupRequest, at: At) -> Decision[tuple[LeaveGroupResponse, list[Answer]], AnyRecord]:
        """LeaveGroup: its response, and answers of others that it sets free."""
        group = self.group(request.group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        effects = Effects()
        response = self.rebalancing.leave(group, request, at, effects)
        return Decision((response, effects.answers), effects.records)

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
        return Decision(effects.answers, effects.records)

    def next_deadline_ms(self) -> int | None:
        """Monotonic ms at which `on_time` should be called; None: not before another decision."""
        return self.rebalancing.deadlines.earliest_ms()

    def on_time(self, at: At) -> Decision[list[Answer], AnyRecord]:
        """Whatever is due."""
        effects = Effects()
        deadlines = self.rebalancing.deadlines
        while (key := deadlines.pop(at.monotonic_ms)) is not None:
            group = self.groups.get(key[1])
            if group is not None:
                self.rebalancing.on_deadline(group, key, at, effects)
        return Decision(effects.answers, effects.records)

    def expired(self, at: At) -> list[AnyRecord]:
        """Tombstones of offsets past their retention, and of Empty groups that have none left."""
        records: list[AnyRecord] = []
        for group_id, group in self.groups.items():
            expired, all_expired = self._expired_offsets(group, at.now_ms)
            records += expired
            if all_expired and group.state is GroupState.EMPTY:
                records.append(GroupRecord(group_id, None))
        return records

    def _expired_offsets(self, group: ClassicGroup, now_ms: int) -> tuple[list[AnyRecord], bool]:
        """Tombstones, and whether the group has no other offsets, committed or pending."""
        group_id = group.group_id
        all_expired = not self.offsets.pending_partitions(group_id)
        # KIP-211: from the moment the group was Empty; without its state, or beside live members, from each commit.
        simple = group.protocol_type is None
        emptied = not simple and group.state is GroupState.EMPTY
        living = group.uses_consumer_protocol and group.state is GroupState.STABLE and group.subscribed is not None
        if not (simple or emptied or living):
            return [], False
        records: list[AnyRecord] = []
        for topic, partition, committed in self.offsets.partitions(group_id):
            since_ms = committed.commit_timestamp_ms
            if emptied and group.state_timestamp_ms >= 0:
                since_ms = group.state_timestamp_ms
            if (
                not self._is_expired(committed, since_ms, now_ms)
                or group.is_subscribed_to(topic)
                or self.offsets.is_pending(group_id, topic, partition)
            ):
                all_expired = False
            else:
                records.append(OffsetRecord(group_id, topic, partition, None))
        return records, all_expired

    def _is_expired(self, committed: CommittedOffset, since_ms: int, now_ms: int) -> bool:
        if committed.expire_timestamp_ms != NO_EXPIRY:
            return now_ms >= committed.expire_timestamp_ms
        return now_ms - since_ms >= self.settings.offsets_retention_ms

    # -- offsets -------------------------------------------------------------------------------------------------------

    def check_commit(self, committer: Committer, version: int, at: At) -> None:
        """Whether this member may commit (OffsetCommit); counts as a heartbeat.

        Raises:
            BrokerError: ILLEGAL_GENERATION (GROUP_ID_NOT_FOUND from v9 on) for a group that is not there, UNKNOWN_MEMBER_ID,
                FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS.
        """
        group = self.groups.get(committer.group_id)
        if group is None:
            if committer.generation >= 0:
                raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION)
            return
        if committer.generation < 0 and group.state is GroupState.EMPTY:
            return
        if not _names_a_member(committer):
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        self._check_generation(group, committer)
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
        self.rebalancing.keep_session(group, committer.member_id, at)

    def check_transactional_commit(self, committer: Committer) -> None:
        """Whether this member may commit in a transaction (KIP-447); clients before it name no member and are let through.

        Raises:
            BrokerError: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
        """
        group = self.groups.get(committer.group_id)
        if group is None:
            if committer.generation >= 0:
                raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
            return
        if committer.generation < 0 and group.state is GroupState.EMPTY:
            return
        if _names_a_member(committer):
            self._check_generation(group, committer)

    def _check_generation(self, group: ClassicGroup, committer: Committer) -> None:
        group.validate_member(committer.member_id, committer.group_instance_id)
        if committer.generation != group.generation:
            raise BrokerError(ErrorCode.ILLEGAL_GENERATION)

    def delete_offset(self, group: ClassicGroup, topic: str, partition: int) -> OffsetRecord | None:
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

    def check_offset_delete(self, group_id: str) -> ClassicGroup:
        """The group whose offsets may be deleted.

        Raises:
            BrokerError: GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP where members are no consumers, so that their topics are not known.
        """
        group = self.group(group_id)
        if group.state is not GroupState.EMPTY and not group.uses_consumer_protocol:
            raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
        return group

    def delete_group(self, group_id: str) -> Decision[None, AnyRecord]:
        """Tombstones of a group without members and of its offsets.

        Raises:
            BrokerError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        if self.group(group_id).state is not GroupState.EMPTY:
            raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
        keys = {
            (topic, partition): None for topic, found in self.offsets.topics(group_id).items() for partition in found
        }
        keys.update(dict.fromkeys(self.offsets.pending_partitions(group_id)))
        records: list[AnyRecord] = [OffsetRecord(group_id, topic, partition, None) for topic, partition in keys]
        records.append(GroupRecord(group_id, None))
        return Decision(None, records)

    def offsets_of_topics(self, topics: frozenset[str]) -> list[AnyRecord]:
        """Tombstones of all offsets of topics that were deleted."""
        return [OffsetRecord(*key, None) for key in self.offsets.of_topics(topics)]

    # -- looking at groups ---------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> DescribedGroup:
        """State and members; their metadata only where the group is Stable, their last assignments always. Raises GROUP_ID_NOT_FOUND."""
        group = self.group(group_id)
        stable = group.state is GroupState.STABLE
        members = [
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol_name) if stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ]
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol_name or "") if stable else "",
            members=members,
        )

    def list_groups(self, states: frozenset[str], types: frozenset[str]) -> list[ListedGroup]:
        """Groups in these states and of these types, both in lower case; empty sets mean all."""
        if types and GROUP_TYPE not in types:
            return []
        return [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=GROUP_TYPE,
            )
            for group in self.groups.values()
            if not states or group.state.value.lower() in states
        ]


def _names_a_member(committer: Committer) -> bool:
    return committer.generation >= 0 or bool(committer.member_id) or committer.group_instance_id is not None


def _nothing() -> None:
    """Undo of what changed nothing."""
