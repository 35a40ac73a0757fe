"""Records of consumer groups (KIP-848) in `__consumer_offsets`: in memory, and as Kafka's keys and values.

Driven by: `ConsumerProtocol` when it decides, `ConsumerGroup` when it applies, `group_records` for encoding and decoding.
Emits: `ConsumerRecord`s and their bytes.

One group is many records, each replaced or deleted alone: its epoch (kind 3), members (5), the target's epoch (6) and each
member's target (7), what each member has (8), regular expressions with their matches (16). Kind 4, of Kafka before 4.1, is read
past and only its tombstone is written. Values as Kafka 4.3.1 writes them, all of version 0.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple, cast

from barnabas.broker.coordinator.groups.consumer.assignors import Partitions
from barnabas.broker.coordinator.groups.consumer.member import ClassicProfile, Epochs, MemberState, Profile, Standing
from barnabas.protocol.messages.internal import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    TargetTopicPartitions,
)
from barnabas.protocol.schema import Record, decode_versioned, encode_versioned

__all__ = [
    "ConsumerRecord",
    "GroupEpoch",
    "Kind",
    "ResolvedRegex",
    "TargetEpoch",
    "decode_consumer_record",
    "encode_consumer_record",
]


class Kind(IntEnum):
    """What a record tells, by the prefix of its key."""

    EPOCH = 3
    PARTITION_METADATA = 4
    PROFILE = 5
    TARGET_EPOCH = 6
    TARGET = 7
    STANDING = 8
    REGEX = 16


class GroupEpoch(NamedTuple):
    """The group's epoch, and the hash of the topics it subscribes to; 0 for none."""

    epoch: int
    metadata_hash: int = 0


class TargetEpoch(NamedTuple):
    """The group epoch a target was computed for, and when (wall clock, ms; 0 unknown)."""

    epoch: int
    timestamp_ms: int = 0


class ResolvedRegex(NamedTuple):
    """Topics that an expression matched, ascending, in the metadata of `version` (an offset), and when."""

    topics: tuple[str, ...]
    version: int
    timestamp_ms: int


class ConsumerRecord(NamedTuple):
    """A part of a group, or with None its tombstone.

    Attributes:
        part: member id, or regular expression; "" where there is one of its kind a group.
        value: GroupEpoch, Profile, TargetEpoch, Partitions, Standing or ResolvedRegex, by `kind`.
    """

    group_id: str
    kind: Kind
    part: str
    value: Any


_VERSION = 0
_KEYS: dict[Kind, tuple[type[Record], str | None]] = {
    Kind.EPOCH: (ConsumerGroupMetadataKey, None),
    Kind.PARTITION_METADATA: (ConsumerGroupPartitionMetadataKey, None),
    Kind.PROFILE: (ConsumerGroupMemberMetadataKey, "member_id"),
    Kind.TARGET_EPOCH: (ConsumerGroupTargetAssignmentMetadataKey, None),
    Kind.TARGET: (ConsumerGroupTargetAssignmentMemberKey, "member_id"),
    Kind.STANDING: (ConsumerGroupCurrentMemberAssignmentKey, "member_id"),
    Kind.REGEX: (ConsumerGroupRegularExpressionKey, "regular_expression"),
}


def encode_consumer_record(record: ConsumerRecord) -> tuple[bytes, bytes | None]:
    """Key and value for the log."""
    key_type, part = _KEYS[record.kind]
    fields = {"group_id": record.group_id}
    if part is not None:
        fields[part] = record.part
    key = encode_versioned(key_type(**fields), _VERSION)
    return key, None if record.value is None else encode_versioned(_value(record.kind, record.value), _VERSION)


def decode_consumer_record(kind: Kind, key: bytes, value: bytes | None) -> ConsumerRecord:
    """The record of a key of this kind and a value.

    Raises:
        RemoteProtocolError: the bytes are no such record.
    """
    key_type, part = _KEYS[kind]
    read: Any = decode_versioned(key_type, key)
    return ConsumerRecord(
        read.group_id,
        kind,
        "" if part is None else getattr(read, part),
        None if value is None or kind is Kind.PARTITION_METADATA else _read(kind, value),
    )


def _value(kind: Kind, value: Any) -> Record:
    if kind is Kind.EPOCH:
        return ConsumerGroupMetadataValue(epoch=value.epoch, metadata_hash=value.metadata_hash)
    if kind is Kind.TARGET_EPOCH:
        return ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=value.epoch, assignment_timestamp=value.timestamp_ms
        )
    if kind is Kind.TARGET:
        return _target_value(value)
    if kind is Kind.STANDING:
        return _standing_value(value)
    if kind is Kind.REGEX:
        return ConsumerGroupRegularExpressionValue(
            topics=list(value.topics), version=value.version, timestamp=value.timestamp_ms
        )
    return _profile_value(value)


def _profile_value(profile: Profile) -> ConsumerGroupMemberMetadataValue:
    classic = None
    if profile.classic is not None:
        classic = ClassicMemberMetadata(
            session_timeout_ms=profile.classic.session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=name, metadata=metadata) for name, metadata in profile.classic.protocols
            ],
        )
    return ConsumerGroupMemberMetadataValue(
        instance_id=profile.instance_id,
        rack_id=profile.rack_id,
        client_id=profile.client_id,
        client_host=profile.client_host,
        subscribed_topic_names=list(profile.topic_names),
        subscribed_topic_regex=profile.topic_regex,
        rebalance_timeout_ms=profile.rebalance_timeout_ms,
        server_assignor=profile.server_assignor,
        classic_member_metadata=classic,
    )


def _target_value(target: Partitions) -> ConsumerGroupTargetAssignmentMemberValue:
    return ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TargetTopicPartitions(topic_id=topic_id, partitions=list(numbers)) for topic_id, numbers in target.items()
        ]
    )


def _standing_value(standing: Standing) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=standing.epoch,
        previous_member_epoch=standing.previous_epoch,
        state=standing.state,
        assigned_partitions=_current(standing.assigned),
        partitions_pending_revocation=_current(standing.pending_revocation),
    )


def _current(partitions: Epochs) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(topic_id=topic_id, partitions=list(numbers), assignment_epochs=list(numbers.values()))
        for topic_id, numbers in partitions.items()
    ]


def _read(kind: Kind, value: bytes) -> Any:
    if kind is Kind.EPOCH:
        epoch = decode_versioned(ConsumerGroupMetadataValue, value)
        return GroupEpoch(epoch.epoch, epoch.metadata_hash)
    if kind is Kind.TARGET_EPOCH:
        target_epoch = decode_versioned(ConsumerGroupTargetAssignmentMetadataValue, value)
        return TargetEpoch(target_epoch.assignment_epoch, target_epoch.assignment_timestamp)
    if kind is Kind.TARGET:
        target = decode_versioned(ConsumerGroupTargetAssignmentMemberValue, value)
        return {each.topic_id: tuple(sorted(each.partitions)) for each in target.topic_partitions}
    if kind is Kind.STANDING:
        return _read_standing(decode_versioned(ConsumerGroupCurrentMemberAssignmentValue, value))
    if kind is Kind.REGEX:
        regex = decode_versioned(ConsumerGroupRegularExpressionValue, value)
        return ResolvedRegex(tuple(regex.topics), regex.version, regex.timestamp)
    return _read_profile(decode_versioned(ConsumerGroupMemberMetadataValue, value))


def _read_profile(read: ConsumerGroupMemberMetadataValue) -> Profile:
    classic = None
    if read.classic_member_metadata is not None and read.classic_member_metadata.supported_protocols:
        protocols = tuple((each.name, each.metadata) for each in read.classic_member_metadata.supported_protocols)
        classic = ClassicProfile(read.classic_member_metadata.session_timeout_ms, protocols)
    return Profile(
        read.instance_id,
        read.rack_id,
        read.client_id,
        read.client_host,
        tuple(read.subscribed_topic_names),
        read.subscribed_topic_regex or "",
        read.rebalance_timeout_ms,
        read.server_assignor,
        classic,
    )


def _read_standing(read: ConsumerGroupCurrentMemberAssignmentValue) -> Standing:
    known = tuple(MemberState)
    state = MemberState(read.state) if read.state in known else MemberState.UNKNOWN
    return Standing(
        read.member_epoch,
        read.previous_member_epoch,
        state,
        _read_current(read.assigned_partitions, read.member_epoch),
        _read_current(read.partitions_pending_revocation, read.member_epoch),
    )


def _read_current(partitions: list[CurrentTopicPartitions], epoch: int) -> Epochs:
    """Kafka before 4.3 did not write the epochs: the member's own stands for them."""
    result: Epochs = {}
    for each in partitions:
        epochs = cast("list[int]", each.assignment_epochs or [epoch] * len(each.partitions))
        result[each.topic_id] = dict(sorted(zip(each.partitions, epochs, strict=False)))
    return result
