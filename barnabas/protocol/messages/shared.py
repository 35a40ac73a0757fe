"""Structs that several messages share."""

from __future__ import annotations

from barnabas.protocol.schema import Struct, field
from barnabas.protocol.wire import Array, Int16, Int32, String


class PartitionIndex(Struct):
    """A partition."""

    partition_index: int = field(Int32)


class PartitionResult(Struct):
    """The result for one partition."""

    partition_index: int = field(Int32)
    error_code: int = field(Int16)


class TopicResult(Struct):
    """The results of one topic."""

    name: str = field(String)
    partitions: list[PartitionResult] = field(Array(PartitionResult))


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic: str = field(String)
    partitions: list[int] = field(Array(Int32))


class TopicPartitionIndexes(Struct):
    """Partitions of one topic, under the names that some messages have for both."""

    name: str = field(String)
    partition_indexes: list[int] = field(Array(Int32))


class LeaderIdAndEpoch(Struct):
    """The present leader of the partition (KIP-951); −1 if unknown."""

    leader_id: int = field(Int32, default=-1)
    leader_epoch: int = field(Int32, default=-1)


class NodeEndpoint(Struct):
    """Address of a leader named in the response (KIP-951)."""

    node_id: int = field(Int32)
    host: str = field(String)
    port: int = field(Int32)
    rack: str | None = field(String, nullable_since=0, default=None)
