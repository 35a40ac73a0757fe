"""Codec of `__consumer_offsets` records in Kafka's keys and values.
The first two bytes of a key are its kind: 0 and 1 committed offsets, 2 a classic group, 3 to 8 and 16 parts of a consumer group.
Values as in Kafka 4.3.1: OffsetCommitValue 4 (1 if the client named a retention), GroupMetadataValue 3, 0 for consumer groups.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from barnabas.broker.coordinator.groups.consumer.record_codec import decode_consumer_record, encode_consumer_record
from barnabas.broker.coordinator.groups.records import (
    NO_EXPIRY,
    AnyRecord,
    CommittedOffset,
    ConsumerRecord,
    GroupRecord,
    Kind,
    OffsetRecord,
)
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.messages.internal import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from barnabas.protocol.schema import decode_versioned, encode_versioned

_OFFSET_VALUE_VERSION = 4
_OFFSET_VALUE_VERSION_WITH_EXPIRY = 1  # the only version with the field
_GROUP_VALUE_VERSION = 3
_KEY_VERSION = 0  # of the schema; the encoded prefix is the kind
_OFFSET_KEYS = (0, 1)
_GROUP_KEY = 2
_PARTITION = Struct(">i")
_CONSUMER_KINDS = {int(kind): kind for kind in Kind}


def encode_record(record: AnyRecord) -> tuple[bytes, bytes | None]:
    if isinstance(record, OffsetRecord):
        return _encode_offset(record)
    if isinstance(record, ConsumerRecord):
        return encode_consumer_record(record)
    key = encode_versioned(GroupMetadataKey(group=record.group_id), _KEY_VERSION)
    return key, None if record.value is None else encode_versioned(record.value, _GROUP_VALUE_VERSION)


@lru_cache(maxsize=16)
def _key_prefix(group_id: str, topic: str) -> bytes:
    """The key of an offset without its last field, the partition: a request has many offsets of one topic."""
    return encode_versioned(OffsetCommitKey(group=group_id, topic=topic, partition=0), _KEY_VERSION)[:-4]


def _encode_offset(record: OffsetRecord) -> tuple[bytes, bytes | None]:
    group_id, topic, partition, committed = record
    key = _key_prefix(group_id, topic) + _PARTITION.pack(partition)
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


def decode_record(key: bytes | None, value: bytes | None) -> AnyRecord | None:
    """None for kinds that this broker does not serve (share and streams groups). Raises RemoteProtocolError for malformed bytes."""
    if key is None or len(key) < 2:
        raise RemoteProtocolError("a record of __consumer_offsets has no key")
    kind = int.from_bytes(key[:2], "big", signed=True)
    if kind in _OFFSET_KEYS:
        return _decode_offset(key, value)
    if kind == _GROUP_KEY:
        group_key = decode_versioned(GroupMetadataKey, key)
        return GroupRecord(group_key.group, None if value is None else decode_versioned(GroupMetadataValue, value))
    return decode_consumer_record(_CONSUMER_KINDS[kind], key, value) if kind in _CONSUMER_KINDS else None


def _decode_offset(key: bytes, value: bytes | None) -> OffsetRecord:
    # Kinds 0 and 1 have the same fields.
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
