"""GroupTables: groups and offsets of one shard; applies their records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Protocol, cast

from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.protocol import ClassicProtocol
from barnabas.broker.coordinator.groups.classic.records import group_from_record
from barnabas.broker.coordinator.groups.classic.state import GroupState
from barnabas.broker.coordinator.groups.consumer.classic_members import ClassicMembers
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup
from barnabas.broker.coordinator.groups.consumer.protocol import ConsumerProtocol, Context
from barnabas.broker.coordinator.groups.effects import At, DeadlineKey
from barnabas.broker.coordinator.groups.offsets import NO_PRODUCER_ID, OffsetStore
from barnabas.broker.coordinator.groups.records import AnyRecord, ConsumerRecord, GroupRecord, Kind, OffsetRecord
from barnabas.broker.coordinator.groups.settings import ConsumerSettings, GroupSettings
from barnabas.broker.coordinator.groups.topics import Topics
from barnabas.broker.coordinator.host.deadlines import Deadlines
from barnabas.broker.coordinator.host.decision import ProducerStamp, Undo, undo_all
from barnabas.protocol.messages.internal import GroupMetadataValue


class Environment(Protocol):
    """Input of decisions besides their shard."""

    @property
    def topics(self) -> Topics: ...

    def consumer_settings(self, group_id: str) -> ConsumerSettings: ...


class GroupTables:
    """The groups of one shard, with their offsets, deadlines and protocols.

    Only `stage`, `replay` and `replay_marker` change offsets, consumer groups and the last recorded generation of a classic group. Joined
    members, parked requests and sessions between two generations are only in memory and lost with the leadership; members then join again.
    Invariant: every group with an offset or a record is either in `classic` or in `consumer`.
    """

    def __init__(self, settings: GroupSettings, environment: Environment) -> None:
        self.settings = settings
        self.classic: dict[str, ClassicGroup] = {}
        self.consumer: dict[str, ConsumerGroup] = {}
        self.offsets = OffsetStore()
        self.deadlines: Deadlines[DeadlineKey] = Deadlines()
        self.classic_protocol = ClassicProtocol(settings, self.deadlines)
        self.consumer_protocol = ConsumerProtocol(self.deadlines)
        self.classic_members = ClassicMembers(self.consumer_protocol)
        self._environment = environment

    @property
    def topics(self) -> Topics:
        return self._environment.topics

    def consumer_settings(self, group_id: str) -> ConsumerSettings:
        return self._environment.consumer_settings(group_id)

    def context(self, group_id: str, at: At) -> Context:
        return Context(self.topics, self.consumer_settings(group_id), at)

    # -- records -------------------------------------------------------------------------------------------------------

    def stage(self, records: Sequence[AnyRecord], producer: ProducerStamp | None) -> Undo:
        """Applies the records of a decision; the undo is called if their append fails. A decision may have thousands of offsets."""
        producer_id = NO_PRODUCER_ID if producer is None else producer.producer_id
        undos: list[Undo] = []
        for kind, found in groupby(records, type):
            if kind is OffsetRecord:
                undos.append(self._put_offsets(cast("list[OffsetRecord]", list(found)), producer_id))
            else:
                undos += map(self._stage, cast("Iterator[ConsumerRecord | GroupRecord]", found))
        return partial(undo_all, undos)

    def _stage(self, record: ConsumerRecord | GroupRecord) -> Undo:
        if isinstance(record, ConsumerRecord):
            return self._apply_consumer_record(record)
        if record.value is None:
            return self._remove_classic(record.group_id)
        group = self.classic.get(record.group_id)
        if group is None:
            return self._install_classic(record.group_id, record.value)
        return self._record_generation(group, record.value)

    def replay(self, record: AnyRecord, producer_id: int) -> None:
        """Applies a record of the log; the producer id is -1 if its batch is not transactional."""
        if isinstance(record, OffsetRecord):
            self._put_offsets([record], producer_id)
        elif isinstance(record, ConsumerRecord):
            self._apply_consumer_record(record)
        elif record.value is None:
            self._remove_classic(record.group_id)
        else:
            self._install_classic(record.group_id, record.value)

    def _put_offsets(self, records: Sequence[OffsetRecord], producer_id: int) -> Undo:
        undo = self.offsets.put(records, producer_id)
        made = []
        for group_id, value in {
            record.group_id: record.value for record in records if record.value is not None
        }.items():
            if group_id not in self.classic and group_id not in self.consumer:
                # A commit without membership creates a simple group: Empty, without a protocol type.
                group = ClassicGroup(group_id, state_timestamp_ms=value.commit_timestamp_ms)
                group.is_recorded = True
                self.classic[group_id] = group
                made.append(group_id)

        def undo_both() -> None:
            undo()
            for group_id in made:
                self.classic.pop(group_id, None)

        return undo_both if made else undo

    def _apply_consumer_record(self, record: ConsumerRecord) -> Undo:
        group_id = record.group_id
        group = self.consumer.get(group_id)
        if record.value is None and (group is None or record.kind is Kind.GROUP_EPOCH):
            return self._remove_consumer(group_id)
        if group is not None:
            return group.apply(record)
        group = self.consumer[group_id] = ConsumerGroup(group_id)
        group.apply(record)
        # A simple group has no record, so it has no tombstone.
        former = self.classic.pop(group_id, None)

        def undo() -> None:
            del self.consumer[group_id]
            if former is not None:
                self.classic[group_id] = former

        return undo

    def _remove_consumer(self, group_id: str) -> Undo:
        group = self.consumer.pop(group_id, None)
        if group is None:
            return _nothing

        def undo() -> None:
            self.consumer[group_id] = group

        return undo

    def _install_classic(self, group_id: str, value: GroupMetadataValue) -> Undo:
        former = self.classic.get(group_id)
        group = self.classic[group_id] = group_from_record(group_id, value)
        group.is_recorded = True

        def undo() -> None:
            if former is None:
                self.classic.pop(group_id, None)
            else:
                self.classic[group_id] = former

        return undo

    def _remove_classic(self, group_id: str) -> Undo:
        group = self.classic.pop(group_id, None)
        if group is None:
            return _nothing
        self.classic_protocol.cancel_deadlines(group)

        def undo() -> None:
            self.classic[group_id] = group

        return undo

    def _record_generation(self, group: ClassicGroup, value: GroupMetadataValue) -> Undo:
        """Applies the record of a known group: its first one, or the assignment that makes it Stable."""
        was_recorded, group.is_recorded = group.is_recorded, True
        assigns = group.state is GroupState.COMPLETING_REBALANCE and group.generation == value.generation
        if assigns:
            for recorded in value.members:
                group.members[recorded.member_id].assignment = recorded.assignment
            group.transition(GroupState.STABLE, value.current_state_timestamp)

        def undo() -> None:
            if not was_recorded:
                group.is_recorded = False
                if self.classic.get(group.group_id) is group:
                    del self.classic[group.group_id]
                    self.classic_protocol.cancel_deadlines(group)
            if assigns and group.state is GroupState.STABLE and group.generation == value.generation:
                # Not a transition of the protocol: the transition to Stable did not happen.
                group.state, group.previous_state = GroupState.COMPLETING_REBALANCE, GroupState.PREPARING_REBALANCE

        return undo


def _nothing() -> None:
    """Undoes nothing."""
