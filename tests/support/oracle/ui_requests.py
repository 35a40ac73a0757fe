"""What web interfaces ask a cluster when they open its pages: the requests of kafbat UI, AKHQ and Redpanda Console.

The first two use Kafka's Java AdminClient, the third one franz-go. Each list says which requests, in which versions and with which
fields, the interface sends for its pages: cluster and brokers, topics, a topic, groups, a group. Requests that a broker does not
announce are left out, as these clients do (ACLs, quotas and SCRAM users here).
"""

from __future__ import annotations

from typing import Any, Final

from tests.support.requests import request_of

TOPIC: Final = "ui.topic"
GROUP: Final = "ui-group"
BROKER_TYPE, TOPIC_TYPE = 4, 2
EARLIEST, LATEST = -2, -1

Sent = tuple[Any, int]  # a request and its version


def configs(kind: int, name: str, *, synonyms: bool, documentation: bool) -> Any:
    return request_of(
        "DescribeConfigs",
        resources=[{"resource_type": kind, "resource_name": name, "configuration_keys": None}],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )


def offsets(timestamp: int) -> Any:
    partitions = [{"partition_index": number, "timestamp": timestamp} for number in range(2)]
    return request_of("ListOffsets", replica_id=-1, topics=[{"name": TOPIC, "partitions": partitions}])


ALL_OFFSETS: Final = {"group_id": GROUP, "topics": None}
QUORUM: Final = request_of(
    "DescribeQuorum", topics=[{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
)
JAVA: Final = request_of("ApiVersions", client_software_name="apache-kafka-java", client_software_version="3.9.1")
FRANZ: Final = request_of("ApiVersions", client_software_name="kgo", client_software_version="1.20.0")

PAGES: Final[dict[str, list[Sent]]] = {
    "kafbat UI": [
        (JAVA, 4),
        (request_of("DescribeCluster", include_cluster_authorized_operations=True), 1),
        (configs(BROKER_TYPE, "1", synonyms=True, documentation=True), 4),
        (QUORUM, 2),
        (request_of("Metadata", topics=None, allow_auto_topic_creation=False), 13),
        (request_of("DescribeTopicPartitions", topics=[{"name": TOPIC}]), 0),
        (configs(TOPIC_TYPE, TOPIC, synonyms=True, documentation=True), 4),
        (request_of("DescribeLogDirs", topics=None), 4),
        (offsets(EARLIEST), 10),
        (offsets(LATEST), 10),
        (request_of("ListGroups"), 5),
        (request_of("FindCoordinator", key_type=0, coordinator_keys=[GROUP]), 6),
        (request_of("ConsumerGroupDescribe", group_ids=[GROUP], include_authorized_operations=True), 1),
        (request_of("DescribeGroups", groups=[GROUP], include_authorized_operations=True), 6),
        (request_of("OffsetFetch", groups=[ALL_OFFSETS], require_stable=False), 9),
        (request_of("ListPartitionReassignments", topics=None), 0),
        (request_of("ListConfigResources"), 1),
    ],
    "AKHQ": [
        (JAVA, 3),
        (request_of("DescribeCluster", include_cluster_authorized_operations=False), 1),
        (request_of("Metadata", topics=None, allow_auto_topic_creation=False), 12),
        (request_of("Metadata", topics=[{"name": TOPIC}], allow_auto_topic_creation=False), 12),
        (offsets(EARLIEST), 9),
        (offsets(LATEST), 9),
        (request_of("DescribeLogDirs", topics=None), 4),
        (configs(TOPIC_TYPE, TOPIC, synonyms=False, documentation=False), 4),
        (configs(BROKER_TYPE, "1", synonyms=False, documentation=False), 4),
        (request_of("ListGroups"), 4),
        (request_of("FindCoordinator", key_type=0, coordinator_keys=[GROUP]), 4),
        (request_of("DescribeGroups", groups=[GROUP]), 5),
        (request_of("OffsetFetch", groups=[ALL_OFFSETS], require_stable=False), 8),
    ],
    "Redpanda Console": [
        (FRANZ, 4),
        (
            request_of(
                "Metadata", topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=True
            ),
            13,
        ),
        (configs(BROKER_TYPE, "1", synonyms=True, documentation=True), 4),
        (configs(TOPIC_TYPE, TOPIC, synonyms=True, documentation=True), 4),
        (request_of("DescribeLogDirs", topics=None), 5),
        (offsets(EARLIEST), 11),
        (offsets(LATEST), 11),
        (request_of("ListGroups"), 5),
        (request_of("DescribeGroups", groups=[GROUP], include_authorized_operations=True), 6),
        (request_of("OffsetFetch", groups=[ALL_OFFSETS], require_stable=True), 9),
        (request_of("ListPartitionReassignments", topics=None), 0),
        (request_of("ListTransactions"), 2),
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
