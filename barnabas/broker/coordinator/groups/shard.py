"""Group shard: the groups and offsets of one partition of `__consumer_offsets`, a shard of `host.shard.ShardHost`.
KIP-211 (offset expiry), KIP-447, KIP-496 (OffsetDelete), KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Protocol

from barnabas.broker.coordinator.groups.classic_decisions import ClassicDecisions
from barnabas.broker.coordinator.groups.consumer_decisions import ConsumerDecisions
from barnabas.broker.coordinator.groups.effects import (
    At,
    Conversion,
    Effects,
    GroupDecision,
    HeartbeatCall,
    JoinCall,
    MemberAnswer,
    Responder,
)
from barnabas.broker.coordinator.groups.group import Group
from barnabas.broker.coordinator.groups.offsets import OffsetStore
from barnabas.broker.coordinator.groups.record_codec import decode_record, encode_record
from barnabas.broker.coordinator.groups.records import (
    NO_EXPIRY,
    AnyRecord,
    CommittedOffset,
    ConsumerRecord,
    GroupRecord,
    Kind,
    OffsetRecord,
    ResolvedRegex,
)
from barnabas.broker.coordinator.groups.settings import GroupSettings
from barnabas.broker.coordinator.groups.tables import Environment, GroupTables
from barnabas.broker.coordinator.host.decision import Decision, ProducerStamp, Undo
from barnabas.errors import BrokerError
from barnabas.loggers import logger
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from barnabas.protocol.messages.groups import LeaveGroupRequest, LeaveGroupResponse, SyncGroupRequest

log = logger("kafka.coordinator.group")


class GroupShardOwner(Environment, Protocol):
    """The coordinator of a shard."""

    def on_shard_active(self, partition: int, shard: GroupShard) -> None: ...

    def on_shard_resigned(self, partition: int, replies: list[Responder]) -> None:
        """The leadership of the shard is lost; `replies` are parked requests."""
        ...


class GroupShard:
    """One partition of `__consumer_offsets`. The `Group` of a request decides; `GroupTables` applies the records."""

    def __init__(self, partition: int, settings: GroupSettings, owner: GroupShardOwner) -> None:
        self.partition = partition
        self.tables = GroupTables(settings, owner)
        self.offsets = self.tables.offsets
        self._owner = owner

    def group(self, group_id: str) -> Group:
        """The group may be missing."""
        consumer = self.tables.consumer.get(group_id)
        if consumer is not None:
            return ConsumerDecisions(self.tables, consumer)
        classic = self.tables.classic.get(group_id)
        if classic is not None:
            return ClassicDecisions(self.tables, classic)
        return Group(self.tables, group_id)

    def has_group(self, group_id: str) -> bool:
        return group_id in self.tables.classic or group_id in self.tables.consumer

    def groups(self) -> Iterator[Group]:
        """Classic groups first. Groups may be added or removed during the iteration."""
        for group_id in list(chain(self.tables.classic, self.tables.consumer)):
            yield self.group(group_id)

    def size(self) -> int:
        return len(self.tables.classic) + len(self.tables.consumer)

    # -- the log (Shard) -----------------------------------------------------------------------------------------------

    def encode(self, record: AnyRecord) -> tuple[bytes, bytes | None]:
        return encode_record(record)

    def decode(self, key: bytes | None, value: bytes | None) -> AnyRecord | None:
        return decode_record(key, value)

    def stage(self, records: Sequence[AnyRecord], producer: ProducerStamp | None) -> Undo:
        return self.tables.stage(records, producer)

    def on_committed(self, record: AnyRecord) -> None:
        """Logs changes of groups; `stage` has applied the record."""
        if not isinstance(record, OffsetRecord):
            _log(record)

    def replay(self, record: AnyRecord, producer_id: int, producer_epoch: int) -> None:
        self.tables.replay(record, producer_id)

    def replay_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        self.offsets.complete(producer_id, commit=commit)

    def on_active(self) -> None:
        self._owner.on_shard_active(self.partition, self)

    def on_resigned(self) -> None:
        replies: list[Responder] = []
        for group in self.tables.classic.values():
            for member in group.members.values():
                parked = (group.park_join(member, None), member.awaiting_sync)
                replies += [reply for reply in parked if reply is not None]
                member.awaiting_sync = None
        self._owner.on_shard_resigned(self.partition, replies)

    # -- membership ----------------------------------------------------------------------------------------------------

    def join(self, call: JoinCall, at: At) -> GroupDecision:
        effects = Effects()
        self.group(call.request.group_id).join(call, at, effects)
        return effects.decision()

    def sync(self, request: SyncGroupRequest, reply: Responder, at: At) -> GroupDecision:
        effects = Effects()
        try:
            self.group(request.group_id).sync(request, reply, at, effects)
        except BrokerError as error:
            effects.refuse_sync(reply, error.code)
        return effects.decision()

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int, at: At) -> None:
        self.group(group_id).heartbeat(member_id, group_instance_id, generation, at)

    def leave(self, request: LeaveGroupRequest, at: At) -> Decision[tuple[LeaveGroupResponse, Effects], AnyRecord]:
        """The response, and answers to parked requests of the group. Raises BrokerError(UNKNOWN_MEMBER_ID) for a missing group."""
        effects = Effects()
        members = self.group(request.group_id).leave(request.members, at, effects)
        return Decision((LeaveGroupResponse(members=members), effects), effects.records)

    def consumer_heartbeat(self, call: HeartbeatCall, at: At) -> GroupDecision:
        effects = Effects()
        try:
            response = self.group(call.request.group_id).consumer_heartbeat(call, at, effects)
        except BrokerError as error:
            effects = Effects()
            response = ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message or None)
        effects.answers.append(MemberAnswer(call.reply, response))
        return effects.decision()

    def store_resolved(self, group_id: str, found: dict[str, ResolvedRegex]) -> GroupDecision:
        records: list[ConsumerRecord] = []
        group = self.tables.consumer.get(group_id)
        if group is not None:
            self.tables.consumer_protocol.store_resolved(group, found, self.tables.topics, records)
        return Decision(Effects(), records)

    # -- rebalances and time -------------------------------------------------------------------------------------------

    def start_converted(self, conversions: Sequence[Conversion], at: At) -> GroupDecision:
        """Starts the sessions of converted groups, and the rebalances that are due."""
        effects = Effects()
        for conversion in conversions:
            group = self.group(conversion.group_id)
            group.start_sessions(at)
            if conversion.rebalances:
                group.rebalance(at, effects)
        return effects.decision()

    def rebalance(self, group_ids: Sequence[str], at: At) -> GroupDecision:
        """For groups whose assignment could not be stored."""
        effects = Effects()
        for group_id in group_ids:
            self.group(group_id).rebalance(at, effects)
        return effects.decision()

    def start_loaded(self, at: At) -> GroupDecision:
        """Starts all sessions after loading; groups above the current size limit rebalance."""
        effects = Effects()
        for group in self.groups():
            group.start_sessions(at)
            if group.is_over_size():
                group.rebalance(at, effects)
        return effects.decision()

    def next_deadline_ms(self) -> int | None:
        """Monotonic time of the next call of `on_time`; None without deadlines."""
        return self.tables.deadlines.earliest_ms()

    def on_time(self, at: At) -> GroupDecision:
        effects = Effects()
        overdue: dict[str, dict[str, None]] = {}  # members to remove; of one group together
        while (key := self.tables.deadlines.pop(at.monotonic_ms)) is not None:
            if self.group(key[1]).on_deadline(key, at, effects):
                overdue.setdefault(key[1], {})[key[2]] = None
        for group_id, member_ids in overdue.items():
            self.group(group_id).remove_members(tuple(member_ids), at, effects)
        return effects.decision()

    # -- offsets -------------------------------------------------------------------------------------------------------

    def expired(self, at: At, keep: Container[str] = ()) -> Iterator[tuple[int, Sequence[AnyRecord]]]:
        """Yields the number of checked offsets, and tombstones of offsets and empty groups, to be staged before the next step."""
        retention_ms = self.tables.settings.offsets_retention_ms
        for group in self.groups():
            present = partial(self.group, group.group_id)
            all_expired = yield from expired_offsets(present, self.offsets, retention_ms, at.now_ms)
            group = present()  # as it is after those steps
            if all_expired and group.is_empty and group.group_id not in keep:
                yield 1, group.tombstones()

    def offsets_of_topics(self, topics: frozenset[str], order: int) -> Iterator[list[AnyRecord]]:
        """Tombstones of offsets of deleted topics, written up to `OffsetStore.order`."""
        for keys in self.offsets.of_topics(topics, order):
            yield [OffsetRecord(*key, None) for key in keys]

    def delete_group(self, group_id: str) -> Decision[None, AnyRecord]:
        """Deletes a group without members, and its offsets. Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = self.group(group_id)
        group.check_delete()
        committed = ((topic, partition) for topic, part in self.offsets.chunks(group_id) for partition in part)
        keys = dict.fromkeys(chain(committed, self.offsets.pending_partitions(group_id)))
        return Decision(None, [*_tombstones(group_id, keys), *group.tombstones()])


def _tombstones(group_id: str, keys: Iterable[tuple[str, int]]) -> list[AnyRecord]:
    return [OffsetRecord(group_id, topic, partition, None) for topic, partition in keys]


def _log(record: ConsumerRecord | GroupRecord) -> None:
    group = record.group_id
    if isinstance(record, GroupRecord):
        if record.value is None:
            log.info("Group is deleted: group=%s", group)
    elif record.kind is Kind.GROUP_EPOCH:
        if record.value is None:
            log.info("Group is deleted: group=%s", group)
        else:
            log.info("Group has a new epoch: group=%s epoch=%d", group, record.value.epoch)
    elif record.kind is Kind.TARGET_ASSIGNMENT_EPOCH and record.value is not None:
        log.info("Group has a new target assignment: group=%s epoch=%d", group, record.value.epoch)
    elif record.kind is Kind.MEMBER_METADATA:
        if record.value is None:
            log.info("Member is removed: group=%s member=%s", group, record.part)
        else:
            log.info("Member joins or changes: group=%s member=%s", group, record.part)


def expired_offsets(
    present: Callable[[], Group], offsets: OffsetStore, retention_ms: int, now_ms: int
) -> Generator[tuple[int, Sequence[OffsetRecord]], None, bool]:
    """Yields the number of checked offsets and tombstones of expired ones, to be staged before the next step.

    An offset stays while an open transaction has a newer one for its partition, or members read its topic. OffsetCommit 2 to 4 may name an
    expiry time. Returns whether the group has no offsets left, committed or pending. `present` returns the current group: members may join
    between two steps, and then its offsets stay.
    """
    group = present()
    if group.offset_expiry() is None:
        return False
    group_id = group.group_id
    for topic, partitions in offsets.chunks(group_id):
        group = present()
        expiry = group.offset_expiry()
        if expiry is None:
            return False
        if group.is_subscribed_to(topic):
            yield 1, []
            continue
        records = []
        for partition in partitions:
            committed = offsets.get(group_id, topic, partition)
            if (
                committed is not None
                and _is_expired(committed, expiry.emptied_ms, retention_ms, now_ms)
                and not offsets.is_pending(group_id, topic, partition)
            ):
                records.append(OffsetRecord(group_id, topic, partition, None))
        yield len(partitions), records
    return not offsets.has_any(group_id)


def _is_expired(committed: CommittedOffset, emptied_ms: int | None, retention_ms: int, now_ms: int) -> bool:
    if committed.expire_timestamp_ms != NO_EXPIRY:
        return now_ms >= committed.expire_timestamp_ms
    since_ms = committed.commit_timestamp_ms if emptied_ms is None else emptied_ms
    return now_ms - since_ms >= retention_ms
