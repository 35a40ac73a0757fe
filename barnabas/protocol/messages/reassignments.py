"""Partition reassignments (KIP-455): AlterPartitionReassignments 0-1 (1: KIP-860), ListPartitionReassignments 0."""

from __future__ import annotations

from barnabas.protocol.schema import Message, field, message, struct
from barnabas.protocol.wire import Array, Bool, Int16, Int32, String


@struct
class ReassignablePartition:
    """Target replicas of one partition."""

    partition_index: int = field(Int32)
    # null cancels a reassignment that is under way
    replicas: list[int] | None = field(Array(Int32), nullable_since=0, default=None)


@struct
class ReassignableTopic:
    """Partitions of one topic."""

    name: str = field(String)
    partitions: list[ReassignablePartition] = field(Array(ReassignablePartition))


@message(api_key=45, versions=(0, 1), flexible_since=0)
class AlterPartitionReassignmentsRequest(Message):
    """Starts or cancels reassignments."""

    timeout_ms: int = field(Int32, default=60000)
    allow_replication_factor_change: bool = field(Bool, since=1, default=True)
    topics: list[ReassignableTopic] = field(Array(ReassignableTopic))


@struct
class ReassignablePartitionResponse:
    """The result for one partition."""

    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)


@struct
class ReassignableTopicResponse:
    """The results of one topic."""

    name: str = field(String)
    partitions: list[ReassignablePartitionResponse] = field(Array(ReassignablePartitionResponse))


@message(api_key=45, versions=(0, 1), flexible_since=0)
class AlterPartitionReassignmentsResponse(Message):
    """The results of starts and cancellations. Reassignments continue after the response."""

    throttle_time_ms: int = field(Int32)
    allow_replication_factor_change: bool = field(Bool, since=1, default=True)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)
    responses: list[ReassignableTopicResponse] = field(Array(ReassignableTopicResponse))


@struct
class ListPartitionReassignmentsTopics:
    """Partitions of one topic."""

    name: str = field(String)
    partition_indexes: list[int] = field(Array(Int32))


@message(api_key=46, versions=(0, 0), flexible_since=0)
class ListPartitionReassignmentsRequest(Message):
    """Requests the reassignments in progress."""

    timeout_ms: int = field(Int32, default=60000)
    # null for all
    topics: list[ListPartitionReassignmentsTopics] | None = field(
        Array(ListPartitionReassignmentsTopics), nullable_since=0, default=None
    )


@struct
class OngoingPartitionReassignment:
    """A reassignment in progress."""

    partition_index: int = field(Int32)
    replicas: list[int] = field(Array(Int32))
    adding_replicas: list[int] = field(Array(Int32))
    removing_replicas: list[int] = field(Array(Int32))


@struct
class OngoingTopicReassignment:
    """Reassignments in progress of one topic."""

    name: str = field(String)
    partitions: list[OngoingPartitionReassignment] = field(Array(OngoingPartitionReassignment))


@message(api_key=46, versions=(0, 0), flexible_since=0)
class ListPartitionReassignmentsResponse(Message):
    """Only reassignments in progress."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)
    topics: list[OngoingTopicReassignment] = field(Array(OngoingTopicReassignment))
