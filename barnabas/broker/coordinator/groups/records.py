"""Records of `__consumer_offsets`: what the group coordinator writes and reads, in memory and as Kafka's keys and values.

Driven by: `GroupShard` when it decides, encodes and loads.
Emits: `GroupRecord`, `OffsetRecord` and `ConsumerRecord`, and their bytes.

Kinds by the key's two-byte prefix: 0 and 1 committed offset, 2 classic group, those of `consumer_records`; others (share, streams)
are not known here. Values as Kafka 4.3.1 writes them: OffsetCommitValue 4 (1 where the client asked for a retention of its own),
GroupMetadataValue 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.state import GroupMember, GroupState
from barnabas.broker.coordinator.groups.consumer.records import (
    ConsumerRecord,
    Kind,
    decode_consumer_record,
    encode_consumer_record,
)
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.messages.internal import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from barnabas.protocol.schema import decode_versioned, encode_versioned

__all__ = [
    "NO_EXPIRY",
    "NO_TOPIC_ID",
    "AnyRecord",
    "CommittedOffset",
    "GroupRecord",
    "OffsetRecord",
    "decode_record",
    "encode_record",
    "group_from_record",
    "group_record",
]

NO_TOPIC_ID = bytes(16)
NO_EXPIRY = -1

_OFFSET_VALUE_VERSION = 4
_OFFSET_VALUE_VERSION_WITH_EXPIRY = 1  # the only one that has the field
_GROUP_VALUE_VERSION = 3
_KEY_VERSION = 0  # ignored: the prefix of a key is its kind
_OFFSET_KEYS = (0, 1)
_GROUP_KEY = 2
_CONSUMER_KINDS = {int(kind): kind for kind in Kind}


class CommittedOffset(NamedTuple):
    """One committed position.

    Attributes:
        offset: next offset to read.
        leader_epoch: of the last record read; -1 unknown.
        metadata: the client's own text, given back as it came.
        commit_timestamp_ms: when it was committed; retention counts from it for groups without members' state.
        expire_timestamp_ms: OffsetCommit v2–4 with a retention: when it expires; else -1.
        topic_id: of the topic meant; zeros where it was not known.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY
    topic_id: bytes = NO_TOPIC_ID


class OffsetRecord(NamedTuple):
    """A committed offset, or with None its tombstone."""

    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None


class GroupRecord(NamedTuple):
    """A group's generation with its members and their assignments, or with None its tombstone."""

    group_id: str
    value: GroupMetadataValue | None


AnyRecord = GroupRecord | OffsetRecord | ConsumerRecord


def group_record(group: ClassicGroup, assignment: Mapping[str, bytes] | None = None) -> GroupRecord:
    """The record of the group's present generation.

    Args:
        assignment: by member id, empty for members that are missing; None takes what the members have.
    """
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(group.protocol_name),
            assignment=member.assignment if assignment is None else assignment.get(member.member_id, b""),
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=group.state_timestamp_ms,
        members=members,
    )
    return GroupRecord(group.group_id, value)


def group_from_record(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    """The group as a new coordinator finds it: Stable with the recorded members, or Empty."""
    group = ClassicGroup(group_id, state_timestamp_ms=value.current_state_timestamp)
    for recorded in value.members:
        timeout_ms = recorded.rebalance_timeout if recorded.rebalance_timeout >= 0 else recorded.session_timeout
        member = GroupMember(
            recorded.member_id,
            recorded.group_instance_id,
            client_id=recorded.client_id,
            client_host=recorded.client_host,
            rebalance_timeout_ms=timeout_ms,
            session_timeout_ms=recorded.session_timeout,
            protocols=[(value.protocol or "", recorded.subscription)],
            assignment=recorded.assignment,
        )
        group.add(member, value.protocol_type, None)
    group.generation = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    group.leader_id = value.leader if value.leader in group.members else next(iter(group.members), None)
    if group.members:
        group.state = GroupState.STABLE
    group.refresh_subscriptions()
    return group


def encode_record(record: AnyRecord) -> tuple[bytes, bytes | None]:
    """Key and value for the log."""
    if isinstance(record, ConsumerRecord):
        return encode_consumer_record(record)
    if isinstance(record, OffsetRecord):
        key = encode_versioned(
            OffsetCommitKey(group=record.group_id, topic=record.topic, partition=record.partition), _KEY_VERSION
        )
        committed = record.value
        if committed is None:
            return key, None
        value = OffsetCommitValue(
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            commit_timestamp=committed.commit_timestamp_ms,
            expire_timestamp=committed.expire_timestamp_ms,
            topic_id=committed.topic_id,
        )
        expires = committed.expire_timestamp_ms != NO_EXPIRY
        return key, encode_versioned(value, _OFFSET_VALUE_VERSION_WITH_EXPIRY if expires else _OFFSET_VALUE_VERSION)
    key = encode_versioned(GroupMetadataKey(group=record.group_id), _KEY_VERSION)
    return key, None if record.value is None else encode_versioned(record.value, _GROUP_VALUE_VERSION)


def decode_record(key: bytes | None, value: bytes | None) -> AnyRecord | None:
    """The record of a key and value; None for kinds that are not served here.

    Raises:
        RemoteProtocolError: the bytes are no such record.
    """
    if key is None or len(key) < 2:
        raise RemoteProtocolError("a record of __consumer_offsets has no key")
    kind = int.from_bytes(key[:2], "big", signed=True)
    if kind in _OFFSET_KEYS:
        # Kind 0, of the first Kafka that had it, has the same fields.
        offset_key = decode_versioned(OffsetCommitKey, b"\0\1" + key[2:])
        committed = None
        if value is not None:
            read = decode_versioned(OffsetCommitValue, value)
            committed = CommittedOffset(
                read.offset,
                read.leader_epoch,
                read.metadata,
                read.commit_timestamp,
                read.expire_timestamp,
                read.topic_id,
            )
        return OffsetRecord(offset_key.group, offset_key.topic, offset_key.partition, committed)
    if kind == _GROUP_KEY:
        group_key = decode_versioned(GroupMetadataKey, key)
        return GroupRecord(group_key.group, None if value is None else decode_versioned(GroupMetadataValue, value))
    return decode_consumer_record(_CONSUMER_KINDS[kind], key, value) if kind in _CONSUMER_KINDS else None
