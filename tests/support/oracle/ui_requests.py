"""What web interfaces ask a cluster when they open its pages: the requests of kafbat UI, AKHQ and Redpanda Console.

The first two use Kafka's Java AdminClient, the third one franz-go. Each list says which requests, in which versions and with which
fields, the interface sends for its pages: cluster and brokers, topics, a topic, groups, a group. Requests that a broker does not
announce are left out, as these clients do (ACLs, quotas and SCRAM users here).
"""

from __future__ import annotations

from typing import Any, Final

from barnabas.protocol.messages.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeLogDirsRequest,
    ListConfigResourcesRequest,
)
from barnabas.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from barnabas.protocol.messages.groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from barnabas.protocol.messages.metadata import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    TopicRequest,
)
from barnabas.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
)
from barnabas.protocol.messages.reassignments import ListPartitionReassignmentsRequest
from barnabas.protocol.messages.transactions import ListTransactionsRequest

__all__ = ["GROUP", "PAGES", "TOPIC", "shape"]

TOPIC: Final = "ui.topic"
GROUP: Final = "ui-group"
BROKER_TYPE, TOPIC_TYPE = 4, 2
EARLIEST, LATEST = -2, -1

Sent = tuple[Any, int]  # a request and its version


def configs(kind: int, name: str, *, synonyms: bool, documentation: bool) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )


def offsets(timestamp: int) -> ListOffsetsRequest:
    partitions = [ListOffsetsPartition(partition_index=number, timestamp=timestamp) for number in range(2)]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=partitions)])


ALL_OFFSETS: Final = OffsetFetchRequestGroup(group_id=GROUP, topics=None)
QUORUM: Final = DescribeQuorumRequest(
    topics=[
        DescribeQuorumRequestTopic(
            topic_name="__cluster_metadata", partitions=[DescribeQuorumRequestPartition(partition_index=0)]
        )
    ]
)
JAVA: Final = ApiVersionsRequest(client_software_name="apache-kafka-java", client_software_version="3.9.1")
FRANZ: Final = ApiVersionsRequest(client_software_name="kgo", client_software_version="1.20.0")

PAGES: Final[dict[str, list[Sent]]] = {
    "kafbat UI": [
        (JAVA, 4),
        (DescribeClusterRequest(include_cluster_authorized_operations=True), 1),
        (configs(BROKER_TYPE, "1", synonyms=True, documentation=True), 4),
        (QUORUM, 2),
        (MetadataRequest(topics=None, allow_auto_topic_creation=False), 13),
        (DescribeTopicPartitionsRequest(topics=[TopicRequest(name=TOPIC)]), 0),
        (configs(TOPIC_TYPE, TOPIC, synonyms=True, documentation=True), 4),
        (DescribeLogDirsRequest(topics=None), 4),
        (offsets(EARLIEST), 10),
        (offsets(LATEST), 10),
        (ListGroupsRequest(), 5),
        (FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]), 6),
        (ConsumerGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=True), 1),
        (DescribeGroupsRequest(groups=[GROUP], include_authorized_operations=True), 6),
        (OffsetFetchRequest(groups=[ALL_OFFSETS], require_stable=False), 9),
        (ListPartitionReassignmentsRequest(topics=None), 0),
        (ListConfigResourcesRequest(), 1),
    ],
    "AKHQ": [
        (JAVA, 3),
        (DescribeClusterRequest(include_cluster_authorized_operations=False), 1),
        (MetadataRequest(topics=None, allow_auto_topic_creation=False), 12),
        (MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False), 12),
        (offsets(EARLIEST), 9),
        (offsets(LATEST), 9),
        (DescribeLogDirsRequest(topics=None), 4),
        (configs(TOPIC_TYPE, TOPIC, synonyms=False, documentation=False), 4),
        (configs(BROKER_TYPE, "1", synonyms=False, documentation=False), 4),
        (ListGroupsRequest(), 4),
        (FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]), 4),
        (DescribeGroupsRequest(groups=[GROUP]), 5),
        (OffsetFetchRequest(groups=[ALL_OFFSETS], require_stable=False), 8),
    ],
    "Redpanda Console": [
        (FRANZ, 4),
        (MetadataRequest(topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=True), 13),
        (configs(BROKER_TYPE, "1", synonyms=True, documentation=True), 4),
        (configs(TOPIC_TYPE, TOPIC, synonyms=True, documentation=True), 4),
        (DescribeLogDirsRequest(topics=None), 5),
        (offsets(EARLIEST), 11),
        (offsets(LATEST), 11),
        (ListGroupsRequest(), 5),
        (DescribeGroupsRequest(groups=[GROUP], include_authorized_operations=True), 6),
        (OffsetFetchRequest(groups=[ALL_OFFSETS], require_stable=True), 9),
        (ListPartitionReassignmentsRequest(topics=None), 0),
        (ListTransactionsRequest(), 2),
        (QUORUM, 2),
    ],
}

# Values that differ between two clusters, or between two moments.
_OWN: Final = frozenset(
    [
        "cluster_id",
        "controller_id",
        "host",
        "port",
        "rack",
        "topic_id",
        "log_dir",
        "partition_size",
        "total_bytes",
        "usable_bytes",
        "timestamp",
        "leader_epoch",
        "last_known_leader_epoch",
        "committed_leader_epoch",
        "replica_directory_id",
        "last_fetch_timestamp",
        "last_caught_up_timestamp",
        "log_end_offset",
        "high_watermark",
        "documentation",
        "finalized_features_epoch",
        "offset_lag",
        "is_cordoned",
        "nodes",
        "listeners",
    ]
)


def shape(answer: Any) -> Any:
    """What two brokers must have in common: errors, names and structure. Lists in the order of their texts; configs by name alone."""
    found: dict[str, Any] = {}
    for declared in answer.FIELDS:
        name, value = declared.name, getattr(answer, declared.name)
        if name in _OWN or name in ("api_keys", "supported_features", "finalized_features"):
            continue
        if name == "configs":
            broker = answer.resource_type == BROKER_TYPE  # Kafka has keys of what is not served here
            found[name] = bool(value) if broker else sorted(each.name for each in value)
        elif isinstance(value, list):
            members = [shape(each) if hasattr(each, "FIELDS") else each for each in value]
            found[name] = sorted((each for each in members if not _is_of_others(each)), key=str)
        else:
            found[name] = shape(value) if hasattr(value, "FIELDS") else value
    return found


def _is_of_others(member: Any) -> bool:
    """Whether it is a topic or group of another test, or an internal one."""
    if not isinstance(member, dict):
        return False
    name = member.get("name") or member.get("group_id") or member.get("transactional_id")
    kind = member.get("resource_type"), member.get("resource_name")
    if kind[0] is not None and "configs" not in member:
        return kind[1] != TOPIC
    return isinstance(name, str) and name not in (TOPIC, GROUP)
