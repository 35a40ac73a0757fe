"""Metadata quorum: Raft over `__cluster_metadata`, the only topic of these messages (KIP-630, KIP-836, KIP-853,
KIP-996).
"""

from __future__ import annotations

from barnabas.ports import Buffer
from barnabas.protocol.messages.shared import PartitionIndex
from barnabas.protocol.schema import Message, Struct, field
from barnabas.protocol.wire import Array, Bool, Int16, Int32, Int64, Records, String, UInt16, Uuid

INT32_MAX = 2**31 - 1


class NodeEndpoint(Struct):
    """Controller address of a leader named in the response."""

    node_id: int = field(Int32)
    host: str = field(String)
    port: int = field(UInt16)


class LeaderEndpoint(Struct):
    """Address of the leader that sends the request, by listener."""

    name: str = field(String)
    host: str = field(String)
    port: int = field(UInt16)


# -- Vote --------------------------------------------------------------------------------------------------------------


class VoteRequestPartition(Struct):
    """The candidate, its epoch, and the end of its log."""

    partition_index: int = field(Int32)
    replica_epoch: int = field(Int32)  # the epoch of the election; the present one for a pre-vote
    replica_id: int = field(Int32)
    replica_directory_id: bytes = field(Uuid, since=1)
    voter_directory_id: bytes = field(Uuid, since=1)  # of the voter asked
    last_offset_epoch: int = field(Int32)  # of the last record
    last_offset: int = field(Int64)  # the log end: one behind the last record
    pre_vote: bool = field(Bool, since=2)  # would you? Nothing is persisted (KIP-996)


class VoteRequestTopic(Struct):
    """The one topic."""

    topic_name: str = field(String)
    partitions: list[VoteRequestPartition] = field(Array(VoteRequestPartition))


class VoteRequest(Message, api_key=52, versions=(0, 2), flexible_since=0):
    """A candidate requests a voter's vote or pre-vote."""

    cluster_id: str | None = field(String, nullable_since=0, default=None)
    voter_id: int = field(Int32, since=1, default=-1)  # of the voter asked
    topics: list[VoteRequestTopic] = field(Array(VoteRequestTopic))


class VoteResponsePartition(Struct):
    """The vote, with the leader that the voter knows."""

    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    leader_id: int = field(Int32)  # −1 if unknown
    leader_epoch: int = field(Int32)
    vote_granted: bool = field(Bool)


class VoteResponseTopic(Struct):
    """The one topic."""

    topic_name: str = field(String)
    partitions: list[VoteResponsePartition] = field(Array(VoteResponsePartition))


class VoteResponse(Message, api_key=52, versions=(0, 2), flexible_since=0):
    """A voter's vote."""

    error_code: int = field(Int16)
    topics: list[VoteResponseTopic] = field(Array(VoteResponseTopic))
    node_endpoints: list[NodeEndpoint] = field(Array(NodeEndpoint), since=1, tag=0)


# -- BeginQuorumEpoch and EndQuorumEpoch -------------------------------------------------------------------------------


class BeginQuorumEpochRequestPartition(Struct):
    """The new leader and its epoch."""

    partition_index: int = field(Int32)
    voter_directory_id: bytes = field(Uuid, since=1)  # of the receiving voter
    leader_id: int = field(Int32)
    leader_epoch: int = field(Int32)


class BeginQuorumEpochRequestTopic(Struct):
    """The one topic."""

    topic_name: str = field(String)
    partitions: list[BeginQuorumEpochRequestPartition] = field(Array(BeginQuorumEpochRequestPartition))


class BeginQuorumEpochRequest(Message, api_key=53, versions=(0, 1), flexible_since=1):
    """A new leader announces itself to a voter."""

    cluster_id: str | None = field(String, nullable_since=0, default=None)
    voter_id: int = field(Int32, since=1, default=-1)  # of the receiving voter
    topics: list[BeginQuorumEpochRequestTopic] = field(Array(BeginQuorumEpochRequestTopic))
    leader_endpoints: list[LeaderEndpoint] = field(Array(LeaderEndpoint), since=1)


class QuorumEpochPartition(Struct):
    """Leader and epoch known to the voter, for BeginQuorumEpoch and EndQuorumEpoch."""

    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    leader_id: int = field(Int32)  # −1 if unknown
    leader_epoch: int = field(Int32)


class QuorumEpochTopic(Struct):
    """The one topic."""

    topic_name: str = field(String)
    partitions: list[QuorumEpochPartition] = field(Array(QuorumEpochPartition))


class BeginQuorumEpochResponse(Message, api_key=53, versions=(0, 1), flexible_since=1):
    """Response of a voter to a new leader."""

    error_code: int = field(Int16)
    topics: list[QuorumEpochTopic] = field(Array(QuorumEpochTopic))
    node_endpoints: list[NodeEndpoint] = field(Array(NodeEndpoint), since=1, tag=0)


class PreferredCandidate(Struct):
    """A voter that should become a candidate."""

    candidate_id: int = field(Int32)
    candidate_directory_id: bytes = field(Uuid)


class EndQuorumEpochRequestPartition(Struct):
    """The resigning leader and its preferred successors: the voters with the longest logs first."""

    partition_index: int = field(Int32)
    leader_id: int = field(Int32)
    leader_epoch: int = field(Int32)
    preferred_successors: list[int] = field(Array(Int32), until=0)
    preferred_candidates: list[PreferredCandidate] = field(Array(PreferredCandidate), since=1)


class EndQuorumEpochRequestTopic(Struct):
    """The one topic."""

    topic_name: str = field(String)
    partitions: list[EndQuorumEpochRequestPartition] = field(Array(EndQuorumEpochRequestPartition))


class EndQuorumEpochRequest(Message, api_key=54, versions=(0, 1), flexible_since=1):
    """A stopping leader resigns."""

    cluster_id: str | None = field(String, nullable_since=0, default=None)
    topics: list[EndQuorumEpochRequestTopic] = field(Array(EndQuorumEpochRequestTopic))
    leader_endpoints: list[LeaderEndpoint] = field(Array(LeaderEndpoint), since=1)


class EndQuorumEpochResponse(Message, api_key=54, versions=(0, 1), flexible_since=1):
    """Response of a voter to a resignation."""

    error_code: int = field(Int16)
    topics: list[QuorumEpochTopic] = field(Array(QuorumEpochTopic))
    node_endpoints: list[NodeEndpoint] = field(Array(NodeEndpoint), since=1, tag=0)


# -- DescribeQuorum ----------------------------------------------------------------------------------------------------


class DescribeQuorumRequestTopic(Struct):
    """The one topic."""

    topic_name: str = field(String)
    partitions: list[PartitionIndex] = field(Array(PartitionIndex))


class DescribeQuorumRequest(Message, api_key=55, versions=(0, 2), flexible_since=0):
    """Requests the state of the quorum from the leader."""

    topics: list[DescribeQuorumRequestTopic] = field(Array(DescribeQuorumRequestTopic))


class QuorumReplica(Struct):
    """A voter or an observer as the leader sees it; times are those of the leader's wall clock."""

    replica_id: int = field(Int32)
    replica_directory_id: bytes = field(Uuid, since=2)
    log_end_offset: int = field(Int64)  # −1 if unknown
    last_fetch_timestamp: int = field(Int64, since=1, default=-1)  # −1 if unknown, and of the leader
    last_caught_up_timestamp: int = field(Int64, since=1, default=-1)  # −1 if unknown; now for the leader


class DescribeQuorumResponsePartition(Struct):
    """Leader, high watermark and replicas."""

    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, since=2, nullable_since=2)
    leader_id: int = field(Int32)  # −1 if unknown
    leader_epoch: int = field(Int32)
    high_watermark: int = field(Int64)
    current_voters: list[QuorumReplica] = field(Array(QuorumReplica))
    observers: list[QuorumReplica] = field(Array(QuorumReplica))


class DescribeQuorumResponseTopic(Struct):
    """The one topic."""

    topic_name: str = field(String)
    partitions: list[DescribeQuorumResponsePartition] = field(Array(DescribeQuorumResponsePartition))


class QuorumListener(Struct):
    """Address of a controller."""

    name: str = field(String)
    host: str = field(String)
    port: int = field(UInt16)


class QuorumNode(Struct):
    """A voter with its addresses."""

    node_id: int = field(Int32)
    listeners: list[QuorumListener] = field(Array(QuorumListener))


class DescribeQuorumResponse(Message, api_key=55, versions=(0, 2), flexible_since=0):
    """The state of the quorum."""

    error_code: int = field(Int16)
    error_message: str | None = field(String, since=2, nullable_since=2)
    topics: list[DescribeQuorumResponseTopic] = field(Array(DescribeQuorumResponseTopic))
    nodes: list[QuorumNode] = field(Array(QuorumNode), since=2)


# -- FetchSnapshot -----------------------------------------------------------------------------------------------------


class FetchSnapshotId(Struct):
    """A snapshot: its end offset (exclusive), and the epoch of the last record."""

    end_offset: int = field(Int64)
    epoch: int = field(Int32)


class FetchSnapshotRequestPartition(Struct):
    """The requested snapshot, and the position in it."""

    partition: int = field(Int32)
    current_leader_epoch: int = field(Int32)  # −1 if unknown
    snapshot_id: FetchSnapshotId = field(FetchSnapshotId)
    position: int = field(Int64)  # in bytes
    replica_directory_id: bytes = field(Uuid, since=1, tag=0)


class FetchSnapshotRequestTopic(Struct):
    """The one topic."""

    name: str = field(String)
    partitions: list[FetchSnapshotRequestPartition] = field(Array(FetchSnapshotRequestPartition))


class FetchSnapshotRequest(Message, api_key=59, versions=(0, 1), flexible_since=0):
    """Requests bytes of a snapshot from the leader."""

    cluster_id: str | None = field(String, nullable_since=0, default=None, tag=0)
    replica_id: int = field(Int32, default=-1)
    max_bytes: int = field(Int32, default=INT32_MAX)
    topics: list[FetchSnapshotRequestTopic] = field(Array(FetchSnapshotRequestTopic))


class FetchSnapshotLeader(Struct):
    """The present leader."""

    leader_id: int = field(Int32)  # −1 if unknown
    leader_epoch: int = field(Int32)


class FetchSnapshotResponsePartition(Struct):
    """Bytes of the snapshot."""

    index: int = field(Int32)
    error_code: int = field(Int16)
    snapshot_id: FetchSnapshotId = field(FetchSnapshotId)
    current_leader: FetchSnapshotLeader = field(FetchSnapshotLeader, tag=0)
    size: int = field(Int64)  # of the whole snapshot, in bytes
    position: int = field(Int64)  # of the first byte sent
    unaligned_records: Buffer | None = field(Records)  # begins and ends anywhere, also within a batch


class FetchSnapshotResponseTopic(Struct):
    """The one topic."""

    name: str = field(String)
    partitions: list[FetchSnapshotResponsePartition] = field(Array(FetchSnapshotResponsePartition))


class FetchSnapshotResponse(Message, api_key=59, versions=(0, 1), flexible_since=0):
    """Bytes of a snapshot."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    topics: list[FetchSnapshotResponseTopic] = field(Array(FetchSnapshotResponseTopic))
    node_endpoints: list[NodeEndpoint] = field(Array(NodeEndpoint), since=1, tag=0)
