"""Codec of consumer group records (KIP-848) in Kafka's keys and values, version 0 as Kafka 4.3.1 writes them."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct, pack
from typing import Any, Final, cast

from barnabas.broker.coordinator.groups.consumer.assignors import Partitions
from barnabas.broker.coordinator.groups.consumer.member import (
    ClassicMemberMetadata,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    PartitionEpochs,
)
from barnabas.broker.coordinator.groups.records import ConsumerRecord, GroupEpoch, Kind, ResolvedRegex, TargetEpoch
from barnabas.protocol.messages import internal
from barnabas.protocol.messages.internal import (
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
)
from barnabas.protocol.primitives import encode_uvarint
from barnabas.protocol.schema import RecordMessage, decode_versioned, encode_versioned

_VERSION = 0
_TARGET_PREFIX: Final = encode_versioned(ConsumerGroupTargetAssignmentMemberValue(topic_partitions=[]), _VERSION)[:2]
_ONE_PARTITION: Final = Struct(">16sBiB")  # topic id, length of the array, its only partition, no tags
_UUID_BYTES: Final = 16
_LENGTH: Final = Struct(">h")  # of a part
_SHORT_LENGTHS: Final = [encode_uvarint(count + 1) for count in range(128)]
_KEYS: dict[Kind, tuple[type[RecordMessage], str | None]] = {
    Kind.GROUP_EPOCH: (ConsumerGroupMetadataKey, None),
    Kind.PARTITION_METADATA: (ConsumerGroupPartitionMetadataKey, None),
    Kind.MEMBER_METADATA: (ConsumerGroupMemberMetadataKey, "member_id"),
    Kind.TARGET_ASSIGNMENT_EPOCH: (ConsumerGroupTargetAssignmentMetadataKey, None),
    Kind.TARGET_ASSIGNMENT: (ConsumerGroupTargetAssignmentMemberKey, "member_id"),
    Kind.CURRENT_ASSIGNMENT: (ConsumerGroupCurrentMemberAssignmentKey, "member_id"),
    Kind.REGEX: (ConsumerGroupRegularExpressionKey, "regular_expression"),
}


def encode_consumer_record(record: ConsumerRecord) -> tuple[bytes, bytes | None]:
    key, has_part = _key_start(record.kind, record.group_id)
    if has_part:
        part = record.part.encode()
        key += _LENGTH.pack(len(part)) + part
    if record.value is None:
        return key, None
    if record.kind is Kind.TARGET_ASSIGNMENT:
        return key, _target_value(record.value)
    return key, encode_versioned(_value(record.kind, record.value), _VERSION)


@lru_cache(maxsize=256)
def _key_start(kind: Kind, group_id: str) -> tuple[bytes, bool]:
    """A key up to its part, and whether it has one: a decision may have records of thousands of members."""
    key_type, part = _KEYS[kind]
    fields = {"group_id": group_id} if part is None else {"group_id": group_id, part: ""}
    key = encode_versioned(key_type(**fields), _VERSION)
    return (key, False) if part is None else (key[: -_LENGTH.size], True)


def decode_consumer_record(kind: Kind, key: bytes, value: bytes | None) -> ConsumerRecord:
    key_type, part = _KEYS[kind]
    read: Any = decode_versioned(key_type, key)
    return ConsumerRecord(
        read.group_id,
        kind,
        "" if part is None else getattr(read, part),
        None if value is None or kind is Kind.PARTITION_METADATA else _read(kind, value),
    )


def _value(kind: Kind, value: Any) -> RecordMessage:
    if kind is Kind.GROUP_EPOCH:
        return ConsumerGroupMetadataValue(epoch=value.epoch, metadata_hash=value.metadata_hash)
    if kind is Kind.TARGET_ASSIGNMENT_EPOCH:
        return ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=value.epoch, assignment_timestamp=value.timestamp_ms
        )
    if kind is Kind.CURRENT_ASSIGNMENT:
        return _current_assignment_value(value)
    if kind is Kind.REGEX:
        return ConsumerGroupRegularExpressionValue(
            topics=list(value.topics), version=value.version, timestamp=value.timestamp_ms
        )
    return _member_metadata_value(value)


def _member_metadata_value(metadata: MemberMetadata) -> ConsumerGroupMemberMetadataValue:
    classic = None
    if metadata.classic is not None:
        classic = internal.ClassicMemberMetadata(
            session_timeout_ms=metadata.classic.session_timeout_ms,
            supported_protocols=[
                internal.ClassicProtocol(name=name, metadata=data) for name, data in metadata.classic.protocols
            ],
        )
    return ConsumerGroupMemberMetadataValue(
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=list(metadata.topic_names),
        subscribed_topic_regex=metadata.topic_regex,
        rebalance_timeout_ms=metadata.rebalance_timeout_ms,
        server_assignor=metadata.server_assignor,
        classic_member_metadata=classic,
    )


def _target_value(target: Partitions) -> bytes:
    """A TARGET_ASSIGNMENT value as its codec makes it, but in one step: the first target of a group has a thousand topics."""
    parts = [_TARGET_PREFIX, _length(len(target))]
    for topic_id, numbers in target.items():
        count = len(numbers)
        if count == 1 and len(topic_id) == _UUID_BYTES:
            parts.append(_ONE_PARTITION.pack(topic_id, 2, numbers[0], 0))
        else:
            parts += (topic_id, _length(count), pack(f">{count}ib", *numbers, 0))
    parts.append(b"\0")
    return b"".join(parts)


def _length(count: int) -> bytes:
    return _SHORT_LENGTHS[count] if count < len(_SHORT_LENGTHS) else encode_uvarint(count + 1)


def _current_assignment_value(assignment: CurrentAssignment) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=assignment.member_epoch,
        previous_member_epoch=assignment.previous_member_epoch,
        state=assignment.state,
        assigned_partitions=_current(assignment.assigned),
        partitions_pending_revocation=_current(assignment.pending_revocation),
    )


def _current(partitions: PartitionEpochs) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(topic_id=topic_id, partitions=list(numbers), assignment_epochs=list(numbers.values()))
        for topic_id, numbers in partitions.items()
    ]


def _read(kind: Kind, value: bytes) -> Any:
    if kind is Kind.GROUP_EPOCH:
        epoch = decode_versioned(ConsumerGroupMetadataValue, value)
        return GroupEpoch(epoch.epoch, epoch.metadata_hash)
    if kind is Kind.TARGET_ASSIGNMENT_EPOCH:
        target_epoch = decode_versioned(ConsumerGroupTargetAssignmentMetadataValue, value)
        return TargetEpoch(target_epoch.assignment_epoch, target_epoch.assignment_timestamp)
    if kind is Kind.TARGET_ASSIGNMENT:
        target = decode_versioned(ConsumerGroupTargetAssignmentMemberValue, value)
        return {each.topic_id: tuple(sorted(each.partitions)) for each in target.topic_partitions}
    if kind is Kind.CURRENT_ASSIGNMENT:
        return _read_current_assignment(decode_versioned(ConsumerGroupCurrentMemberAssignmentValue, value))
    if kind is Kind.REGEX:
        regex = decode_versioned(ConsumerGroupRegularExpressionValue, value)
        return ResolvedRegex(tuple(regex.topics), regex.version, regex.timestamp)
    return _read_member_metadata(decode_versioned(ConsumerGroupMemberMetadataValue, value))


def _read_member_metadata(read: ConsumerGroupMemberMetadataValue) -> MemberMetadata:
    classic = None
    if read.classic_member_metadata is not None and read.classic_member_metadata.supported_protocols:
        protocols = tuple((each.name, each.metadata) for each in read.classic_member_metadata.supported_protocols)
        classic = ClassicMemberMetadata(read.classic_member_metadata.session_timeout_ms, protocols)
    return MemberMetadata(
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


def _read_current_assignment(read: ConsumerGroupCurrentMemberAssignmentValue) -> CurrentAssignment:
    known = tuple(MemberState)
    state = MemberState(read.state) if read.state in known else MemberState.UNKNOWN
    return CurrentAssignment(
        read.member_epoch,
        read.previous_member_epoch,
        state,
        _read_current(read.assigned_partitions, read.member_epoch),
        _read_current(read.partitions_pending_revocation, read.member_epoch),
    )


def _read_current(partitions: list[CurrentTopicPartitions], epoch: int) -> PartitionEpochs:
    """Partitions with their assignment epochs; the member epoch if there are none (Kafka before 4.3)."""
    result: PartitionEpochs = {}
    for each in partitions:
        epochs = cast("list[int]", each.assignment_epochs or [epoch] * len(each.partitions))
        result[each.topic_id] = dict(sorted(zip(each.partitions, epochs, strict=False)))
    return result
