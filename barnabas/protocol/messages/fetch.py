"""Fetch of consumers, followers and Raft voters.
KIP-227 sessions, 320 leader epochs, 392 racks, 516 topic ids, 595 divergence, 853 directory ids, 903 replica state, 951
new leaders, 1166 the follower's high watermark.
"""

from __future__ import annotations

from barnabas.ports import Buffer
from barnabas.protocol.messages.shared import LeaderIdAndEpoch, NodeEndpoint
from barnabas.protocol.schema import Message, Struct, field
from barnabas.protocol.wire import Array, Int8, Int16, Int32, Int64, Records, String, Uuid

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class ReplicaState(Struct):
    """The replica and its broker epoch (KIP-903)."""

    replica_id: int = field(Int32, default=-1)
    replica_epoch: int = field(Int64, default=-1)


class FetchPartition(Struct):
    """Position and limits of one partition."""

    partition: int = field(Int32)
    current_leader_epoch: int = field(Int32, since=9, default=-1)  # −1: not checked
    fetch_offset: int = field(Int64)
    last_fetched_epoch: int = field(Int32, since=12, default=-1)  # −1: no divergence check
    log_start_offset: int = field(Int64, since=5, default=-1)  # the follower's; −1 from a consumer
    partition_max_bytes: int = field(Int32)
    replica_directory_id: bytes = field(Uuid, since=17, tag=0)  # of a Raft voter (KIP-853)
    high_watermark: int = field(Int64, since=18, default=INT64_MAX, tag=1)  # the follower's (KIP-1166)


class FetchTopic(Struct):
    """Partitions of one topic: by name, from version 13 by id."""

    topic: str = field(String, until=12)
    topic_id: bytes = field(Uuid, since=13)
    partitions: list[FetchPartition] = field(Array(FetchPartition))


class ForgottenTopic(Struct):
    """Partitions that leave an incremental fetch session (KIP-227)."""

    topic: str = field(String, until=12)
    topic_id: bytes = field(Uuid, since=13)
    partitions: list[int] = field(Array(Int32))


class FetchRequest(Message, api_key=1, versions=(4, 18), flexible_since=12):
    """Requests batches, by topic and partition: from clients, followers and Raft voters."""

    cluster_id: str | None = field(String, since=12, nullable_since=12, default=None, tag=0)  # from Raft voters only
    replica_id: int = field(Int32, until=14, default=-1)  # −1 from a consumer
    replica_state: ReplicaState = field(ReplicaState, since=15, tag=1)
    max_wait_ms: int = field(Int32)
    min_bytes: int = field(Int32)
    max_bytes: int = field(Int32, default=INT32_MAX)
    isolation_level: int = field(Int8)  # 0 read_uncommitted, 1 read_committed
    session_id: int = field(Int32, since=7)  # 0 requests a new session
    session_epoch: int = field(Int32, since=7, default=-1)  # −1 without session, 0 first request of one
    topics: list[FetchTopic] = field(Array(FetchTopic))
    forgotten_topics_data: list[ForgottenTopic] = field(Array(ForgottenTopic), since=7)
    rack_id: str = field(String, since=11)


class EpochEndOffset(Struct):
    """The largest epoch up to which leader and follower agree, and its end offset (KIP-595)."""

    epoch: int = field(Int32, default=-1)
    end_offset: int = field(Int64, default=-1)


class SnapshotId(Struct):
    """The snapshot to fetch if the log begins after the requested offset (KIP-630)."""

    end_offset: int = field(Int64, default=-1)
    epoch: int = field(Int32, default=-1)


class AbortedTransaction(Struct):
    """A transaction to skip under read_committed: from its first offset up to its abort marker."""

    producer_id: int = field(Int64)
    first_offset: int = field(Int64)


class PartitionData(Struct):
    """Batches of one partition with its offsets."""

    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    high_watermark: int = field(Int64)
    last_stable_offset: int = field(Int64, default=-1)
    log_start_offset: int = field(Int64, since=5, default=-1)
    diverging_epoch: EpochEndOffset = field(EpochEndOffset, since=12, tag=0)
    current_leader: LeaderIdAndEpoch = field(LeaderIdAndEpoch, since=12, tag=1)
    snapshot_id: SnapshotId = field(SnapshotId, since=12, tag=2)
    # null unless the request has read_committed
    aborted_transactions: list[AbortedTransaction] | None = field(Array(AbortedTransaction), nullable_since=0)
    preferred_read_replica: int = field(Int32, since=11, default=-1)  # −1: read from the leader
    records: Buffer | None = field(Records, nullable_since=0)


class FetchableTopicResponse(Struct):
    """Partitions of one topic."""

    topic: str = field(String, until=12)
    topic_id: bytes = field(Uuid, since=13)
    partitions: list[PartitionData] = field(Array(PartitionData))


class FetchResponse(Message, api_key=1, versions=(4, 18), flexible_since=12):
    """Batches by topic and partition; an incremental session carries only changed partitions."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16, since=7)
    session_id: int = field(Int32, since=7)  # 0 without session
    responses: list[FetchableTopicResponse] = field(Array(FetchableTopicResponse))
    node_endpoints: list[NodeEndpoint] = field(Array(NodeEndpoint), since=16, tag=0)
