"""Transactions: producers to coordinator, coordinator to partition leaders, and tools.
KIP-360 and KIP-939 (InitProducerId), KIP-447 (group metadata), KIP-664 (tools), KIP-890 (protocol 2), KIP-994,
KIP-1152, KIP-1228.
"""

from __future__ import annotations

from barnabas.protocol.messages.shared import TopicPartitionIndexes, TopicPartitions, TopicResult
from barnabas.protocol.schema import Message, Struct, field
from barnabas.protocol.wire import Array, Bool, Int8, Int16, Int32, Int64, String


class InitProducerIdRequest(Message, api_key=22, versions=(0, 6), flexible_since=2):
    """Requests a producer id; with a transactional id it fences the earlier producer and ends its transaction."""

    transactional_id: str | None = field(String, nullable_since=0)  # null from a merely idempotent producer
    transaction_timeout_ms: int = field(Int32)
    producer_id: int = field(Int64, since=3, default=-1)  # −1 from a new producer
    producer_epoch: int = field(Int16, since=3, default=-1)
    enable_2pc: bool = field(Bool, since=6)  # no time-out for its transactions (KIP-939)
    keep_prepared_txn: bool = field(Bool, since=6)  # keep the open transaction (KIP-939)


class InitProducerIdResponse(Message, api_key=22, versions=(0, 6), flexible_since=2):
    """Producer id and epoch; in version 6 also the prepared transaction."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    producer_id: int = field(Int64, default=-1)
    producer_epoch: int = field(Int16)
    ongoing_txn_producer_id: int = field(Int64, since=6, default=-1)  # −1 without prepared transaction
    ongoing_txn_producer_epoch: int = field(Int16, since=6, default=-1)


class AddPartitionsToTxnTopic(Struct):
    """Partitions of one topic."""

    name: str = field(String)
    partitions: list[int] = field(Array(Int32))


class AddPartitionsToTxnTransaction(Struct):
    """One transaction of a broker's request."""

    transactional_id: str = field(String)
    producer_id: int = field(Int64)
    producer_epoch: int = field(Int16)
    verify_only: bool = field(Bool)  # ask without adding
    topics: list[AddPartitionsToTxnTopic] = field(Array(AddPartitionsToTxnTopic))


class AddPartitionsToTxnRequest(Message, api_key=24, versions=(0, 5), flexible_since=3):
    """Adds partitions to a transaction, or verifies them."""

    transactions: list[AddPartitionsToTxnTransaction] = field(Array(AddPartitionsToTxnTransaction), since=4)
    v3_and_below_transactional_id: str = field(String, until=3)
    v3_and_below_producer_id: int = field(Int64, until=3)
    v3_and_below_producer_epoch: int = field(Int16, until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(Array(AddPartitionsToTxnTopic), until=3)


class AddPartitionsToTxnPartitionResult(Struct):
    """The result for one partition."""

    partition_index: int = field(Int32)
    partition_error_code: int = field(Int16)


class AddPartitionsToTxnTopicResult(Struct):
    """The results of one topic."""

    name: str = field(String)
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field(Array(AddPartitionsToTxnPartitionResult))


class AddPartitionsToTxnResult(Struct):
    """The result for one transaction of a broker's request."""

    transactional_id: str = field(String)
    topic_results: list[AddPartitionsToTxnTopicResult] = field(Array(AddPartitionsToTxnTopicResult))


class AddPartitionsToTxnResponse(Message, api_key=24, versions=(0, 5), flexible_since=3):
    """The results of adding or verifying."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16, since=4)
    results_by_transaction: list[AddPartitionsToTxnResult] = field(Array(AddPartitionsToTxnResult), since=4)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(
        Array(AddPartitionsToTxnTopicResult), until=3
    )


class AddOffsetsToTxnRequest(Message, api_key=25, versions=(0, 4), flexible_since=3):
    """Adds a group's partition of `__consumer_offsets` to a transaction."""

    transactional_id: str = field(String)
    producer_id: int = field(Int64)
    producer_epoch: int = field(Int16)
    group_id: str = field(String)


class AddOffsetsToTxnResponse(Message, api_key=25, versions=(0, 4), flexible_since=3):
    """The result of adding a group."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)


class EndTxnRequest(Message, api_key=26, versions=(0, 5), flexible_since=3):
    """Commits or aborts."""

    transactional_id: str = field(String)
    producer_id: int = field(Int64)
    producer_epoch: int = field(Int16)
    committed: bool = field(Bool)


class EndTxnResponse(Message, api_key=26, versions=(0, 5), flexible_since=3):
    """The outcome, and from version 5 the producer id and epoch for the next transaction."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    producer_id: int = field(Int64, since=5, default=-1)
    producer_epoch: int = field(Int16, since=5, default=-1)


class WritableTxnMarker(Struct):
    """The marker that ends one transaction."""

    producer_id: int = field(Int64)
    producer_epoch: int = field(Int16)
    transaction_result: bool = field(Bool)  # true for commit
    topics: list[TopicPartitionIndexes] = field(Array(TopicPartitionIndexes))
    coordinator_epoch: int = field(Int32)
    transaction_version: int = field(Int8, since=2)  # 2 requires a strictly greater epoch (KIP-1228)


class WriteTxnMarkersRequest(Message, api_key=27, versions=(1, 2), flexible_since=1):
    """Markers to append, from the coordinator to a partition leader or from an administrator."""

    markers: list[WritableTxnMarker] = field(Array(WritableTxnMarker))


class WritableTxnMarkerResult(Struct):
    """The results for one producer."""

    producer_id: int = field(Int64)
    topics: list[TopicResult] = field(Array(TopicResult))


class WriteTxnMarkersResponse(Message, api_key=27, versions=(1, 2), flexible_since=1):
    """The results of all markers."""

    markers: list[WritableTxnMarkerResult] = field(Array(WritableTxnMarkerResult))


class TxnOffsetCommitRequestPartition(Struct):
    """The offset to commit for one partition: the next record to read."""

    partition_index: int = field(Int32)
    committed_offset: int = field(Int64)
    committed_leader_epoch: int = field(Int32, since=2, default=-1)
    committed_metadata: str | None = field(String, nullable_since=0)


class TxnOffsetCommitRequestTopic(Struct):
    """The offsets to commit for one topic."""

    name: str = field(String)
    partitions: list[TxnOffsetCommitRequestPartition] = field(Array(TxnOffsetCommitRequestPartition))


class TxnOffsetCommitRequest(Message, api_key=28, versions=(0, 5), flexible_since=3):
    """Commits offsets that take effect when the transaction commits."""

    transactional_id: str = field(String)
    group_id: str = field(String)
    producer_id: int = field(Int64)
    producer_epoch: int = field(Int16)
    generation_id: int = field(Int32, since=3, default=-1)  # −1 without group metadata
    member_id: str = field(String, since=3)
    group_instance_id: str | None = field(String, since=3, nullable_since=3, default=None)
    topics: list[TxnOffsetCommitRequestTopic] = field(Array(TxnOffsetCommitRequestTopic))


class TxnOffsetCommitResponse(Message, api_key=28, versions=(0, 5), flexible_since=3):
    """The results of a transactional commit."""

    throttle_time_ms: int = field(Int32)
    topics: list[TopicResult] = field(Array(TopicResult))


class DescribeTransactionsRequest(Message, api_key=65, versions=(0, 0), flexible_since=0):
    """Requests details of transactional ids."""

    transactional_ids: list[str] = field(Array(String))


class DescribeTransactionsTransactionState(Struct):
    """One transactional id with its producer and partitions."""

    error_code: int = field(Int16)
    transactional_id: str = field(String)
    transaction_state: str = field(String)
    transaction_timeout_ms: int = field(Int32)
    transaction_start_time_ms: int = field(Int64)  # −1 without transaction
    producer_id: int = field(Int64)
    producer_epoch: int = field(Int16)
    topics: list[TopicPartitions] = field(Array(TopicPartitions))


class DescribeTransactionsResponse(Message, api_key=65, versions=(0, 0), flexible_since=0):
    """The requested transactional ids."""

    throttle_time_ms: int = field(Int32)
    transaction_states: list[DescribeTransactionsTransactionState] = field(Array(DescribeTransactionsTransactionState))


class ListTransactionsRequest(Message, api_key=66, versions=(0, 2), flexible_since=0):
    """Requests transactional ids by state, producer, age and name."""

    state_filters: list[str] = field(Array(String))
    producer_id_filters: list[int] = field(Array(Int64))
    duration_filter: int = field(Int64, since=1, default=-1)  # ms; −1 for all
    # a regular expression of RE2
    transactional_id_pattern: str | None = field(String, since=2, nullable_since=2, default=None)


class ListTransactionsTransactionState(Struct):
    """Summary of one transactional id."""

    transactional_id: str = field(String)
    producer_id: int = field(Int64)
    transaction_state: str = field(String)


class ListTransactionsResponse(Message, api_key=66, versions=(0, 2), flexible_since=0):
    """The transactional ids of this coordinator."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    unknown_state_filters: list[str] = field(Array(String))
    transaction_states: list[ListTransactionsTransactionState] = field(Array(ListTransactionsTransactionState))


class DescribeProducersRequest(Message, api_key=61, versions=(0, 0), flexible_since=0):
    """Requests the producers of partitions from their leaders."""

    topics: list[TopicPartitionIndexes] = field(Array(TopicPartitionIndexes))


class ProducerState(Struct):
    """One producer of a partition."""

    producer_id: int = field(Int64)
    producer_epoch: int = field(Int32)
    last_sequence: int = field(Int32, default=-1)
    last_timestamp: int = field(Int64, default=-1)
    coordinator_epoch: int = field(Int32)  # of the last marker; −1 without
    current_txn_start_offset: int = field(Int64, default=-1)  # −1 without transaction


class DescribeProducersPartitionResult(Struct):
    """The producers of one partition."""

    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0, default=None)
    active_producers: list[ProducerState] = field(Array(ProducerState))


class DescribeProducersTopicResult(Struct):
    """The producers of one topic's partitions."""

    name: str = field(String)
    partitions: list[DescribeProducersPartitionResult] = field(Array(DescribeProducersPartitionResult))


class DescribeProducersResponse(Message, api_key=61, versions=(0, 0), flexible_since=0):
    """The producers of the requested partitions."""

    throttle_time_ms: int = field(Int32)
    topics: list[DescribeProducersTopicResult] = field(Array(DescribeProducersTopicResult))
