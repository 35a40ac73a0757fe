"""The quorum's values as Kafka's messages: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot (KIP-595, -630, -853, -996).
A message about another partition than `__cluster_metadata-0` is refused as a whole. Voters are static, so directory ids do not identify
them; they distinguish two processes with the same id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from barnabas.broker.config.broker_config import Endpoint
from barnabas.broker.quorum.core.messages import (
    BeginEpoch,
    EndEpoch,
    EpochReply,
    Fetch,
    FetchReply,
    LogPoint,
    RaftRequest,
    RaftResponse,
    SnapshotFetch,
    SnapshotReply,
    Vote,
    VoteReply,
)
from barnabas.broker.quorum.core.quorum_state import NO_NODE
from barnabas.broker.quorum.core.snapshots import SnapshotId
from barnabas.errors import BrokerError, ErrorCode, RemoteProtocolError
from barnabas.protocol.internal_topics import CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC_ID
from barnabas.protocol.messages import fetch as fetches
from barnabas.protocol.messages import quorum as messages
from barnabas.protocol.messages.shared import LeaderIdAndEpoch, NodeEndpoint

ANY_VOTER: Final = -1  # in versions of requests that do not name the voter
FETCH_WITH_REPLICA_STATE: Final = 15

RequestMessage = (
    messages.VoteRequest
    | messages.BeginQuorumEpochRequest
    | messages.EndQuorumEpochRequest
    | messages.FetchSnapshotRequest
    | fetches.FetchRequest
)
ReplyMessage = (
    messages.VoteResponse
    | messages.BeginQuorumEpochResponse
    | messages.EndQuorumEpochResponse
    | messages.FetchSnapshotResponse
    | fetches.FetchResponse
)


# --- requester --------------------------------------------------------------------------------------------------------


def request_message(
    request: RaftRequest, *, cluster_id: str, to: int, directory_id: bytes, endpoint: Endpoint | None, max_bytes: int
) -> RequestMessage:
    """`to` is the receiving voter; `directory_id` this node's; `endpoint` this node's controller endpoint, sent by a leader."""
    leader = (
        []
        if endpoint is None
        else [messages.LeaderEndpoint(name=endpoint.name, host=endpoint.host, port=endpoint.port)]
    )
    if isinstance(request, Vote):
        return _vote_request(request, cluster_id, to, directory_id)
    if isinstance(request, BeginEpoch):
        return _begin_epoch_request(request, cluster_id, to, leader)
    if isinstance(request, EndEpoch):
        return _end_epoch_request(request, cluster_id, leader)
    if isinstance(request, SnapshotFetch):
        return _fetch_snapshot_request(request, cluster_id, directory_id, max_bytes)
    return _fetch_request(request, cluster_id, directory_id, max_bytes)


def _vote_request(request: Vote, cluster_id: str, to: int, directory_id: bytes) -> messages.VoteRequest:
    vote = messages.VoteRequestPartition(
        partition_index=0,
        replica_epoch=request.epoch,
        replica_id=request.candidate_id,
        replica_directory_id=directory_id,
        last_offset_epoch=request.log.epoch,
        last_offset=request.log.end_offset,
        pre_vote=request.pre_vote,
    )
    votes = [messages.VoteRequestTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[vote])]
    return messages.VoteRequest(cluster_id=cluster_id, voter_id=to, topics=votes)


def _begin_epoch_request(
    request: BeginEpoch, cluster_id: str, to: int, leader: list[messages.LeaderEndpoint]
) -> messages.BeginQuorumEpochRequest:
    begin = messages.BeginQuorumEpochRequestPartition(
        partition_index=0, leader_id=request.leader_id, leader_epoch=request.epoch
    )
    begins = [messages.BeginQuorumEpochRequestTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[begin])]
    return messages.BeginQuorumEpochRequest(cluster_id=cluster_id, voter_id=to, topics=begins, leader_endpoints=leader)


def _end_epoch_request(
    request: EndEpoch, cluster_id: str, leader: list[messages.LeaderEndpoint]
) -> messages.EndQuorumEpochRequest:
    end = messages.EndQuorumEpochRequestPartition(
        partition_index=0,
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
        preferred_successors=list(request.successors),
        preferred_candidates=[messages.PreferredCandidate(candidate_id=voter) for voter in request.successors],
    )
    ends = [messages.EndQuorumEpochRequestTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[end])]
    return messages.EndQuorumEpochRequest(cluster_id=cluster_id, topics=ends, leader_endpoints=leader)


def _fetch_snapshot_request(
    request: SnapshotFetch, cluster_id: str, directory_id: bytes, max_bytes: int
) -> messages.FetchSnapshotRequest:
    part = messages.FetchSnapshotRequestPartition(
        partition=0,
        current_leader_epoch=request.epoch,
        snapshot_id=messages.FetchSnapshotId(end_offset=request.snapshot.end_offset, epoch=request.snapshot.epoch),
        position=request.position,
        replica_directory_id=directory_id,
    )
    parts = [messages.FetchSnapshotRequestTopic(name=CLUSTER_METADATA_TOPIC, partitions=[part])]
    return messages.FetchSnapshotRequest(
        cluster_id=cluster_id, replica_id=request.replica_id, max_bytes=max_bytes, topics=parts
    )


def _fetch_request(request: Fetch, cluster_id: str, directory_id: bytes, max_bytes: int) -> fetches.FetchRequest:
    wanted = fetches.FetchPartition(
        partition=0,
        current_leader_epoch=request.epoch,
        fetch_offset=request.log.end_offset,
        last_fetched_epoch=request.log.epoch,
        partition_max_bytes=max_bytes,
        replica_directory_id=directory_id,
        high_watermark=request.high_watermark,
    )
    return fetches.FetchRequest(
        cluster_id=cluster_id,
        replica_id=request.replica_id,
        replica_state=fetches.ReplicaState(replica_id=request.replica_id),
        max_wait_ms=request.max_wait_ms,
        max_bytes=max_bytes,
        topics=[
            fetches.FetchTopic(topic=CLUSTER_METADATA_TOPIC, topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=[wanted])
        ],
    )


def read_reply(message: ReplyMessage) -> RaftResponse:
    """Records and bytes are views. Raises RemoteProtocolError for another partition or an unknown error code."""
    error = _error(message.error_code)
    topics: list[Any] = message.responses if isinstance(message, fetches.FetchResponse) else message.topics
    partitions = topics[0].partitions if len(topics) == 1 else []
    if error is ErrorCode.NONE and len(partitions) != 1:
        raise RemoteProtocolError(f"{type(message).__name__} without {CLUSTER_METADATA_TOPIC}-0")
    if error is not ErrorCode.NONE:
        return _failed(message, error)
    found = partitions[0]
    error = _error(found.error_code)
    if isinstance(found, messages.VoteResponsePartition):
        return VoteReply(error, found.leader_id, found.leader_epoch, found.vote_granted)
    if isinstance(found, messages.QuorumEpochPartition):
        return EpochReply(error, found.leader_id, found.leader_epoch)
    leader_id, epoch = found.current_leader.leader_id, found.current_leader.leader_epoch
    if isinstance(found, messages.FetchSnapshotResponsePartition):
        snapshot = SnapshotId(found.snapshot_id.end_offset, found.snapshot_id.epoch)
        data = found.unaligned_records or b""
        return SnapshotReply(error, leader_id, epoch, snapshot, found.size, found.position, data)
    diverging, snapshot_id = found.diverging_epoch, found.snapshot_id
    return FetchReply(
        error,
        leader_id,
        epoch,
        high_watermark=found.high_watermark,
        log_start_offset=found.log_start_offset,
        records=found.records or b"",
        diverging=LogPoint(diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
        snapshot=SnapshotId(snapshot_id.end_offset, snapshot_id.epoch) if snapshot_id.epoch >= 0 else None,
    )


def _failed(message: ReplyMessage, error: ErrorCode) -> RaftResponse:
    if isinstance(message, messages.VoteResponse):
        return VoteReply(error, NO_NODE, 0)
    if isinstance(message, fetches.FetchResponse):
        return FetchReply(error, NO_NODE, 0)
    if isinstance(message, messages.FetchSnapshotResponse):
        return SnapshotReply(error, NO_NODE, 0)
    return EpochReply(error, NO_NODE, 0)


def _error(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        raise RemoteProtocolError(f"error code {code} does not exist") from None


# --- responder --------------------------------------------------------------------------------------------------------


def read_request(message: RequestMessage, version: int, *, cluster_id: str, node_id: int) -> RaftRequest:
    """Raises BrokerError: INCONSISTENT_CLUSTER_ID, INVALID_VOTER_KEY (for another voter), INVALID_REQUEST (another partition)."""
    if message.cluster_id is not None and message.cluster_id != cluster_id:
        raise BrokerError(
            ErrorCode.INCONSISTENT_CLUSTER_ID, f"it is of cluster {message.cluster_id}, this node of {cluster_id}"
        )
    named = getattr(message, "voter_id", ANY_VOTER)
    if named not in (ANY_VOTER, node_id):
        raise BrokerError(ErrorCode.INVALID_VOTER_KEY, f"it means voter {named}, this is node {node_id}")
    partition = _the_partition(message, version)
    if isinstance(partition, messages.VoteRequestPartition):
        point = LogPoint(partition.last_offset_epoch, partition.last_offset)
        return Vote(
            partition.replica_epoch, partition.replica_id, point, partition.pre_vote, partition.replica_directory_id
        )
    if isinstance(partition, messages.BeginQuorumEpochRequestPartition):
        return BeginEpoch(partition.leader_epoch, partition.leader_id)
    if isinstance(partition, messages.EndQuorumEpochRequestPartition):
        preferred = [candidate.candidate_id for candidate in partition.preferred_candidates]
        successors = tuple(preferred if version >= 1 else partition.preferred_successors)
        return EndEpoch(partition.leader_epoch, partition.leader_id, successors)
    if isinstance(partition, messages.FetchSnapshotRequestPartition):
        return SnapshotFetch(
            partition.current_leader_epoch,
            message.replica_id if isinstance(message, messages.FetchSnapshotRequest) else NO_NODE,
            SnapshotId(partition.snapshot_id.end_offset, partition.snapshot_id.epoch),
            partition.position,
            message.max_bytes if isinstance(message, messages.FetchSnapshotRequest) else 0,
            partition.replica_directory_id,
        )
    if not isinstance(message, fetches.FetchRequest):
        raise BrokerError(ErrorCode.INVALID_REQUEST)
    replica_id = message.replica_state.replica_id if version >= FETCH_WITH_REPLICA_STATE else message.replica_id
    point = LogPoint(partition.last_fetched_epoch, partition.fetch_offset)
    epoch, known = partition.current_leader_epoch, partition.high_watermark
    return Fetch(epoch, replica_id, point, known, message.max_wait_ms, partition.replica_directory_id)


def _the_partition(message: RequestMessage, version: int) -> Any:
    topics: list[Any] = message.topics
    if len(topics) == 1 and len(topics[0].partitions) == 1:
        (topic,) = topics
        (partition,) = topic.partitions
        if isinstance(message, fetches.FetchRequest):
            right = (
                topic.topic_id == CLUSTER_METADATA_TOPIC_ID if version >= 13 else topic.topic == CLUSTER_METADATA_TOPIC
            )
            index = partition.partition
        elif isinstance(message, messages.FetchSnapshotRequest):
            right, index = topic.name == CLUSTER_METADATA_TOPIC, partition.partition
        else:
            right, index = topic.topic_name == CLUSTER_METADATA_TOPIC, partition.partition_index
        if right and index == 0:
            return partition
    raise BrokerError(ErrorCode.INVALID_REQUEST, f"the request must name {CLUSTER_METADATA_TOPIC}-0 alone")


def refusal(message: RequestMessage, error: ErrorCode) -> ReplyMessage:
    """One error for the whole request."""
    if isinstance(message, messages.VoteRequest):
        return messages.VoteResponse(error_code=error)
    if isinstance(message, messages.BeginQuorumEpochRequest):
        return messages.BeginQuorumEpochResponse(error_code=error)
    if isinstance(message, messages.EndQuorumEpochRequest):
        return messages.EndQuorumEpochResponse(error_code=error)
    if isinstance(message, messages.FetchSnapshotRequest):
        return messages.FetchSnapshotResponse(error_code=error)
    return fetches.FetchResponse(error_code=error)


def reply_message(request: RaftRequest, reply: RaftResponse, voters: Mapping[int, Endpoint]) -> ReplyMessage:
    """With the endpoint of the leader that the reply names."""
    leader = voters.get(reply.leader_id)
    known = (
        [] if leader is None else [messages.NodeEndpoint(node_id=reply.leader_id, host=leader.host, port=leader.port)]
    )
    if isinstance(reply, VoteReply):
        return _vote_response(reply, known)
    if isinstance(reply, EpochReply):
        return _epoch_response(request, reply, known)
    if isinstance(reply, SnapshotReply):
        return _fetch_snapshot_response(reply, known)
    return _fetch_response(reply, leader)


def _vote_response(reply: VoteReply, known: list[messages.NodeEndpoint]) -> messages.VoteResponse:
    vote = messages.VoteResponsePartition(
        partition_index=0,
        error_code=reply.error,
        leader_id=reply.leader_id,
        leader_epoch=reply.epoch,
        vote_granted=reply.granted,
    )
    return messages.VoteResponse(
        topics=[messages.VoteResponseTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[vote])], node_endpoints=known
    )


def _epoch_response(
    request: RaftRequest, reply: EpochReply, known: list[messages.NodeEndpoint]
) -> messages.BeginQuorumEpochResponse | messages.EndQuorumEpochResponse:
    partition = messages.QuorumEpochPartition(
        partition_index=0, error_code=reply.error, leader_id=reply.leader_id, leader_epoch=reply.epoch
    )
    topics = [messages.QuorumEpochTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])]
    if isinstance(request, EndEpoch):
        return messages.EndQuorumEpochResponse(topics=topics, node_endpoints=known)
    return messages.BeginQuorumEpochResponse(topics=topics, node_endpoints=known)


def _fetch_snapshot_response(
    reply: SnapshotReply, known: list[messages.NodeEndpoint]
) -> messages.FetchSnapshotResponse:
    part = messages.FetchSnapshotResponsePartition(
        index=0,
        error_code=reply.error,
        snapshot_id=messages.FetchSnapshotId(end_offset=reply.snapshot.end_offset, epoch=reply.snapshot.epoch),
        current_leader=messages.FetchSnapshotLeader(leader_id=reply.leader_id, leader_epoch=reply.epoch),
        size=reply.size_bytes,
        position=reply.position,
        unaligned_records=reply.data,
    )
    parts = [messages.FetchSnapshotResponseTopic(name=CLUSTER_METADATA_TOPIC, partitions=[part])]
    return messages.FetchSnapshotResponse(topics=parts, node_endpoints=known)


def _fetch_response(reply: FetchReply, leader: Endpoint | None) -> fetches.FetchResponse:
    data = fetches.PartitionData(
        partition_index=0,
        error_code=reply.error,
        high_watermark=reply.high_watermark,
        last_stable_offset=reply.high_watermark,
        log_start_offset=reply.log_start_offset,
        current_leader=LeaderIdAndEpoch(leader_id=reply.leader_id, leader_epoch=reply.epoch),
        records=reply.records,
    )
    if reply.diverging is not None:
        data.diverging_epoch = fetches.EpochEndOffset(
            epoch=reply.diverging.epoch, end_offset=reply.diverging.end_offset
        )
    if reply.snapshot is not None:
        data.snapshot_id = fetches.SnapshotId(end_offset=reply.snapshot.end_offset, epoch=reply.snapshot.epoch)
    known = [] if leader is None else [NodeEndpoint(node_id=reply.leader_id, host=leader.host, port=leader.port)]
    return fetches.FetchResponse(
        responses=[
            fetches.FetchableTopicResponse(
                topic=CLUSTER_METADATA_TOPIC, topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=[data]
            )
        ],
        node_endpoints=known,
    )
