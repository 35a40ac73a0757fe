"""Huge requests about topics and metadata: Metadata, CreateTopics, DeleteTopics, partitions, reassignments."""

from __future__ import annotations

from typing import Any, Final

from barnabas.protocol.messages import admin, metadata, offsets, quorum, reassignments
from tests.support.processes.huge.request import ELEMENTS, HALF, WIDE, BrokerObjects, Huge, id_of, names

__all__ = ["DELETIONS", "METADATA", "PARTITIONS", "TOPICS", "creatable", "create_of", "delete_of", "per_partition"]

MANY: Final = ELEMENTS - 1


def metadata_of(found: list[str] | None, **fields: Any) -> metadata.MetadataRequest:
    topics = None if found is None else [metadata.MetadataRequestTopic(name=name) for name in found]
    return metadata.MetadataRequest(topics=topics, **({"allow_auto_topic_creation": False} | fields))


def metadata_of_ids(_world: BrokerObjects) -> metadata.MetadataRequest:
    topics = [metadata.MetadataRequestTopic(topic_id=id_of(n), name=None) for n in range(ELEMENTS)]
    return metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def describe_topics(found: list[str], **fields: Any) -> metadata.DescribeTopicPartitionsRequest:
    return metadata.DescribeTopicPartitionsRequest(
        topics=[metadata.TopicRequest(name=name) for name in found], **fields
    )


def api_versions(_world: BrokerObjects) -> metadata.ApiVersionsRequest:
    return metadata.ApiVersionsRequest(client_software_name="a" * 32_000, client_software_version="-" * 32_000)


def create_of(topics: list[admin.CreatableTopic], **fields: Any) -> admin.CreateTopicsRequest:
    return admin.CreateTopicsRequest(topics=topics, timeout_ms=60_000, **fields)


def creatable(found: list[str], count: int = 1) -> list[admin.CreatableTopic]:
    return [admin.CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name in found]


def create_assigned(assignments: list[list[int]], **fields: Any) -> admin.CreateTopicsRequest:
    """Creates one topic with an assignment for each partition."""
    topic = admin.CreatableTopic(
        name="assigned",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            admin.CreatableReplicaAssignment(partition_index=number, broker_ids=brokers)
            for number, brokers in enumerate(assignments)
        ],
    )
    return create_of([topic], **fields)


def create_with_settings(_world: BrokerObjects) -> admin.CreateTopicsRequest:
    (topic,) = creatable(["set"])
    topic.configs = [admin.CreatableTopicConfig(name=name, value="1") for name in names(MANY)]
    return create_of([topic])


def delete_of(found: list[str]) -> admin.DeleteTopicsRequest:
    return admin.DeleteTopicsRequest(topics=[admin.DeleteTopicState(name=name) for name in found], timeout_ms=60_000)


def delete_records_often(_world: BrokerObjects) -> admin.DeleteRecordsRequest:
    parts = [admin.DeleteRecordsPartition(partition_index=0, offset=0) for _ in range(MANY)]
    return admin.DeleteRecordsRequest(topics=[admin.DeleteRecordsTopic(name=WIDE, partitions=parts)], timeout_ms=30_000)


def first_offsets(world: BrokerObjects) -> offsets.ListOffsetsRequest:
    """Of topics that were just created."""
    parts = [offsets.ListOffsetsPartition(partition_index=0, timestamp=-2)]
    return offsets.ListOffsetsRequest(
        topics=[offsets.ListOffsetsTopic(name=name, partitions=parts) for name in names(world.topics, "made")]
    )


def delete_records(count: int) -> admin.DeleteRecordsRequest:
    parts = [admin.DeleteRecordsPartition(partition_index=n, offset=0) for n in range(count)]
    return admin.DeleteRecordsRequest(topics=[admin.DeleteRecordsTopic(name=WIDE, partitions=parts)], timeout_ms=30_000)


def widen(found: list[str], count: int = 10, **fields: Any) -> admin.CreatePartitionsRequest:
    return admin.CreatePartitionsRequest(
        topics=[admin.CreatePartitionsTopic(name=name, count=count, assignments=None) for name in found],
        timeout_ms=60_000,
        **fields,
    )


def describe_log_dirs(topics: list[admin.DescribableLogDirTopic] | None) -> admin.DescribeLogDirsRequest:
    return admin.DescribeLogDirsRequest(topics=topics)


def elect(topics: list[admin.ElectLeadersTopic] | None) -> admin.ElectLeadersRequest:
    return admin.ElectLeadersRequest(election_type=0, topic_partitions=topics, timeout_ms=60_000)


def update_features(_world: BrokerObjects) -> admin.UpdateFeaturesRequest:
    updates = [admin.FeatureUpdateKey(feature=name, max_version_level=1) for name in names(ELEMENTS)]
    return admin.UpdateFeaturesRequest(feature_updates=updates, timeout_ms=60_000)


def reassign(partitions: list[tuple[int, list[int] | None]]) -> reassignments.AlterPartitionReassignmentsRequest:
    parts = [
        reassignments.ReassignablePartition(partition_index=number, replicas=replicas)
        for number, replicas in partitions
    ]
    return reassignments.AlterPartitionReassignmentsRequest(
        timeout_ms=60_000, topics=[reassignments.ReassignableTopic(name=WIDE, partitions=parts)]
    )


def list_reassignments(_world: BrokerObjects) -> reassignments.ListPartitionReassignmentsRequest:
    topic = reassignments.ListPartitionReassignmentsTopics(name=WIDE, partition_indexes=list(range(MANY)))
    return reassignments.ListPartitionReassignmentsRequest(timeout_ms=60_000, topics=[topic])


def per_partition(
    topic: Any, part: Any, count: int, *, name: str = "topic_name", partition: str = "partition_index"
) -> list[Any]:
    """One topic with many partitions, in the classes of a Raft message."""
    return [topic(**{name: "__cluster_metadata", "partitions": [part(**{partition: n}) for n in range(count)]})]


def describe_quorum(_world: BrokerObjects) -> quorum.DescribeQuorumRequest:
    return quorum.DescribeQuorumRequest(
        topics=per_partition(quorum.DescribeQuorumRequestTopic, quorum.DescribeQuorumRequestPartition, MANY)
    )


METADATA: Final = (
    Huge("Metadata: unknown topics", 12, {0, 3}, lambda w: metadata_of(names(ELEMENTS))),
    Huge("Metadata: one wide topic, often", 12, {0}, lambda w: metadata_of([WIDE] * ELEMENTS)),
    Huge("Metadata: all topics", 12, {0}, lambda w: metadata_of(None)),
    Huge("Metadata: unknown ids", 12, {0, 100}, metadata_of_ids),
    Huge(
        "Metadata: names that cannot be",
        12,
        {0, 17},
        lambda w: metadata_of([f"{n}/" for n in range(ELEMENTS)], allow_auto_topic_creation=True),
    ),
    Huge("DescribeTopicPartitions: unknown topics", 0, {3}, lambda w: describe_topics(names(ELEMENTS))),
    Huge(
        "DescribeTopicPartitions: one wide topic, often",
        0,
        {0},
        lambda w: describe_topics([WIDE] * ELEMENTS, response_partition_limit=2**31 - 1),
    ),
    Huge("ApiVersions: a long name", 4, {0, 42}, api_versions),
)

TOPICS: Final = (
    Huge(
        "CreateTopics: names that cannot be",
        7,
        {17},
        lambda w: create_of(creatable([f"{n}/" for n in range(ELEMENTS)])),
    ),
    Huge("CreateTopics: one name, often", 7, {42}, lambda w: create_of(creatable(["twice"] * ELEMENTS))),
    Huge("CreateTopics: 30,000 topics", 7, {0, 44}, lambda w: create_of(creatable(names(30_000)), validate_only=True)),
    Huge(
        "CreateTopics: validated only",
        7,
        {0},
        lambda w: create_of(creatable(names(w.topics, "valid")), validate_only=True),
    ),
    Huge("CreateTopics: 2^31 - 1 partitions", 7, {44, 37}, lambda w: create_of(creatable(["wider"], 2**31 - 1))),
    Huge(
        "CreateTopics: partitions assigned",
        7,
        {0},
        lambda w: create_assigned([[1]] * w.partitions, validate_only=True),
    ),
    Huge("CreateTopics: 98,000 replicas", 7, {39}, lambda w: create_assigned([list(range(1, MANY))])),
    Huge("CreateTopics: 98,000 times one replica", 7, {39}, lambda w: create_assigned([[1] * (MANY - 1)])),
    Huge("CreateTopics: 98,000 settings", 7, {40}, create_with_settings),
    Huge("CreateTopics: many topics", 7, {0}, lambda w: create_of(creatable(names(w.topics, "made")))),
    Huge("ListOffsets: topics just created", 5, {0}, first_offsets),
    Huge("Metadata: all of many topics", 12, {0}, lambda w: metadata_of(None)),
    Huge("CreatePartitions: unknown topics", 3, {3}, lambda w: widen(names(ELEMENTS))),
    Huge(
        "CreatePartitions: validated only",
        3,
        {0, 44},
        lambda w: widen(names(w.topics, "made"), validate_only=True),
    ),
    Huge("CreatePartitions: one topic, often", 3, {42}, lambda w: widen([WIDE] * ELEMENTS)),
)

PARTITIONS: Final = (
    Huge("DeleteRecords: every partition", 2, {0, 3}, lambda w: delete_records(MANY)),
    Huge("DeleteRecords: one partition, often", 2, {0}, delete_records_often),
    Huge(
        "DescribeLogDirs: many partitions",
        4,
        {0},
        lambda w: describe_log_dirs([admin.DescribableLogDirTopic(topic=WIDE, partitions=list(range(MANY)))]),
    ),
    Huge("DescribeLogDirs: all", 4, {0}, lambda w: describe_log_dirs(None)),
    Huge(
        "ElectLeaders: many partitions",
        2,
        {0, 3, 84},
        lambda w: elect([admin.ElectLeadersTopic(topic=WIDE, partitions=list(range(MANY)))]),
    ),
    Huge("ElectLeaders: all", 2, {0, 84}, lambda w: elect(None)),
    Huge("UpdateFeatures: many", 2, {42, 95}, update_features),
    Huge(
        "AlterPartitionReassignments: many partitions", 1, {0, 3}, lambda w: reassign([(n, [1]) for n in range(HALF)])
    ),
    Huge("AlterPartitionReassignments: 98,000 replicas", 1, {0, 39}, lambda w: reassign([(0, list(range(1, MANY)))])),
    Huge("AlterPartitionReassignments: cancelled", 1, {0, 3, 85}, lambda w: reassign([(n, None) for n in range(MANY)])),
    Huge("ListPartitionReassignments: many partitions", 0, {0}, list_reassignments),
    Huge("DescribeQuorum: many partitions", 2, {0, 3}, describe_quorum),
)

DELETIONS: Final = (
    Huge("CreatePartitions: as many as there were topics", 3, {0}, lambda w: widen(["made0"], w.topics)),
    Huge("DeleteTopics: unknown topics", 6, {3}, lambda w: delete_of(names(ELEMENTS))),
    Huge("DeleteTopics: one name, often", 6, {42}, lambda w: delete_of([WIDE] * ELEMENTS)),
    Huge("DeleteTopics: many topics", 6, {0}, lambda w: delete_of(names(w.topics, "made"))),
    Huge("DeleteTopics: a wide topic", 6, {0}, lambda w: delete_of([WIDE])),
)
