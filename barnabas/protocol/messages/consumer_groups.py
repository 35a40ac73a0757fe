"""Consumer groups whose coordinator assigns (KIP-848, KIP-1082, KIP-1099)."""

from __future__ import annotations

from barnabas.protocol.schema import Message, Struct, field
from barnabas.protocol.wire import Array, Bool, Int8, Int16, Int32, String, Uuid


class TopicIdPartitions(Struct):
    """Partitions of one topic."""

    topic_id: bytes = field(Uuid)
    partitions: list[int] = field(Array(Int32))


class ConsumerGroupHeartbeatRequest(Message, api_key=68, versions=(0, 1), flexible_since=0):
    """Joins, keeps, changes or ends a membership. Fields that are null or −1 have not changed since the last request."""

    group_id: str = field(String)
    member_id: str = field(String)
    member_epoch: int = field(Int32)  # 0 joins, −1 leaves, −2 leaves for a while (static members)
    instance_id: str | None = field(String, nullable_since=0, default=None)
    rack_id: str | None = field(String, nullable_since=0, default=None)
    rebalance_timeout_ms: int = field(Int32, default=-1)
    subscribed_topic_names: list[str] | None = field(Array(String), nullable_since=0, default=None)
    subscribed_topic_regex: str | None = field(String, since=1, nullable_since=1, default=None)
    server_assignor: str | None = field(String, nullable_since=0, default=None)
    topic_partitions: list[TopicIdPartitions] | None = field(Array(TopicIdPartitions), nullable_since=0, default=None)


class HeartbeatAssignment(Struct):
    """The complete assignment of a member, which it may read at once."""

    topic_partitions: list[TopicIdPartitions] = field(Array(TopicIdPartitions))


class ConsumerGroupHeartbeatResponse(Message, api_key=68, versions=(0, 1), flexible_since=0):
    """The member epoch, and the assignment if it has changed."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0, default=None)
    member_id: str | None = field(String, nullable_since=0, default=None)
    member_epoch: int = field(Int32)
    heartbeat_interval_ms: int = field(Int32)
    assignment: HeartbeatAssignment | None = field(HeartbeatAssignment, nullable_since=0, default=None)


class ConsumerGroupDescribeRequest(Message, api_key=69, versions=(0, 1), flexible_since=0):
    """Requests state and members of groups."""

    group_ids: list[str] = field(Array(String))
    include_authorized_operations: bool = field(Bool)


class DescribedTopicPartitions(Struct):
    """Partitions of one topic, by name and id."""

    topic_id: bytes = field(Uuid)
    topic_name: str = field(String)
    partitions: list[int] = field(Array(Int32))


class DescribedAssignment(Struct):
    """A current or target assignment."""

    topic_partitions: list[DescribedTopicPartitions] = field(Array(DescribedTopicPartitions))


class ConsumerGroupMember(Struct):
    """A member: its subscription, its current assignment and its target assignment."""

    member_id: str = field(String)
    instance_id: str | None = field(String, nullable_since=0, default=None)
    rack_id: str | None = field(String, nullable_since=0, default=None)
    member_epoch: int = field(Int32)
    client_id: str = field(String)
    client_host: str = field(String)
    subscribed_topic_names: list[str] = field(Array(String))
    subscribed_topic_regex: str | None = field(String, nullable_since=0, default=None)
    assignment: DescribedAssignment = field(DescribedAssignment)
    target_assignment: DescribedAssignment = field(DescribedAssignment)
    # −1 unknown, 0 the member uses the classic protocol, 1 the consumer protocol.
    member_type: int = field(Int8, since=1, default=-1)


class ConsumerGroupDescribedGroup(Struct):
    """A group, or an error."""

    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0, default=None)
    group_id: str = field(String)
    group_state: str = field(String)
    group_epoch: int = field(Int32)
    assignment_epoch: int = field(Int32)
    assignor_name: str = field(String)
    members: list[ConsumerGroupMember] = field(Array(ConsumerGroupMember))
    authorized_operations: int = field(Int32, default=-(2**31))


class ConsumerGroupDescribeResponse(Message, api_key=69, versions=(0, 1), flexible_since=0):
    """The groups, in the order of the request."""

    throttle_time_ms: int = field(Int32)
    groups: list[ConsumerGroupDescribedGroup] = field(Array(ConsumerGroupDescribedGroup))
