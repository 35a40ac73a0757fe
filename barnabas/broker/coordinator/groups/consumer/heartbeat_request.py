"""ConsumerGroupHeartbeat requests: checks, and updates of a member (KIP-848, KIP-1082; errors of Kafka 4.3.1)."""

from __future__ import annotations

from collections.abc import Collection

from barnabas.broker.coordinator.groups.consumer.member import JOIN_EPOCH, LEAVE_STATIC_EPOCH, MemberMetadata, Owned
from barnabas.broker.coordinator.groups.effects import HeartbeatCall
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import SUBSCRIPTION_NAMES_MAX
from barnabas.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, TopicIdPartitions

UNCHANGED = -1  # rebalance timeout of a request that does not change it


def check_heartbeat(request: ConsumerGroupHeartbeatRequest, version: int, assignors: Collection[str]) -> None:
    """Checks without the group. Raises BrokerError(INVALID_REQUEST, UNSUPPORTED_ASSIGNOR)."""
    epoch = request.member_epoch
    needs_id = version >= 1 or epoch != JOIN_EPOCH  # before version 1 the coordinator chooses the member id
    joins = epoch == JOIN_EPOCH
    no_topics = request.subscribed_topic_names is None and request.subscribed_topic_regex is None
    for wrong, message in (
        (not request.group_id, "GroupId can't be empty."),
        (needs_id and not request.member_id, "MemberId can't be empty."),
        (request.instance_id == "", "InstanceId can't be empty."),
        (request.rack_id == "", "RackId can't be empty."),
        (epoch < LEAVE_STATIC_EPOCH, "MemberEpoch is invalid."),
        (joins and request.rebalance_timeout_ms == UNCHANGED, "RebalanceTimeoutMs must be provided in first request."),
        (joins and request.topic_partitions != [], "TopicPartitions must be empty when (re-)joining."),
        (
            joins and no_topics,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (epoch == LEAVE_STATIC_EPOCH and request.instance_id is None, "InstanceId can't be null."),
        (
            len(request.subscribed_topic_names or ()) > SUBSCRIPTION_NAMES_MAX,
            f"SubscribedTopicNames has more than {SUBSCRIPTION_NAMES_MAX} names; subscribe by a regular expression.",
        ),
    ):
        if wrong:
            raise BrokerError(ErrorCode.INVALID_REQUEST, message)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def owned_partitions(partitions: list[TopicIdPartitions] | None) -> Owned | None:
    """None if the request does not report owned partitions."""
    if partitions is None:
        return None
    return frozenset((each.topic_id, number) for each in partitions for number in each.partitions)


def updated_metadata(metadata: MemberMetadata, call: HeartbeatCall) -> MemberMetadata:
    """Fields that the request leaves out are unchanged."""
    request = call.request
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    has_timeout = request.rebalance_timeout_ms != UNCHANGED
    return MemberMetadata(
        metadata.instance_id if request.instance_id is None else request.instance_id,
        metadata.rack_id if request.rack_id is None else request.rack_id,
        call.client_id,
        call.client_host,
        metadata.topic_names if names is None else tuple(sorted(set(names))),
        metadata.topic_regex if regex is None else regex,
        request.rebalance_timeout_ms if has_timeout else metadata.rebalance_timeout_ms,
        metadata.server_assignor if request.server_assignor is None else request.server_assignor,
        None,
    )


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether a request has all fields; its answer then contains the assignment."""
    return request.member_epoch == JOIN_EPOCH or (
        request.rebalance_timeout_ms != UNCHANGED
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )
