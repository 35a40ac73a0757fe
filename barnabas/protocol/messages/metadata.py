"""Discovery of versions, brokers and topics (KIP-35, KIP-511, KIP-516, KIP-584, KIP-700, KIP-966)."""

from __future__ import annotations

from barnabas.protocol.schema import Message, Struct, field
from barnabas.protocol.wire import Array, Bool, Int8, Int16, Int32, Int64, String, Uuid

INT32_MIN = -(2**31)


class ApiVersionsRequest(Message, api_key=18, versions=(0, 4), flexible_since=3):
    """Requests the API versions of a broker: the first request of nearly every client."""

    client_software_name: str = field(String, since=3)
    client_software_version: str = field(String, since=3)


class ApiVersion(Struct):
    """Served versions of one RPC."""

    api_key: int = field(Int16)
    min_version: int = field(Int16)
    max_version: int = field(Int16)


class SupportedFeatureKey(Struct):
    """Supported levels of one feature."""

    name: str = field(String)
    min_version: int = field(Int16)
    max_version: int = field(Int16)


class FinalizedFeatureKey(Struct):
    """Finalized level of one feature."""

    name: str = field(String)
    max_version_level: int = field(Int16)
    min_version_level: int = field(Int16)


class ApiVersionsResponse(Message, api_key=18, versions=(0, 4), flexible_since=3):
    """Version ranges by RPC, and the features of the cluster."""

    error_code: int = field(Int16)
    api_keys: list[ApiVersion] = field(Array(ApiVersion))
    throttle_time_ms: int = field(Int32, since=1)
    # before version 4 without features whose minimum is 0 (KAFKA-17011)
    supported_features: list[SupportedFeatureKey] = field(Array(SupportedFeatureKey), since=3, tag=0)
    # offset of the metadata record; −1 unknown
    finalized_features_epoch: int = field(Int64, since=3, default=-1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = field(Array(FinalizedFeatureKey), since=3, tag=2)
    zk_migration_ready: bool = field(Bool, since=3, tag=3)


class MetadataRequestTopic(Struct):
    """A requested topic, by name or by id."""

    topic_id: bytes = field(Uuid, since=10)
    name: str | None = field(String, nullable_since=10)  # null if the topic is requested by id


class MetadataRequest(Message, api_key=3, versions=(0, 13), flexible_since=9):
    """Requests brokers and topics; null topics means all, as an empty list does in version 0."""

    topics: list[MetadataRequestTopic] | None = field(Array(MetadataRequestTopic), nullable_since=1)
    allow_auto_topic_creation: bool = field(Bool, since=4, default=True)
    include_cluster_authorized_operations: bool = field(Bool, since=8, until=10)
    include_topic_authorized_operations: bool = field(Bool, since=8)


class MetadataResponseBroker(Struct):
    """A live broker and its address."""

    node_id: int = field(Int32)
    host: str = field(String)
    port: int = field(Int32)
    rack: str | None = field(String, since=1, nullable_since=1, default=None)


class MetadataResponsePartition(Struct):
    """Leader and replicas of one partition."""

    error_code: int = field(Int16)
    partition_index: int = field(Int32)
    leader_id: int = field(Int32)  # −1 without leader
    leader_epoch: int = field(Int32, since=7, default=-1)
    replica_nodes: list[int] = field(Array(Int32))
    isr_nodes: list[int] = field(Array(Int32))
    offline_replicas: list[int] = field(Array(Int32), since=5)


class MetadataResponseTopic(Struct):
    """A topic with its partitions, or an error."""

    error_code: int = field(Int16)
    name: str | None = field(String, nullable_since=12)  # null if the requested id is unknown
    topic_id: bytes = field(Uuid, since=10)
    is_internal: bool = field(Bool, since=1)
    partitions: list[MetadataResponsePartition] = field(Array(MetadataResponsePartition))
    # bit field; lowest int32 if not requested
    topic_authorized_operations: int = field(Int32, since=8, default=INT32_MIN)


class MetadataResponse(Message, api_key=3, versions=(0, 13), flexible_since=9):
    """Brokers, controller and the leaders of partitions."""

    throttle_time_ms: int = field(Int32, since=3)
    brokers: list[MetadataResponseBroker] = field(Array(MetadataResponseBroker))
    cluster_id: str | None = field(String, since=2, nullable_since=2, default=None)
    controller_id: int = field(Int32, since=1, default=-1)
    topics: list[MetadataResponseTopic] = field(Array(MetadataResponseTopic))
    # bit field; lowest int32 if not requested
    cluster_authorized_operations: int = field(Int32, since=8, until=10, default=INT32_MIN)
    error_code: int = field(Int16, since=13)


class DescribeClusterRequest(Message, api_key=60, versions=(0, 2), flexible_since=0):
    """Requests the brokers or the controllers, without topics (KIP-700)."""

    include_cluster_authorized_operations: bool = field(Bool)
    endpoint_type: int = field(Int8, since=1, default=1)  # 1 brokers, 2 controllers
    include_fenced_brokers: bool = field(Bool, since=2)


class DescribeClusterBroker(Struct):
    """One node and its address."""

    broker_id: int = field(Int32)
    host: str = field(String)
    port: int = field(Int32)
    rack: str | None = field(String, nullable_since=0, default=None)
    is_fenced: bool = field(Bool, since=2)


class DescribeClusterResponse(Message, api_key=60, versions=(0, 2), flexible_since=0):
    """Cluster id, controller and nodes."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0, default=None)
    endpoint_type: int = field(Int8, since=1, default=1)  # 1 brokers, 2 controllers
    cluster_id: str = field(String)
    controller_id: int = field(Int32, default=-1)
    brokers: list[DescribeClusterBroker] = field(Array(DescribeClusterBroker))
    cluster_authorized_operations: int = field(Int32, default=INT32_MIN)  # bit field; lowest int32 if not requested


class TopicRequest(Struct):
    """A requested topic."""

    name: str = field(String)


class Cursor(Struct):
    """First topic and partition of a page."""

    topic_name: str = field(String)
    partition_index: int = field(Int32)


class DescribeTopicPartitionsRequest(Message, api_key=75, versions=(0, 0), flexible_since=0):
    """Requests topics page by page (KIP-966)."""

    topics: list[TopicRequest] = field(Array(TopicRequest))
    response_partition_limit: int = field(Int32, default=2000)
    cursor: Cursor | None = field(Cursor, nullable_since=0, default=None)


class DescribeTopicPartitionsResponsePartition(Struct):
    """Leader and replicas of one partition, with the eligible leader replicas."""

    error_code: int = field(Int16)
    partition_index: int = field(Int32)
    leader_id: int = field(Int32)
    leader_epoch: int = field(Int32, default=-1)
    replica_nodes: list[int] = field(Array(Int32))
    isr_nodes: list[int] = field(Array(Int32))
    eligible_leader_replicas: list[int] | None = field(Array(Int32), nullable_since=0, default=None)
    last_known_elr: list[int] | None = field(Array(Int32), nullable_since=0, default=None)
    offline_replicas: list[int] = field(Array(Int32))


class DescribeTopicPartitionsResponseTopic(Struct):
    """A topic with its partitions on the page."""

    error_code: int = field(Int16)
    name: str | None = field(String, nullable_since=0)
    topic_id: bytes = field(Uuid)
    is_internal: bool = field(Bool)
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(Array(DescribeTopicPartitionsResponsePartition))
    topic_authorized_operations: int = field(Int32, default=INT32_MIN)


class DescribeTopicPartitionsResponse(Message, api_key=75, versions=(0, 0), flexible_since=0):
    """One page of topics; `next_cursor` is null on the last."""

    throttle_time_ms: int = field(Int32)
    topics: list[DescribeTopicPartitionsResponseTopic] = field(Array(DescribeTopicPartitionsResponseTopic))
    next_cursor: Cursor | None = field(Cursor, nullable_since=0, default=None)
