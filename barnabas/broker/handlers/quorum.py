"""Handles Raft requests of the metadata quorum on the controller listener, and DescribeQuorum on both listeners.

Vote (52) 0 to 2, BeginQuorumEpoch (53) and EndQuorumEpoch (54) 0 to 1, Fetch (1) of `__cluster_metadata` 12 to 18, FetchSnapshot
(59) 0 to 1; on both listeners DescribeQuorum (55) 0 to 2.

Behaviour: this node's `broker/quorum` answers a member's request at once; a fetch without new records waits up to max.wait.ms. A
request of another cluster is answered INCONSISTENT_CLUSTER_ID, one for another voter INVALID_VOTER_KEY, and one about another partition
than the metadata partition INVALID_REQUEST; the first two are logged once each.

Only the leader answers DescribeQuorum: a controller that is not the leader answers NOT_LEADER_OR_FOLLOWER, a broker forwards
the request to the leader.

Version notes: DescribeQuorum v1 times of fetches (KIP-836), v2 directory ids and the voters' addresses (KIP-853).
Deviation: FETCH of the metadata log below version 12 is refused, because it cannot report divergence.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import Answer, Call, Computed, Pending, Table
from barnabas.broker.authorization.permissions import check_permission
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.refusals import refuse
from barnabas.broker.quorum.core import wire
from barnabas.broker.quorum.core.leadership import Progress
from barnabas.broker.quorum.core.messages import RaftResponse
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.internal_topics import CLUSTER_METADATA_TOPIC
from barnabas.protocol.messages.fetch import FetchRequest
from barnabas.protocol.messages.quorum import (
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseTopic,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    QuorumListener,
    QuorumNode,
    QuorumReplica,
    VoteRequest,
)
from barnabas.protocol.schema import Message

FIRST_FETCH: Final = 12
UNKNOWN: Final = -1


def fetch(needs: Needs, call: Call[FetchRequest]) -> Answer:
    """Fetches records of the metadata log, for members of the quorum and brokers."""
    check_permission(call.access, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER)
    if call.version < FIRST_FETCH:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION, f"{CLUSTER_METADATA_TOPIC} is fetched by version {FIRST_FETCH} or above"
        )
    return member_request(needs, call)


def member_request(needs: Needs, call: Call[wire.RequestMessage]) -> Answer:
    """Handles a request of a member: checks it and lets this node's quorum answer."""
    quorum = needs.quorum
    message = call.request
    if not isinstance(message, FetchRequest):  # checked already
        check_permission(call.access, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER)
    try:
        request = wire.read_request(message, call.version, cluster_id=quorum.cluster_id, node_id=quorum.node_id)
    except BrokerError as error:
        if error.code in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_VOTER_KEY):
            quorum.limited_log.error(
                "Request to the metadata quorum is refused: host=%s error=%s", call.client_host, error
            )
        raise
    pending: Pending[Message] = Pending(on_closed=lambda: quorum.forget(request))

    def done(reply: RaftResponse) -> None:
        pending.resolve(wire.reply_message(request, reply, needs.config.voter_endpoints))

    key = "snapshot.max.bytes" if isinstance(message, FetchSnapshotRequest) else "max.bytes"
    max_bytes = needs.config.get_int(f"controller.quorum.fetch.{key}")
    if isinstance(message, FetchRequest | FetchSnapshotRequest):
        max_bytes = max(1, min(max_bytes, message.max_bytes))
    quorum.answer(request, max_bytes, done)
    return pending.response if pending.resolved else pending


def describe_quorum(needs: Needs, call: Call[DescribeQuorumRequest]) -> DescribeQuorumResponse | Computed:
    """Describes the quorum from the leader's state.

    Raises:
        BrokerError: NOT_LEADER_OR_FOLLOWER: this node is not the leader.
    """
    access = call.access
    # A node asks with its own principal, which may have no other permission than that of a node.
    if not access.unrestricted and not access.allows(AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, log=False):
        check_permission(access, AclOperation.DESCRIBE, AclResourceType.CLUSTER)
    return _quorum(needs, call)


def _quorum(needs: Needs, call: Call[DescribeQuorumRequest]) -> DescribeQuorumResponse | Computed:
    quorum, request = needs.quorum, call.request
    first = request.topics[0] if len(request.topics) == 1 else None
    if (
        first is None
        or first.topic_name != CLUSTER_METADATA_TOPIC
        or [p.partition_index for p in first.partitions[:2]] != [0]
    ):
        return Computed(call, partial(_nothing_else, request))
    leadership = None if quorum.member is None else quorum.member.leadership
    if leadership is None:
        raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {quorum.node_id} does not lead the metadata quorum")
    now_ms = needs.reactor.clock.now_ms()
    wall_ms = now_ms - needs.reactor.clock.monotonic_ms()  # wall clock at the monotonic clock's zero
    own = QuorumReplica(
        replica_id=quorum.node_id,
        replica_directory_id=quorum.directory_id,
        log_end_offset=quorum.log_end_offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    others = [_replica(voter, progress, wall_ms) for voter, progress in leadership.voters.items()]
    found = DescribeQuorumResponsePartition(
        partition_index=0,
        leader_id=quorum.leader_id,
        leader_epoch=quorum.leader_epoch,
        high_watermark=quorum.high_watermark,
        current_voters=sorted([own, *others], key=lambda replica: replica.replica_id),
        observers=[_replica(each, progress, wall_ms) for each, progress in sorted(leadership.observers.items())],
    )
    return DescribeQuorumResponse(
        topics=[DescribeQuorumResponseTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[found])],
        nodes=[
            QuorumNode(
                node_id=voter,
                listeners=[QuorumListener(name=endpoint.name, host=endpoint.host, port=endpoint.port)],
            )
            for voter, endpoint in needs.config.voter_endpoints.items()
        ],
    )


def _nothing_else(request: DescribeQuorumRequest, _access: Access) -> DescribeQuorumResponse:
    """Returns the refusal of all partitions in a request that names another than the metadata partition."""
    topics = [
        DescribeQuorumResponseTopic(
            topic_name=topic.topic_name,
            partitions=[
                DescribeQuorumResponsePartition(
                    partition_index=part.partition_index,
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    error_message="This server does not host this topic-partition.",
                )
                for part in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return DescribeQuorumResponse(topics=topics)


def describe_quorum_elsewhere(needs: Needs, call: Call[DescribeQuorumRequest]) -> Answer:
    """On a broker: answers if this node leads, else forwards to the leader."""
    check_permission(call.access, AclOperation.DESCRIBE, AclResourceType.CLUSTER)
    if needs.quorum.is_leader:
        return _quorum(needs, call)
    pending: Pending[Message] = Pending()

    def done(answer: DescribeQuorumResponse | BrokerError) -> None:
        pending.resolve(refuse(call, answer) if isinstance(answer, BrokerError) else answer)

    # Without a leader the request waits; this node may be elected.
    needs.controller.request(call.request, done, here=lambda: _quorum(needs, call), access=call.access)
    return pending


def _replica(replica_id: int, progress: Progress, wall_ms: int) -> QuorumReplica:
    return QuorumReplica(
        replica_id=replica_id,
        replica_directory_id=progress.directory_id,
        log_end_offset=progress.end_offset,
        last_fetch_timestamp=UNKNOWN if progress.last_fetch_ms is None else wall_ms + progress.last_fetch_ms,
        last_caught_up_timestamp=UNKNOWN if progress.caught_up_ms is None else wall_ms + progress.caught_up_ms,
    )


def _refuse_member(call: Call[wire.RequestMessage], error: BrokerError) -> Message:
    return wire.refusal(call.request, error.code)


HANDLERS: Final[Table] = {DescribeQuorumRequest: (describe_quorum_elsewhere, refuse)}
CONTROLLER_HANDLERS: Final[Table] = {
    FetchRequest: (fetch, _refuse_member),
    VoteRequest: (member_request, _refuse_member),
    BeginQuorumEpochRequest: (member_request, _refuse_member),
    EndQuorumEpochRequest: (member_request, _refuse_member),
    FetchSnapshotRequest: (member_request, _refuse_member),
    DescribeQuorumRequest: (describe_quorum, refuse),
}
