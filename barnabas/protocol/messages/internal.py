"""Records of the broker's own topics, as Kafka lays them out.

`__transaction_state` and `__consumer_offsets`: keys behind the number of their type, values behind their version, both by
`encode_versioned` and `decode_versioned`. Control records: EndTxnMarker behind its version; those of Raft logs
(LeaderChangeMessage, SnapshotHeaderRecord, SnapshotFooterRecord, KRaftVersionRecord) without prefix, by `encode` and `decode`,
and with their version as a field.
"""

from __future__ import annotations

from barnabas.protocol.schema import (
    Array,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Record,
    String,
    Uuid,
    field,
    record,
    struct,
)

__all__ = [
    "EndTxnMarker",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "KRaftVersionRecord",
    "LeaderChangeMessage",
    "MemberMetadata",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "PartitionsSchema",
    "SnapshotFooterRecord",
    "SnapshotHeaderRecord",
    "TransactionLogKey",
    "TransactionLogValue",
    "Voter",
]


@record(versions=(0, 0), prefix=0)
class TransactionLogKey(Record):
    """Key in `__transaction_state`."""

    transactional_id: str = field(String)


@struct
class PartitionsSchema:
    """Partitions of one topic that are in the transaction."""

    topic: str = field(String)
    partition_ids: list[int] = field(Array(Int32))


@record(versions=(0, 1), flexible_since=1)
class TransactionLogValue(Record):
    """State of a transactional id. Version 1 (KIP-890) has the ids and epochs before and after this one."""

    producer_id: int = field(Int64)
    previous_producer_id: int = field(Int64, since=1, default=-1, tag=0)
    next_producer_id: int = field(Int64, since=1, default=-1, tag=1)
    producer_epoch: int = field(Int16)
    next_producer_epoch: int = field(Int16, since=1, default=-1, tag=3)
    transaction_timeout_ms: int = field(Int32)
    transaction_status: int = field(Int8)  # 0 Empty … 6 Dead
    # null when Empty
    transaction_partitions: list[PartitionsSchema] | None = field(Array(PartitionsSchema), nullable_since=0)
    transaction_last_update_timestamp_ms: int = field(Int64)
    transaction_start_timestamp_ms: int = field(Int64)  # −1 without transaction
    client_transaction_version: int = field(Int16, since=1, tag=2)  # 0 and 1 as in KIP-98, 2 as in KIP-890


@record(versions=(0, 0), prefix=1)
class OffsetCommitKey(Record):
    """Key of a committed offset in `__consumer_offsets`."""

    group: str = field(String)
    topic: str = field(String)
    partition: int = field(Int32)


@record(versions=(0, 4), flexible_since=4)
class OffsetCommitValue(Record):
    """A committed offset."""

    offset: int = field(Int64)
    leader_epoch: int = field(Int32, since=3, default=-1)  # −1 unknown
    metadata: str = field(String)
    commit_timestamp: int = field(Int64)
    expire_timestamp: int = field(Int64, since=1, until=1, default=-1)
    topic_id: bytes = field(Uuid, since=4, tag=0)


@record(versions=(0, 0), prefix=2)
class GroupMetadataKey(Record):
    """Key of a classic group in `__consumer_offsets`."""

    group: str = field(String)


@struct
class MemberMetadata:
    """A member of the group as it is stored."""

    member_id: str = field(String)
    group_instance_id: str | None = field(String, since=3, nullable_since=3, default=None)
    client_id: str = field(String)
    client_host: str = field(String)
    rebalance_timeout: int = field(Int32, since=1, default=-1)
    session_timeout: int = field(Int32)
    subscription: bytes = field(Bytes)
    assignment: bytes = field(Bytes)


@record(versions=(0, 4), flexible_since=4)
class GroupMetadataValue(Record):
    """A classic group as it is stored after each rebalance."""

    protocol_type: str = field(String)
    generation: int = field(Int32)  # 0 before the first one
    protocol: str | None = field(String, nullable_since=0)
    leader: str | None = field(String, nullable_since=0)
    current_state_timestamp: int = field(Int64, since=2, default=-1)
    members: list[MemberMetadata] = field(Array(MemberMetadata))


@record(versions=(0, 0))
class EndTxnMarker(Record):
    """Value of a control record that ends a transaction; whether by commit or abort says its key."""

    coordinator_epoch: int = field(Int32)


@struct
class Voter:
    """A member of the quorum."""

    voter_id: int = field(Int32)
    voter_directory_id: bytes = field(Uuid, since=1)


@record(versions=(0, 1), flexible_since=0)
class LeaderChangeMessage(Record):
    """First record of a leader's term in a Raft log."""

    version: int = field(Int16)
    leader_id: int = field(Int32)
    voters: list[Voter] = field(Array(Voter))
    granting_voters: list[Voter] = field(Array(Voter))


@record(versions=(0, 0), flexible_since=0)
class SnapshotHeaderRecord(Record):
    """First record of a snapshot (KIP-630)."""

    version: int = field(Int16)
    last_contained_log_timestamp: int = field(Int64)


@record(versions=(0, 0), flexible_since=0)
class SnapshotFooterRecord(Record):
    """Last record of a snapshot (KIP-630)."""

    version: int = field(Int16)


@record(versions=(0, 0), flexible_since=0)
class KRaftVersionRecord(Record):
    """The quorum's own feature level (KIP-853)."""

    version: int = field(Int16)
    kraft_version: int = field(Int16)
