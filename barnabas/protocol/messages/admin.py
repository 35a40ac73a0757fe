"""Administration of topics, records, configurations, leaders and features (KIP-339, KIP-460, KIP-464, KIP-584,
KIP-827).
"""

from __future__ import annotations

from typing import ClassVar

from barnabas.protocol.messages.shared import TopicPartitions
from barnabas.protocol.schema import Message, Struct, field
from barnabas.protocol.wire import Array, Bool, Int8, Int16, Int32, Int64, String, Uuid


class CreatableReplicaAssignment(Struct):
    """The brokers that hold one partition."""

    partition_index: int = field(Int32)
    broker_ids: list[int] = field(Array(Int32))


class CreatableTopicConfig(Struct):
    """One configuration of the topic."""

    name: str = field(String)
    value: str | None = field(String, nullable_since=0)


class CreatableTopic(Struct):
    """A topic to create, by counts or by assignments."""

    name: str = field(String)
    num_partitions: int = field(Int32)  # −1: the broker's default, or as assigned
    replication_factor: int = field(Int16)  # −1: the broker's default, or as assigned
    assignments: list[CreatableReplicaAssignment] = field(Array(CreatableReplicaAssignment))
    configs: list[CreatableTopicConfig] = field(Array(CreatableTopicConfig))


class CreateTopicsRequest(Message, api_key=19, versions=(2, 7), flexible_since=5):
    """Creates topics."""

    topics: list[CreatableTopic] = field(Array(CreatableTopic))
    timeout_ms: int = field(Int32, default=60000)
    validate_only: bool = field(Bool)


class CreatableTopicConfigs(Struct):
    """One configuration of the created topic, with its source."""

    name: str = field(String)
    value: str | None = field(String, nullable_since=0)
    read_only: bool = field(Bool)
    config_source: int = field(Int8, default=-1)  # as in DescribeConfigs
    is_sensitive: bool = field(Bool)


class CreatableTopicResult(Struct):
    """The created topic, or an error."""

    name: str = field(String)
    topic_id: bytes = field(Uuid, since=7)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)
    topic_config_error_code: int = field(Int16, since=5, tag=0)
    num_partitions: int = field(Int32, since=5, default=-1)
    replication_factor: int = field(Int16, since=5, default=-1)
    configs: list[CreatableTopicConfigs] | None = field(Array(CreatableTopicConfigs), since=5, nullable_since=5)


class CreateTopicsResponse(Message, api_key=19, versions=(2, 7), flexible_since=5):
    """The created topics."""

    throttle_time_ms: int = field(Int32)
    topics: list[CreatableTopicResult] = field(Array(CreatableTopicResult))


class DeleteTopicState(Struct):
    """A topic to delete, by name or by id."""

    name: str | None = field(String, nullable_since=0, default=None)
    topic_id: bytes = field(Uuid)


class DeleteTopicsRequest(Message, api_key=20, versions=(1, 6), flexible_since=4):
    """Deletes topics."""

    topics: list[DeleteTopicState] = field(Array(DeleteTopicState), since=6)
    topic_names: list[str] = field(Array(String), until=5)
    timeout_ms: int = field(Int32)


class DeletableTopicResult(Struct):
    """The result for one topic."""

    name: str | None = field(String, nullable_since=6)
    topic_id: bytes = field(Uuid, since=6)
    error_code: int = field(Int16)
    error_message: str | None = field(String, since=5, nullable_since=5, default=None)


class DeleteTopicsResponse(Message, api_key=20, versions=(1, 6), flexible_since=4):
    """The deleted topics."""

    throttle_time_ms: int = field(Int32)
    responses: list[DeletableTopicResult] = field(Array(DeletableTopicResult))


class CreatePartitionsAssignment(Struct):
    """The brokers that hold one new partition."""

    broker_ids: list[int] = field(Array(Int32))


class CreatePartitionsTopic(Struct):
    """A topic and its new number of partitions."""

    name: str = field(String)
    count: int = field(Int32)  # the new total
    assignments: list[CreatePartitionsAssignment] | None = field(Array(CreatePartitionsAssignment), nullable_since=0)


class CreatePartitionsRequest(Message, api_key=37, versions=(0, 3), flexible_since=2):
    """Adds partitions to topics."""

    topics: list[CreatePartitionsTopic] = field(Array(CreatePartitionsTopic))
    timeout_ms: int = field(Int32)
    validate_only: bool = field(Bool)


class CreatePartitionsTopicResult(Struct):
    """The result for one topic."""

    name: str = field(String)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0, default=None)


class CreatePartitionsResponse(Message, api_key=37, versions=(0, 3), flexible_since=2):
    """The topics with new partitions."""

    throttle_time_ms: int = field(Int32)
    results: list[CreatePartitionsTopicResult] = field(Array(CreatePartitionsTopicResult))


class DeleteRecordsPartition(Struct):
    """A partition and its new log start; −1 for the high watermark."""

    partition_index: int = field(Int32)
    offset: int = field(Int64)


class DeleteRecordsTopic(Struct):
    """The partitions of one topic."""

    name: str = field(String)
    partitions: list[DeleteRecordsPartition] = field(Array(DeleteRecordsPartition))


class DeleteRecordsRequest(Message, api_key=21, versions=(0, 2), flexible_since=2):
    """Moves the log start forward."""

    topics: list[DeleteRecordsTopic] = field(Array(DeleteRecordsTopic))
    timeout_ms: int = field(Int32)


class DeleteRecordsPartitionResult(Struct):
    """The new log start of one partition; −1 if it failed."""

    partition_index: int = field(Int32)
    low_watermark: int = field(Int64)
    error_code: int = field(Int16)


class DeleteRecordsTopicResult(Struct):
    """The new log starts of one topic."""

    name: str = field(String)
    partitions: list[DeleteRecordsPartitionResult] = field(Array(DeleteRecordsPartitionResult))


class DeleteRecordsResponse(Message, api_key=21, versions=(0, 2), flexible_since=2):
    """The new log starts."""

    throttle_time_ms: int = field(Int32)
    topics: list[DeleteRecordsTopicResult] = field(Array(DeleteRecordsTopicResult))


class DescribeConfigsResource(Struct):
    """A requested resource; null keys means all."""

    resource_type: int = field(Int8)  # 2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group
    resource_name: str = field(String)
    configuration_keys: list[str] | None = field(Array(String), nullable_since=0)


class DescribeConfigsRequest(Message, api_key=32, versions=(1, 4), flexible_since=4):
    """Requests configurations with their sources."""

    resources: list[DescribeConfigsResource] = field(Array(DescribeConfigsResource))
    include_synonyms: bool = field(Bool)
    include_documentation: bool = field(Bool, since=3)


class DescribeConfigsSynonym(Struct):
    """A configuration that applies if the one before it is not set."""

    name: str = field(String)
    value: str | None = field(String, nullable_since=0)
    source: int = field(Int8)


class DescribeConfigsResourceResult(Struct):
    """One configuration and its source."""

    name: str = field(String)
    value: str | None = field(String, nullable_since=0)
    read_only: bool = field(Bool)
    config_source: int = field(Int8, default=-1)  # 1 topic, 2 broker, 3 default broker, 4 static, 5 default
    is_sensitive: bool = field(Bool)
    synonyms: list[DescribeConfigsSynonym] = field(Array(DescribeConfigsSynonym))
    config_type: int = field(Int8, since=3)
    documentation: str | None = field(String, since=3, nullable_since=3)


class DescribeConfigsResult(Struct):
    """The configurations of one resource."""

    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)
    resource_type: int = field(Int8)
    resource_name: str = field(String)
    configs: list[DescribeConfigsResourceResult] = field(Array(DescribeConfigsResourceResult))


class DescribeConfigsResponse(Message, api_key=32, versions=(1, 4), flexible_since=4):
    """The requested configurations."""

    throttle_time_ms: int = field(Int32)
    results: list[DescribeConfigsResult] = field(Array(DescribeConfigsResult))


class AlterableConfig(Struct):
    """One change: set, delete, append or subtract."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"value"})  # it may be a password

    name: str = field(String)
    config_operation: int = field(Int8)  # 0 set, 1 delete, 2 append, 3 subtract
    value: str | None = field(String, nullable_since=0)


class AlterConfigsResource(Struct):
    """The changes of one resource."""

    resource_type: int = field(Int8)  # as in DescribeConfigs
    resource_name: str = field(String)
    configs: list[AlterableConfig] = field(Array(AlterableConfig))


class IncrementalAlterConfigsRequest(Message, api_key=44, versions=(0, 1), flexible_since=1):
    """Changes single configurations. The others stay unchanged."""

    resources: list[AlterConfigsResource] = field(Array(AlterConfigsResource))
    validate_only: bool = field(Bool)


class AlterConfigsResourceResponse(Struct):
    """The result for one resource."""

    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)
    resource_type: int = field(Int8)
    resource_name: str = field(String)


class IncrementalAlterConfigsResponse(Message, api_key=44, versions=(0, 1), flexible_since=1):
    """The changed resources."""

    throttle_time_ms: int = field(Int32)
    responses: list[AlterConfigsResourceResponse] = field(Array(AlterConfigsResourceResponse))


class AlterConfigsRequestConfig(Struct):
    """One new configuration."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"value"})  # it may be a password

    name: str = field(String)
    value: str | None = field(String, nullable_since=0)


class AlterConfigsRequestResource(Struct):
    """All new configurations of a resource."""

    resource_type: int = field(Int8)  # as in DescribeConfigs
    resource_name: str = field(String)
    configs: list[AlterConfigsRequestConfig] = field(Array(AlterConfigsRequestConfig))


class AlterConfigsRequest(Message, api_key=33, versions=(0, 2), flexible_since=2):
    """Replaces all dynamic configurations of resources."""

    resources: list[AlterConfigsRequestResource] = field(Array(AlterConfigsRequestResource))
    validate_only: bool = field(Bool)


class AlterConfigsResponse(Message, api_key=33, versions=(0, 2), flexible_since=2):
    """The changed resources."""

    throttle_time_ms: int = field(Int32)
    responses: list[AlterConfigsResourceResponse] = field(Array(AlterConfigsResourceResponse))


class DescribeLogDirsRequest(Message, api_key=35, versions=(1, 5), flexible_since=2):
    """Requests a broker's data directories and the replicas in them."""

    # null for all
    topics: list[TopicPartitions] | None = field(Array(TopicPartitions), nullable_since=0)


class DescribeLogDirsPartition(Struct):
    """One replica in the directory."""

    partition_index: int = field(Int32)
    partition_size: int = field(Int64)  # of its segments, in bytes
    offset_lag: int = field(Int64)  # log end behind the high watermark, or of a future replica behind the present one
    is_future_key: bool = field(Bool)  # it will replace the one in another directory


class DescribeLogDirsTopic(Struct):
    """The replicas of one topic."""

    name: str = field(String)
    partitions: list[DescribeLogDirsPartition] = field(Array(DescribeLogDirsPartition))


class DescribeLogDirsResult(Struct):
    """One directory."""

    error_code: int = field(Int16)
    log_dir: str = field(String)  # absolute path
    topics: list[DescribeLogDirsTopic] = field(Array(DescribeLogDirsTopic))
    total_bytes: int = field(Int64, since=4, default=-1)  # of the volume
    usable_bytes: int = field(Int64, since=4, default=-1)  # of the volume
    is_cordoned: bool = field(Bool, since=5)


class DescribeLogDirsResponse(Message, api_key=35, versions=(1, 5), flexible_since=2):
    """The data directories of a broker."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16, since=3)
    results: list[DescribeLogDirsResult] = field(Array(DescribeLogDirsResult))


class ElectLeadersRequest(Message, api_key=43, versions=(0, 2), flexible_since=2):
    """Elects the preferred leaders, or unclean leaders for partitions without one."""

    election_type: int = field(Int8, since=1)  # 0 preferred, 1 unclean
    # null for all
    topic_partitions: list[TopicPartitions] | None = field(Array(TopicPartitions), nullable_since=0)
    timeout_ms: int = field(Int32, default=60000)


class PartitionElectionResult(Struct):
    """The result for one partition."""

    partition_id: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)


class ReplicaElectionResult(Struct):
    """The results of one topic."""

    topic: str = field(String)
    partition_result: list[PartitionElectionResult] = field(Array(PartitionElectionResult))


class ElectLeadersResponse(Message, api_key=43, versions=(0, 2), flexible_since=2):
    """The elected leaders."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16, since=1)
    replica_election_results: list[ReplicaElectionResult] = field(Array(ReplicaElectionResult))


class FeatureUpdateKey(Struct):
    """One feature and its new level; below 1 removes it."""

    feature: str = field(String)
    max_version_level: int = field(Int16)
    allow_downgrade: bool = field(Bool, until=0)
    # 1 upgrade only, 2 downgrade without loss, 3 downgrade with loss
    upgrade_type: int = field(Int8, since=1, default=1)


class UpdateFeaturesRequest(Message, api_key=57, versions=(0, 2), flexible_since=0):
    """Changes the levels of features of the whole cluster."""

    timeout_ms: int = field(Int32, default=60000)
    feature_updates: list[FeatureUpdateKey] = field(Array(FeatureUpdateKey))
    validate_only: bool = field(Bool, since=1)


class UpdatableFeatureResult(Struct):
    """The result for one feature."""

    feature: str = field(String)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)


class UpdateFeaturesResponse(Message, api_key=57, versions=(0, 2), flexible_since=0):
    """The changed features: from version 2 all or none."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)
    results: list[UpdatableFeatureResult] = field(Array(UpdatableFeatureResult), until=1)


class ListConfigResourcesRequest(Message, api_key=74, versions=(0, 1), flexible_since=0):
    """Requests the names of resources with configurations. Version 0: client metrics only (KIP-1142)."""

    resource_types: list[int] = field(Array(Int8), since=1)  # empty: all types


class ListedConfigResource(Struct):
    """One resource."""

    resource_name: str = field(String)
    resource_type: int = field(Int8, since=1, default=16)


class ListConfigResourcesResponse(Message, api_key=74, versions=(0, 1), flexible_since=0):
    """The resources of the requested types."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    config_resources: list[ListedConfigResource] = field(Array(ListedConfigResource))
