"""Partition reassignments (KIP-455): AlterPartitionReassignments 0-1 (1: KIP-860), ListPartitionReassignments 0."""

from __future__ import annotations

from barnabas.protocol.messages.shared import TopicPartitionIndexes
from barnabas.protocol.schema import Message, Struct, field
from barnabas.protocol.wire import Array, Bool, Int16, Int32, String


class ReassignablePartition(Struct):
    """Target replicas of one partition."""

    partition_index: int = field(Int32)
    # null cancels a reassignment that is under way
    replicas: list[int] | None = field(Array(Int32), nullable_since=0, default=None)


class ReassignableTopic(Struct):
    """Partitions of one topic."""

    name: str = field(String)
    partitions: list[ReassignablePartition] = field(Array(ReassignablePartition))


class AlterPartitionReassignmentsRequest(Message, api_key=45, versions=(0, 1), flexible_since=0):
    """Starts or cancels reassignments."""

    timeout_ms: int = field(Int32, default=60000)
    allow_replication_factor_change: bool = field(Bool, since=1, default=True)
    topics: list[ReassignableTopic] = field(Array(ReassignableTopic))


class ReassignablePartitionResponse(Struct):
    """The result for one partition."""

    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)


class ReassignableTopicResponse(Struct):
    """The results of one topic."""

    name: str = field(String)
    partitions: list[ReassignablePartitionResponse] = field(Array(ReassignablePartitionResponse))


class AlterPartitionReassignmentsResponse(Message, api_key=45, versions=(0, 1), flexible_since=0):
    """The results of starts and cancellations. Reassignments continue after the response."""

    throttle_time_ms: int = field(Int32)
    allow_replication_factor_change: bool = field(Bool, since=1, default=True)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)
    responses: list[ReassignableTopicResponse] = field(Array(ReassignableTopicResponse))


class ListPartitionReassignmentsRequest(Message, api_key=46, versions=(0, 0), flexible_since=0):
    """Requests the reassignments in progress."""

    timeout_ms: int = field(Int32, default=60000)
    # null for all
    topics: list[TopicPartitionIndexes] | None = field(Array(TopicPartitionIndexes), nullable_since=0, default=None)


class OngoingPartitionReassignment(Struct):
    """A reassignment in progress."""

    partition_index: int = field(Int32)
    replicas: list[int] = field(Array(Int32))
    adding_replicas: list[int] = field(Array(Int32))
    removing_replicas: list[int] = field(Array(Int32))


class OngoingTopicReassignment(Struct):
    """Reassignments in progress of one topic."""

    name: str = field(String)
    partitions: list[OngoingPartitionReassignment] = field(Array(OngoingPartitionReassignment))


class ListPartitionReassignmentsResponse(Message, api_key=46, versions=(0, 0), flexible_since=0):
    """Only reassignments in progress."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)
    topics: list[OngoingTopicReassignment] = field(Array(OngoingTopicReassignment))
