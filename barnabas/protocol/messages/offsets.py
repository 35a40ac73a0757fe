"""Offsets of a partition: by time (ListOffsets) and by leader epoch (OffsetForLeaderEpoch, KIP-320).
ListOffsets takes a timestamp, or -1 latest, -2 earliest, -3 max timestamp (KIP-734), -4 earliest local, -5 last tiered,
-6 earliest not yet uploaded.
"""

from __future__ import annotations

from barnabas.protocol.schema import Message, Struct, field
from barnabas.protocol.wire import Array, Int8, Int16, Int32, Int64, String


class ListOffsetsPartition(Struct):
    """A timestamp to look up in one partition."""

    partition_index: int = field(Int32)
    current_leader_epoch: int = field(Int32, since=4, default=-1)  # −1: not checked
    timestamp: int = field(Int64)


class ListOffsetsTopic(Struct):
    """The requested partitions of one topic."""

    name: str = field(String)
    partitions: list[ListOffsetsPartition] = field(Array(ListOffsetsPartition))


class ListOffsetsRequest(Message, api_key=2, versions=(1, 11), flexible_since=6):
    """Requests offsets by timestamp."""

    replica_id: int = field(Int32)  # −1 from a consumer
    isolation_level: int = field(Int8, since=2)  # 0 read_uncommitted, 1 read_committed
    topics: list[ListOffsetsTopic] = field(Array(ListOffsetsTopic))
    timeout_ms: int = field(Int32, since=10)


class ListOffsetsPartitionResponse(Struct):
    """The first record at or after the timestamp; −1 without one."""

    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    timestamp: int = field(Int64, default=-1)
    offset: int = field(Int64, default=-1)
    leader_epoch: int = field(Int32, since=4, default=-1)


class ListOffsetsTopicResponse(Struct):
    """The offsets found in one topic."""

    name: str = field(String)
    partitions: list[ListOffsetsPartitionResponse] = field(Array(ListOffsetsPartitionResponse))


class ListOffsetsResponse(Message, api_key=2, versions=(1, 11), flexible_since=6):
    """Offsets found."""

    throttle_time_ms: int = field(Int32, since=2)
    topics: list[ListOffsetsTopicResponse] = field(Array(ListOffsetsTopicResponse))


class OffsetForLeaderPartition(Struct):
    """An epoch to look up in one partition."""

    partition: int = field(Int32)
    current_leader_epoch: int = field(Int32, default=-1)  # −1: not checked
    leader_epoch: int = field(Int32)


class OffsetForLeaderTopic(Struct):
    """The requested partitions of one topic."""

    topic: str = field(String)
    partitions: list[OffsetForLeaderPartition] = field(Array(OffsetForLeaderPartition))


class OffsetForLeaderEpochRequest(Message, api_key=23, versions=(2, 4), flexible_since=4):
    """Requests the end offsets of leader epochs, to detect a diverged log."""

    replica_id: int = field(Int32, since=3, default=-2)  # −1 from a consumer, −2 from a debugging one
    topics: list[OffsetForLeaderTopic] = field(Array(OffsetForLeaderTopic))


class EpochEndOffset(Struct):
    """The largest epoch up to which leader and follower agree, and its end offset (KIP-595)."""

    error_code: int = field(Int16)
    partition: int = field(Int32)
    leader_epoch: int = field(Int32, default=-1)
    end_offset: int = field(Int64, default=-1)


class OffsetForLeaderTopicResult(Struct):
    """The epoch end offsets of one topic."""

    topic: str = field(String)
    partitions: list[EpochEndOffset] = field(Array(EpochEndOffset))


class OffsetForLeaderEpochResponse(Message, api_key=23, versions=(2, 4), flexible_since=4):
    """The epoch end offsets."""

    throttle_time_ms: int = field(Int32)
    topics: list[OffsetForLeaderTopicResult] = field(Array(OffsetForLeaderTopicResult))
