"""Records of internal topics and control records, in Kafka's layout.
Keys have the number of their type before them, values their version; Raft's control records have it as a field.
"""

from __future__ import annotations

from barnabas.protocol.schema import RecordMessage, Struct, field
from barnabas.protocol.wire import Array, Bytes, Int8, Int16, Int32, Int64, String, Uuid


class TransactionLogKey(RecordMessage, versions=(0, 0), prefix=0):
    """Key in `__transaction_state`."""

    transactional_id: str = field(String)


class PartitionsSchema(Struct):
    """Partitions of one topic that are in the transaction."""

    topic: str = field(String)
    partition_ids: list[int] = field(Array(Int32))


class TransactionLogValue(RecordMessage, versions=(0, 1), flexible_since=1):
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


class OffsetCommitKey(RecordMessage, versions=(0, 0), prefix=1):
    """Key of a committed offset in `__consumer_offsets`."""

    group: str = field(String)
    topic: str = field(String)
    partition: int = field(Int32)


class OffsetCommitValue(RecordMessage, versions=(0, 4), flexible_since=4):
    """A committed offset."""

    offset: int = field(Int64)
    leader_epoch: int = field(Int32, since=3, default=-1)  # −1 unknown
    metadata: str = field(String)
    commit_timestamp: int = field(Int64)
    expire_timestamp: int = field(Int64, since=1, until=1, default=-1)
    topic_id: bytes = field(Uuid, since=4, tag=0)


class GroupMetadataKey(RecordMessage, versions=(0, 0), prefix=2):
    """Key of a classic group in `__consumer_offsets`."""

    group: str = field(String)


class MemberMetadata(Struct):
    """A stored member."""

    member_id: str = field(String)
    group_instance_id: str | None = field(String, since=3, nullable_since=3, default=None)
    client_id: str = field(String)
    client_host: str = field(String)
    rebalance_timeout: int = field(Int32, since=1, default=-1)
    session_timeout: int = field(Int32)
    subscription: bytes = field(Bytes)
    assignment: bytes = field(Bytes)


class GroupMetadataValue(RecordMessage, versions=(0, 4), flexible_since=4):
    """A classic group after a rebalance."""

    protocol_type: str = field(String)
    generation: int = field(Int32)  # 0 before the first one
    protocol: str | None = field(String, nullable_since=0)
    leader: str | None = field(String, nullable_since=0)
    current_state_timestamp: int = field(Int64, since=2, default=-1)
    members: list[MemberMetadata] = field(Array(MemberMetadata))


class ConsumerGroupMetadataKey(RecordMessage, versions=(0, 0), prefix=3):
    """Key of a consumer group (KIP-848) in `__consumer_offsets`."""

    group_id: str = field(String)


class ConsumerGroupMetadataValue(RecordMessage, versions=(0, 0), flexible_since=0):
    """Epoch of a consumer group, and a hash of the topics it subscribes to (KIP-1101)."""

    epoch: int = field(Int32)
    metadata_hash: int = field(Int64, default=0, tag=0)


class ConsumerGroupPartitionMetadataKey(RecordMessage, versions=(0, 0), prefix=4):
    """Key of the record that was used for the hash before Kafka 4.1; only its tombstone is still written."""

    group_id: str = field(String)


class ConsumerGroupMemberMetadataKey(RecordMessage, versions=(0, 0), prefix=5):
    """Key of the metadata of a member."""

    group_id: str = field(String)
    member_id: str = field(String)


class ClassicProtocol(Struct):
    """A protocol that a member of the classic protocol supports."""

    name: str = field(String)
    metadata: bytes = field(Bytes)


class ClassicMemberMetadata(Struct):
    """Settings and protocols of a consumer group's member that uses the classic protocol."""

    session_timeout_ms: int = field(Int32)
    supported_protocols: list[ClassicProtocol] = field(Array(ClassicProtocol))


class ConsumerGroupMemberMetadataValue(RecordMessage, versions=(0, 0), flexible_since=0):
    """The metadata of a member."""

    instance_id: str | None = field(String, nullable_since=0)
    rack_id: str | None = field(String, nullable_since=0)
    client_id: str = field(String)
    client_host: str = field(String)
    subscribed_topic_names: list[str] = field(Array(String))
    subscribed_topic_regex: str | None = field(String, nullable_since=0)
    rebalance_timeout_ms: int = field(Int32, default=-1)
    server_assignor: str | None = field(String, nullable_since=0)
    # Kafka's generated classes read a missing tag as an empty struct, unlike the schema: null is always written.
    classic_member_metadata: ClassicMemberMetadata | None = field(ClassicMemberMetadata, nullable_since=0, tag=0)


class ConsumerGroupTargetAssignmentMetadataKey(RecordMessage, versions=(0, 0), prefix=6):
    """Key of the epoch of a group's target assignment."""

    group_id: str = field(String)


class ConsumerGroupTargetAssignmentMetadataValue(RecordMessage, versions=(0, 0), flexible_since=0):
    """Group epoch and time of the target assignment (KIP-1263)."""

    assignment_epoch: int = field(Int32)
    assignment_timestamp: int = field(Int64, default=0, tag=0)


class ConsumerGroupTargetAssignmentMemberKey(RecordMessage, versions=(0, 0), prefix=7):
    """Key of the target assignment of one member."""

    group_id: str = field(String)
    member_id: str = field(String)


class TargetTopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: bytes = field(Uuid)
    partitions: list[int] = field(Array(Int32))


class ConsumerGroupTargetAssignmentMemberValue(RecordMessage, versions=(0, 0), flexible_since=0):
    """Target assignment of one member."""

    topic_partitions: list[TargetTopicPartitions] = field(Array(TargetTopicPartitions))


class ConsumerGroupCurrentMemberAssignmentKey(RecordMessage, versions=(0, 0), prefix=8):
    """Key of the current assignment of one member."""

    group_id: str = field(String)
    member_id: str = field(String)


class CurrentTopicPartitions(Struct):
    """Partitions of one topic, each with the epoch in which the member got it."""

    topic_id: bytes = field(Uuid)
    partitions: list[int] = field(Array(Int32))
    assignment_epochs: list[int] | None = field(Array(Int32), nullable_since=0, default=None, tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(RecordMessage, versions=(0, 0), flexible_since=0):
    """The current assignment of one member, and the partitions that it must revoke."""

    member_epoch: int = field(Int32)
    previous_member_epoch: int = field(Int32)
    state: int = field(Int8)
    assigned_partitions: list[CurrentTopicPartitions] = field(Array(CurrentTopicPartitions))
    partitions_pending_revocation: list[CurrentTopicPartitions] = field(Array(CurrentTopicPartitions))


class ConsumerGroupRegularExpressionKey(RecordMessage, versions=(0, 0), prefix=16):
    """Key of a subscribed regular expression."""

    group_id: str = field(String)
    regular_expression: str = field(String)


class ConsumerGroupRegularExpressionValue(RecordMessage, versions=(0, 0), flexible_since=0):
    """The topics that a regular expression matched."""

    topics: list[str] = field(Array(String))
    version: int = field(Int64)  # of the metadata that were looked through
    timestamp: int = field(Int64)


class EndTxnMarker(RecordMessage, versions=(0, 0)):
    """Value of a control record that ends a transaction. The key tells commit or abort."""

    coordinator_epoch: int = field(Int32)


class Voter(Struct):
    """A member of the quorum."""

    voter_id: int = field(Int32)
    voter_directory_id: bytes = field(Uuid, since=1)


class LeaderChangeMessage(RecordMessage, versions=(0, 1), flexible_since=0):
    """First record of a leader's epoch in a Raft log."""

    version: int = field(Int16)
    leader_id: int = field(Int32)
    voters: list[Voter] = field(Array(Voter))
    granting_voters: list[Voter] = field(Array(Voter))


class SnapshotHeaderRecord(RecordMessage, versions=(0, 0), flexible_since=0):
    """First record of a snapshot (KIP-630)."""

    version: int = field(Int16)
    last_contained_log_timestamp: int = field(Int64)


class SnapshotFooterRecord(RecordMessage, versions=(0, 0), flexible_since=0):
    """Last record of a snapshot (KIP-630)."""

    version: int = field(Int16)


class KRaftVersionRecord(RecordMessage, versions=(0, 0), flexible_since=0):
    """The quorum's own feature level (KIP-853)."""

    version: int = field(Int16)
    kraft_version: int = field(Int16)
