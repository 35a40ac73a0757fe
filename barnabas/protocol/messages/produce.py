"""Produce (KIP-467 rejected records, KIP-951 new leader, KIP-890 adds to the transaction, KIP-516 topic ids)."""

from __future__ import annotations

from barnabas.ports import Buffer
from barnabas.protocol.messages.shared import LeaderIdAndEpoch, NodeEndpoint
from barnabas.protocol.schema import Message, Struct, field
from barnabas.protocol.wire import Array, Int16, Int32, Int64, Records, String, Uuid


class PartitionProduceData(Struct):
    """The batches of one partition. Since magic 2 exactly one is allowed."""

    index: int = field(Int32)
    records: Buffer | None = field(Records, nullable_since=0)


class TopicProduceData(Struct):
    """The batches for one topic: by name, from version 13 by id."""

    name: str = field(String, until=12)
    topic_id: bytes = field(Uuid, since=13)
    partition_data: list[PartitionProduceData] = field(Array(PartitionProduceData))


class ProduceRequest(Message, api_key=0, versions=(3, 13), flexible_since=9):
    """Batches to append, by topic and partition."""

    transactional_id: str | None = field(String, nullable_since=0, default=None)
    acks: int = field(Int16)  # 0 no response, 1 leader, −1 all in-sync replicas
    timeout_ms: int = field(Int32)
    topic_data: list[TopicProduceData] = field(Array(TopicProduceData))


class BatchIndexAndErrorMessage(Struct):
    """A record that caused the rejection of its batch (KIP-467)."""

    batch_index: int = field(Int32)
    batch_index_error_message: str | None = field(String, nullable_since=0, default=None)


class PartitionProduceResponse(Struct):
    """The result for one partition."""

    index: int = field(Int32)
    error_code: int = field(Int16)
    base_offset: int = field(Int64)
    log_append_time_ms: int = field(Int64, default=-1)  # −1 under CreateTime
    log_start_offset: int = field(Int64, since=5, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = field(Array(BatchIndexAndErrorMessage), since=8)
    error_message: str | None = field(String, since=8, nullable_since=8, default=None)
    current_leader: LeaderIdAndEpoch = field(LeaderIdAndEpoch, since=10, tag=0)


class TopicProduceResponse(Struct):
    """The results for one topic."""

    name: str = field(String, until=12)
    topic_id: bytes = field(Uuid, since=13)
    partition_responses: list[PartitionProduceResponse] = field(Array(PartitionProduceResponse))


class ProduceResponse(Message, api_key=0, versions=(3, 13), flexible_since=9):
    """The results for all batches."""

    responses: list[TopicProduceResponse] = field(Array(TopicProduceResponse))
    throttle_time_ms: int = field(Int32)
    node_endpoints: list[NodeEndpoint] = field(Array(NodeEndpoint), since=10, tag=0)
