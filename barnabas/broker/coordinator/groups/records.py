"""Records of `__consumer_offsets` in memory: a key (group, kind, part) and a value; None is a tombstone.
A consumer group consists of many records, each written and deleted alone. `record_codec` has the bytes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from barnabas.protocol.messages.internal import GroupMetadataValue

NO_TOPIC_ID = bytes(16)
NO_EXPIRY = -1


class CommittedOffset(NamedTuple):
    """The committed offset of one partition."""

    offset: int  # next offset to read
    leader_epoch: int  # of the last record that was read; -1 unknown
    metadata: str  # text of the client, returned to it unchanged
    commit_timestamp_ms: int  # wall clock; the retention of most offsets counts from it
    expire_timestamp_ms: int = NO_EXPIRY  # wall clock; -1 unless the request named a retention (OffsetCommit 2–4)
    topic_id: bytes = NO_TOPIC_ID  # zeros if it was not known


class OffsetRecord(NamedTuple):
    """None as value deletes the offset."""

    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None


class GroupRecord(NamedTuple):
    """One generation of a classic group: members and their assignments; None as value deletes the group."""

    group_id: str
    value: GroupMetadataValue | None


class Kind(IntEnum):
    """Kinds of records of a consumer group; the numbers are the prefixes of Kafka's keys."""

    GROUP_EPOCH = 3  # Kafka: ConsumerGroupMetadata
    PARTITION_METADATA = 4  # of Kafka before 4.1: ignored when read, only its tombstone is written
    MEMBER_METADATA = 5
    TARGET_ASSIGNMENT_EPOCH = 6  # Kafka: ConsumerGroupTargetAssignmentMetadata
    TARGET_ASSIGNMENT = 7
    CURRENT_ASSIGNMENT = 8
    REGEX = 16


class GroupEpoch(NamedTuple):
    """Epoch of a group, and the hash of its subscribed topics (0 for none)."""

    epoch: int
    metadata_hash: int = 0


class TargetEpoch(NamedTuple):
    """Group epoch of a target assignment, and when it was computed (wall clock in ms; 0 unknown)."""

    epoch: int
    timestamp_ms: int = 0


class ResolvedRegex(NamedTuple):
    """Topics that a regular expression matched, ascending, in the metadata of offset `version`, at `timestamp_ms`."""

    topics: tuple[str, ...]
    version: int
    timestamp_ms: int


class ConsumerRecord(NamedTuple):
    """One part of a consumer group; None as value deletes it."""

    group_id: str
    kind: Kind
    part: str  # member id or regular expression; "" for kinds with one record per group
    value: Any  # GroupEpoch, MemberMetadata, TargetEpoch, Partitions, CurrentAssignment or ResolvedRegex, by `kind`


AnyRecord = GroupRecord | OffsetRecord | ConsumerRecord
