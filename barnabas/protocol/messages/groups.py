"""Classic consumer groups, their offsets, and coordinator discovery (KIP-345, KIP-394, KIP-496, KIP-559, KIP-699).
Also the members' data in JoinGroup and SyncGroup, after a two-byte version.
"""

from __future__ import annotations

from barnabas.protocol.messages.shared import (
    PartitionIndex,
    PartitionResult,
    TopicPartitionIndexes,
    TopicPartitions,
    TopicResult,
)
from barnabas.protocol.schema import Message, RecordMessage, Struct, field
from barnabas.protocol.wire import Array, Bool, Bytes, Int8, Int16, Int32, Int64, String, Uuid

INT32_MIN = -(2**31)


class FindCoordinatorRequest(Message, api_key=10, versions=(0, 6), flexible_since=3):
    """Requests the coordinator of groups or transactional ids."""

    key: str = field(String, until=3)
    key_type: int = field(Int8, since=1)  # 0 group, 1 transactional id, 2 share group
    coordinator_keys: list[str] = field(Array(String), since=4)


class Coordinator(Struct):
    """The coordinator of one key, or an error."""

    key: str = field(String)
    node_id: int = field(Int32)
    host: str = field(String)
    port: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)


class FindCoordinatorResponse(Message, api_key=10, versions=(0, 6), flexible_since=3):
    """The coordinator, from version 4 one for each key."""

    throttle_time_ms: int = field(Int32, since=1)
    error_code: int = field(Int16, until=3)
    error_message: str | None = field(String, since=1, until=3, nullable_since=1)
    node_id: int = field(Int32, until=3)
    host: str = field(String, until=3)
    port: int = field(Int32, until=3)
    coordinators: list[Coordinator] = field(Array(Coordinator), since=4)


class JoinGroupRequestProtocol(Struct):
    """One assignor that the member supports, with its subscription in that assignor's form."""

    name: str = field(String)
    metadata: bytes = field(Bytes)


class JoinGroupRequest(Message, api_key=11, versions=(0, 9), flexible_since=6):
    """A member enters the group or its next generation."""

    group_id: str = field(String)
    session_timeout_ms: int = field(Int32)
    rebalance_timeout_ms: int = field(Int32, since=1, default=-1)  # −1: the session timeout
    member_id: str = field(String)
    group_instance_id: str | None = field(String, since=5, nullable_since=5, default=None)
    protocol_type: str = field(String)
    protocols: list[JoinGroupRequestProtocol] = field(Array(JoinGroupRequestProtocol))
    reason: str | None = field(String, since=8, nullable_since=8, default=None)


class JoinGroupResponseMember(Struct):
    """A member of the new generation; sent to the leader alone."""

    member_id: str = field(String)
    group_instance_id: str | None = field(String, since=5, nullable_since=5, default=None)
    metadata: bytes = field(Bytes)


class JoinGroupResponse(Message, api_key=11, versions=(0, 9), flexible_since=6):
    """The new generation, after every member has joined."""

    throttle_time_ms: int = field(Int32, since=2)
    error_code: int = field(Int16)
    generation_id: int = field(Int32, default=-1)
    protocol_type: str | None = field(String, since=7, nullable_since=7, default=None)
    protocol_name: str | None = field(String, nullable_since=7)
    leader: str = field(String)
    skip_assignment: bool = field(Bool, since=9)  # the leader keeps the existing assignment (KIP-814)
    member_id: str = field(String)
    members: list[JoinGroupResponseMember] = field(Array(JoinGroupResponseMember))


class SyncGroupRequestAssignment(Struct):
    """The assignment of one member."""

    member_id: str = field(String)
    assignment: bytes = field(Bytes)


class SyncGroupRequest(Message, api_key=14, versions=(0, 5), flexible_since=4):
    """Sends the leader's assignments, or requests the assignment of another member."""

    group_id: str = field(String)
    generation_id: int = field(Int32)
    member_id: str = field(String)
    group_instance_id: str | None = field(String, since=3, nullable_since=3, default=None)
    protocol_type: str | None = field(String, since=5, nullable_since=5, default=None)
    protocol_name: str | None = field(String, since=5, nullable_since=5, default=None)
    assignments: list[SyncGroupRequestAssignment] = field(Array(SyncGroupRequestAssignment))


class SyncGroupResponse(Message, api_key=14, versions=(0, 5), flexible_since=4):
    """The member's assignment."""

    throttle_time_ms: int = field(Int32, since=1)
    error_code: int = field(Int16)
    protocol_type: str | None = field(String, since=5, nullable_since=5, default=None)
    protocol_name: str | None = field(String, since=5, nullable_since=5, default=None)
    assignment: bytes = field(Bytes)


class HeartbeatRequest(Message, api_key=12, versions=(0, 4), flexible_since=4):
    """A heartbeat of a member."""

    group_id: str = field(String)
    generation_id: int = field(Int32)
    member_id: str = field(String)
    group_instance_id: str | None = field(String, since=3, nullable_since=3, default=None)


class HeartbeatResponse(Message, api_key=12, versions=(0, 4), flexible_since=4):
    """Whether the generation is still valid."""

    throttle_time_ms: int = field(Int32, since=1)
    error_code: int = field(Int16)


class MemberIdentity(Struct):
    """A member that leaves."""

    member_id: str = field(String)
    group_instance_id: str | None = field(String, nullable_since=0, default=None)
    reason: str | None = field(String, since=5, nullable_since=5, default=None)


class LeaveGroupRequest(Message, api_key=13, versions=(0, 5), flexible_since=4):
    """Members leave, or are removed by an administrator."""

    group_id: str = field(String)
    member_id: str = field(String, until=2)
    members: list[MemberIdentity] = field(Array(MemberIdentity), since=3)


class MemberResponse(Struct):
    """The result for one member."""

    member_id: str = field(String)
    group_instance_id: str | None = field(String, nullable_since=0)
    error_code: int = field(Int16)


class LeaveGroupResponse(Message, api_key=13, versions=(0, 5), flexible_since=4):
    """The result of a leave."""

    throttle_time_ms: int = field(Int32, since=1)
    error_code: int = field(Int16)
    members: list[MemberResponse] = field(Array(MemberResponse), since=3)


class DescribeGroupsRequest(Message, api_key=15, versions=(0, 6), flexible_since=5):
    """Requests groups with their members."""

    groups: list[str] = field(Array(String))
    include_authorized_operations: bool = field(Bool, since=3)


class DescribedGroupMember(Struct):
    """A member with its subscription and assignment."""

    member_id: str = field(String)
    group_instance_id: str | None = field(String, since=4, nullable_since=4, default=None)
    client_id: str = field(String)
    client_host: str = field(String)
    member_metadata: bytes = field(Bytes)
    member_assignment: bytes = field(Bytes)


class DescribedGroup(Struct):
    """A group and its members, or an error."""

    error_code: int = field(Int16)
    error_message: str | None = field(String, since=6, nullable_since=6, default=None)
    group_id: str = field(String)
    group_state: str = field(String)
    protocol_type: str = field(String)
    protocol_data: str = field(String)
    members: list[DescribedGroupMember] = field(Array(DescribedGroupMember))
    authorized_operations: int = field(Int32, since=3, default=INT32_MIN)  # bit field; lowest int32 if not requested


class DescribeGroupsResponse(Message, api_key=15, versions=(0, 6), flexible_since=5):
    """The requested groups."""

    throttle_time_ms: int = field(Int32, since=1)
    groups: list[DescribedGroup] = field(Array(DescribedGroup))


class ListGroupsRequest(Message, api_key=16, versions=(0, 5), flexible_since=3):
    """Requests the groups of this coordinator, by state and type."""

    states_filter: list[str] = field(Array(String), since=4)
    types_filter: list[str] = field(Array(String), since=5)


class ListedGroup(Struct):
    """Summary of a group."""

    group_id: str = field(String)
    protocol_type: str = field(String)
    group_state: str = field(String, since=4)
    group_type: str = field(String, since=5)


class ListGroupsResponse(Message, api_key=16, versions=(0, 5), flexible_since=3):
    """The groups of this coordinator."""

    throttle_time_ms: int = field(Int32, since=1)
    error_code: int = field(Int16)
    groups: list[ListedGroup] = field(Array(ListedGroup))


class DeleteGroupsRequest(Message, api_key=42, versions=(0, 2), flexible_since=2):
    """Deletes empty groups with their offsets."""

    groups_names: list[str] = field(Array(String))


class DeletableGroupResult(Struct):
    """The result for one group."""

    group_id: str = field(String)
    error_code: int = field(Int16)


class DeleteGroupsResponse(Message, api_key=42, versions=(0, 2), flexible_since=2):
    """The deleted groups."""

    throttle_time_ms: int = field(Int32)
    results: list[DeletableGroupResult] = field(Array(DeletableGroupResult))


class OffsetCommitRequestPartition(Struct):
    """The offset to commit for one partition: the next record to read."""

    partition_index: int = field(Int32)
    committed_offset: int = field(Int64)
    committed_leader_epoch: int = field(Int32, since=6, default=-1)  # −1 unknown
    committed_metadata: str | None = field(String, nullable_since=0)


class OffsetCommitRequestTopic(Struct):
    """The offsets to commit for one topic."""

    name: str = field(String, until=9)
    topic_id: bytes = field(Uuid, since=10)
    partitions: list[OffsetCommitRequestPartition] = field(Array(OffsetCommitRequestPartition))


class OffsetCommitRequest(Message, api_key=8, versions=(2, 10), flexible_since=8):
    """Commits offsets: a member of the generation, or anyone while the group is empty."""

    group_id: str = field(String)
    generation_id_or_member_epoch: int = field(Int32, default=-1)
    member_id: str = field(String)
    group_instance_id: str | None = field(String, since=7, nullable_since=7, default=None)
    retention_time_ms: int = field(Int64, until=4, default=-1)  # −1: the broker's
    topics: list[OffsetCommitRequestTopic] = field(Array(OffsetCommitRequestTopic))


class OffsetCommitResponseTopic(Struct):
    """The results of one topic."""

    name: str = field(String, until=9)
    topic_id: bytes = field(Uuid, since=10)
    partitions: list[PartitionResult] = field(Array(PartitionResult))


class OffsetCommitResponse(Message, api_key=8, versions=(2, 10), flexible_since=8):
    """The results of a commit."""

    throttle_time_ms: int = field(Int32, since=3)
    topics: list[OffsetCommitResponseTopic] = field(Array(OffsetCommitResponseTopic))


class OffsetFetchRequestTopics(Struct):
    """The partitions of one topic, from version 8."""

    name: str = field(String, until=9)
    topic_id: bytes = field(Uuid, since=10)
    partition_indexes: list[int] = field(Array(Int32))


class OffsetFetchRequestGroup(Struct):
    """A group whose offsets are requested; null topics means all."""

    group_id: str = field(String)
    member_id: str | None = field(String, since=9, nullable_since=9, default=None)
    member_epoch: int = field(Int32, since=9, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = field(Array(OffsetFetchRequestTopics), nullable_since=0)


class OffsetFetchRequest(Message, api_key=9, versions=(1, 10), flexible_since=6):
    """Requests committed offsets, up to version 7 of one group; null topics means all."""

    group_id: str = field(String, until=7)
    topics: list[TopicPartitionIndexes] | None = field(Array(TopicPartitionIndexes), until=7, nullable_since=2)
    groups: list[OffsetFetchRequestGroup] = field(Array(OffsetFetchRequestGroup), since=8)
    require_stable: bool = field(Bool, since=7)  # UNSTABLE_OFFSET_COMMIT while a transaction holds the offset (KIP-447)


class OffsetFetchResponsePartition(Struct):
    """The committed offset of one partition, up to version 7; −1 without one."""

    partition_index: int = field(Int32)
    committed_offset: int = field(Int64)
    committed_leader_epoch: int = field(Int32, since=5, default=-1)
    metadata: str | None = field(String, nullable_since=0)
    error_code: int = field(Int16)


class OffsetFetchResponseTopic(Struct):
    """The committed offsets of one topic, up to version 7."""

    name: str = field(String)
    partitions: list[OffsetFetchResponsePartition] = field(Array(OffsetFetchResponsePartition))


class OffsetFetchResponsePartitions(Struct):
    """The committed offset of one partition, from version 8; −1 without one."""

    partition_index: int = field(Int32)
    committed_offset: int = field(Int64)
    committed_leader_epoch: int = field(Int32, default=-1)
    metadata: str | None = field(String, nullable_since=0)
    error_code: int = field(Int16)


class OffsetFetchResponseTopics(Struct):
    """The committed offsets of one topic, from version 8."""

    name: str = field(String, until=9)
    topic_id: bytes = field(Uuid, since=10)
    partitions: list[OffsetFetchResponsePartitions] = field(Array(OffsetFetchResponsePartitions))


class OffsetFetchResponseGroup(Struct):
    """The committed offsets of one group."""

    group_id: str = field(String)
    topics: list[OffsetFetchResponseTopics] = field(Array(OffsetFetchResponseTopics))
    error_code: int = field(Int16)


class OffsetFetchResponse(Message, api_key=9, versions=(1, 10), flexible_since=6):
    """The committed offsets."""

    throttle_time_ms: int = field(Int32, since=3)
    topics: list[OffsetFetchResponseTopic] = field(Array(OffsetFetchResponseTopic), until=7)
    error_code: int = field(Int16, since=2, until=7)
    groups: list[OffsetFetchResponseGroup] = field(Array(OffsetFetchResponseGroup), since=8)


class OffsetDeleteRequestTopic(Struct):
    """The partitions of one topic."""

    name: str = field(String)
    partitions: list[PartitionIndex] = field(Array(PartitionIndex))


class OffsetDeleteRequest(Message, api_key=47, versions=(0, 0)):
    """Deletes committed offsets of topics the group does not subscribe to."""

    group_id: str = field(String)
    topics: list[OffsetDeleteRequestTopic] = field(Array(OffsetDeleteRequestTopic))


class OffsetDeleteResponse(Message, api_key=47, versions=(0, 0)):
    """The results of a deletion."""

    error_code: int = field(Int16)
    throttle_time_ms: int = field(Int32)
    topics: list[TopicResult] = field(Array(TopicResult))


class ConsumerProtocolSubscription(RecordMessage, versions=(0, 3)):
    """Subscription of a consumer, as metadata in JoinGroup."""

    topics: list[str] = field(Array(String))
    user_data: bytes | None = field(Bytes, nullable_since=0, default=None)
    owned_partitions: list[TopicPartitions] = field(Array(TopicPartitions), since=1)
    generation_id: int = field(Int32, since=2, default=-1)
    rack_id: str | None = field(String, since=3, nullable_since=3, default=None)


class ConsumerProtocolAssignment(RecordMessage, versions=(0, 3)):
    """Assignment of a consumer, in SyncGroup."""

    assigned_partitions: list[TopicPartitions] = field(Array(TopicPartitions))
    user_data: bytes | None = field(Bytes, nullable_since=0, default=None)


class StickyUserData(RecordMessage, versions=(0, 1)):
    """Previous assignment of a "sticky" member, as user data. It has no version: readers try each format."""

    previous_assignment: list[TopicPartitions] = field(Array(TopicPartitions))
    generation_id: int = field(Int32, since=1, default=-1)


class CooperativeStickyUserData(RecordMessage, versions=(0, 0)):
    """Generation of a "cooperative-sticky" member's owned partitions; without version."""

    generation_id: int = field(Int32, default=-1)
