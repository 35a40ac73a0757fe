"""Huge requests about topics and metadata: Metadata, CreateTopics, DeleteTopics, partitions, reassignments."""

from __future__ import annotations

from typing import Any, Final

from tests.support.processes.huge.request import (
    ELEMENTS,
    HALF,
    WIDE,
    BrokerObjects,
    Huge,
    id_of,
    named,
    names,
    numbered,
)
from tests.support.requests import Fields

MANY: Final = ELEMENTS - 1
MINUTE: Final = {"timeout_ms": 60_000}


def metadata_of(found: list[str] | None, **fields: Any) -> Fields:
    return {"topics": None if found is None else named(found), "allow_auto_topic_creation": False, **fields}


def metadata_of_ids() -> Fields:
    topics = [{"topic_id": id_of(n), "name": None} for n in range(ELEMENTS)]
    return {"topics": topics, "allow_auto_topic_creation": False}


def created(found: list[str], count: int = 1, **fields: Any) -> Fields:
    return {"topics": named(found, num_partitions=count, replication_factor=1), **MINUTE, **fields}


def created_with_settings() -> Fields:
    configs = named(names(MANY), value="1")
    return {"topics": named(["set"], num_partitions=1, replication_factor=1, configs=configs), **MINUTE}


def assigned(assignments: list[list[int]], **fields: Any) -> Fields:
    """Creates one topic with an assignment for each partition."""
    parts = [{"partition_index": number, "broker_ids": brokers} for number, brokers in enumerate(assignments)]
    topic = {"name": "assigned", "num_partitions": -1, "replication_factor": -1, "assignments": parts}
    return {"topics": [topic], **MINUTE, **fields}


def deleted(found: list[str]) -> Fields:
    return {"topics": named(found), **MINUTE}


def delete_records(count: int, step: int = 1) -> Fields:
    return {"topics": named([WIDE], partitions=numbered(count, step=step, offset=0)), "timeout_ms": 30_000}


def first_offsets(world: BrokerObjects) -> Fields:
    """Of topics that were just created."""
    return {"topics": named(names(world.topics, "made"), partitions=[{"partition_index": 0, "timestamp": -2}])}


def widened(found: list[str], count: int = 10, **fields: Any) -> Fields:
    return {"topics": named(found, count=count, assignments=None), **MINUTE, **fields}


def of_every_partition() -> list[Fields]:
    return [{"topic": WIDE, "partitions": list(range(MANY))}]


def elected(topics: list[Fields] | None) -> Fields:
    return {"election_type": 0, "topic_partitions": topics, **MINUTE}


def reassigned(count: int, replicas: list[int] | None) -> Fields:
    return {"topics": named([WIDE], partitions=numbered(count, replicas=replicas)), **MINUTE}


def listed() -> Fields:
    return {"topics": named([WIDE], partition_indexes=list(range(MANY))), **MINUTE}


def features() -> Fields:
    return {"feature_updates": [{"feature": name, "max_version_level": 1} for name in names(ELEMENTS)], **MINUTE}


def metadata_log(count: int, *, name: str = "topic_name", partition: str = "partition_index") -> Fields:
    """The topic of the metadata with many partitions, in the words of a request about Raft."""
    return {"topics": [{name: "__cluster_metadata", "partitions": numbered(count, key=partition)}]}


METADATA: Final = (
    Huge("Metadata: unknown topics", 12, {0, 3}, lambda w: metadata_of(names(ELEMENTS))),
    Huge("Metadata: one wide topic, often", 12, {0}, lambda w: metadata_of([WIDE] * ELEMENTS)),
    Huge("Metadata: all topics", 12, {0}, lambda w: metadata_of(None)),
    Huge("Metadata: unknown ids", 12, {0, 100}, lambda w: metadata_of_ids()),
    Huge(
        "Metadata: names that cannot be",
        12,
        {0, 17},
        lambda w: metadata_of([f"{n}/" for n in range(ELEMENTS)], allow_auto_topic_creation=True),
    ),
    Huge("DescribeTopicPartitions: unknown topics", 0, {3}, lambda w: {"topics": named(names(ELEMENTS))}),
    Huge(
        "DescribeTopicPartitions: one wide topic, often",
        0,
        {0},
        lambda w: {"topics": named([WIDE] * ELEMENTS), "response_partition_limit": 2**31 - 1},
    ),
    Huge(
        "ApiVersions: a long name",
        4,
        {0, 42},
        lambda w: {"client_software_name": "a" * 32_000, "client_software_version": "-" * 32_000},
    ),
)

TOPICS: Final = (
    Huge(
        "CreateTopics: names that cannot be",
        7,
        {17},
        lambda w: created([f"{n}/" for n in range(ELEMENTS)]),
    ),
    Huge("CreateTopics: one name, often", 7, {42}, lambda w: created(["twice"] * ELEMENTS)),
    Huge("CreateTopics: 30,000 topics", 7, {0, 44}, lambda w: created(names(30_000), validate_only=True)),
    Huge(
        "CreateTopics: validated only",
        7,
        {0},
        lambda w: created(names(w.topics, "valid"), validate_only=True),
    ),
    Huge("CreateTopics: 2^31 - 1 partitions", 7, {44, 37}, lambda w: created(["wider"], 2**31 - 1)),
    Huge(
        "CreateTopics: partitions assigned",
        7,
        {0},
        lambda w: assigned([[1]] * w.partitions, validate_only=True),
    ),
    Huge("CreateTopics: 98,000 replicas", 7, {39}, lambda w: assigned([list(range(1, MANY))])),
    Huge("CreateTopics: 98,000 times one replica", 7, {39}, lambda w: assigned([[1] * (MANY - 1)])),
    Huge("CreateTopics: 98,000 settings", 7, {40}, lambda w: created_with_settings()),
    Huge("CreateTopics: many topics", 7, {0}, lambda w: created(names(w.topics, "made"))),
    Huge("ListOffsets: topics just created", 5, {0}, first_offsets),
    Huge("Metadata: all of many topics", 12, {0}, lambda w: metadata_of(None)),
    Huge("CreatePartitions: unknown topics", 3, {3}, lambda w: widened(names(ELEMENTS))),
    Huge(
        "CreatePartitions: validated only",
        3,
        {0, 44},
        lambda w: widened(names(w.topics, "made"), validate_only=True),
    ),
    Huge("CreatePartitions: one topic, often", 3, {42}, lambda w: widened([WIDE] * ELEMENTS)),
)

PARTITIONS: Final = (
    Huge("DeleteRecords: every partition", 2, {0, 3}, lambda w: delete_records(MANY)),
    Huge("DeleteRecords: one partition, often", 2, {0}, lambda w: delete_records(MANY, step=0)),
    Huge(
        "DescribeLogDirs: many partitions",
        4,
        {0},
        lambda w: {"topics": of_every_partition()},
    ),
    Huge("DescribeLogDirs: all", 4, {0}, lambda w: {"topics": None}),
    Huge(
        "ElectLeaders: many partitions",
        2,
        {0, 3, 84},
        lambda w: elected(of_every_partition()),
    ),
    Huge("ElectLeaders: all", 2, {0, 84}, lambda w: elected(None)),
    Huge("UpdateFeatures: many", 2, {42, 95}, lambda w: features()),
    Huge("AlterPartitionReassignments: many partitions", 1, {0, 3}, lambda w: reassigned(HALF, [1])),
    Huge("AlterPartitionReassignments: 98,000 replicas", 1, {0, 39}, lambda w: reassigned(1, list(range(1, MANY)))),
    Huge("AlterPartitionReassignments: cancelled", 1, {0, 3, 85}, lambda w: reassigned(MANY, None)),
    Huge("ListPartitionReassignments: many partitions", 0, {0}, lambda w: listed()),
    Huge("DescribeQuorum: many partitions", 2, {0, 3}, lambda w: metadata_log(MANY)),
)

DELETIONS: Final = (
    Huge("CreatePartitions: as many as there were topics", 3, {0}, lambda w: widened(["made0"], w.topics)),
    Huge("DeleteTopics: unknown topics", 6, {3}, lambda w: deleted(names(ELEMENTS))),
    Huge("DeleteTopics: one name, often", 6, {42}, lambda w: deleted([WIDE] * ELEMENTS)),
    Huge("DeleteTopics: many topics", 6, {0}, lambda w: deleted(names(w.topics, "made"))),
    Huge("DeleteTopics: a wide topic", 6, {0}, lambda w: deleted([WIDE])),
)
