"""Decisions about topics. Codes and words are those of Apache Kafka 4.3.1 for the same requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.controller.core.decision import MetadataDecision
from barnabas.broker.controller.core.topics import create_partitions, create_topics, delete_topics
from barnabas.broker.image.image import MetadataImage
from barnabas.broker.image.records import FenceBrokerRecord, PartitionRecord
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.admin import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicState,
)
from tests.support.broker.metadata_images import cluster, directory_of, replayed, view, with_topic

A, B = bytes(15) + b"a", bytes(15) + b"b"


def topic(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    assigned: Sequence[tuple[int, list[int]]] = (),
    **configs: str | None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=-1 if assigned else partitions,
        replication_factor=-1 if assigned else replicas,
        assignments=[CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in assigned],
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def create(
    image: MetadataImage, *topics: CreatableTopic, validate_only: bool = False, config: BrokerConfig | None = None
) -> MetadataDecision[CreateTopicsResponse]:
    return create_topics(view(image, config), CreateTopicsRequest(topics=list(topics), validate_only=validate_only))


def test_a_topic_is_written_with_its_settings_and_partitions() -> None:
    image = cluster((1, 2, 3))
    decision = create(image, topic("orders", 4, 2, retention_ms="1000"))
    after = replayed(image, decision.records)
    orders = after.topics_by_name["orders"]
    (result,) = decision.answer.topics
    assert (result.error_code, result.error_message) == (0, None)
    assert (result.topic_id, result.num_partitions, result.replication_factor) == (orders.topic_id, 4, 2)
    assert after.topic_config("orders") == {"retention.ms": "1000"}
    for partition in orders.partitions:
        assert partition.leader == partition.replicas[0]
        assert partition.isr == partition.replicas
        assert len(set(partition.replicas)) == 2
        assert partition.directories == tuple(map(directory_of, partition.replicas))
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    # In turn: no broker leads more than its share, rounded up.
    leaders = [partition.leader for partition in orders.partitions]
    assert max(leaders.count(broker) for broker in (1, 2, 3)) == 2
    configs = {config.name: (config.value, config.config_source) for config in result.configs or ()}
    assert configs["retention.ms"] == ("1000", 1)
    assert configs["segment.bytes"] == ("1073741824", 5)


def test_validate_only_answers_alike_and_writes_nothing() -> None:
    image = cluster()
    real, tried = (create(image, topic("a", 3), topic("b..", 0), validate_only=flag) for flag in (False, True))
    assert real.answer == tried.answer
    assert len(real.records) == 4
    assert not tried.records


@pytest.mark.parametrize(
    ("asked", "code", "message"),
    [
        (topic(""), 17, "Topic name is invalid: the empty string is not allowed"),
        (topic(".."), 17, "Topic name is invalid: '..' is not allowed"),
        (
            topic("a/b"), 17,
            "Topic name is invalid: 'a/b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
        ),
        (topic("é"), 17, "Topic name is invalid: 'é' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        (
            topic("z" * 250), 17,
            f"Topic name is invalid: the length of '{'z' * 250}' is longer than the max allowed length 249",
        ),
        (topic("a.b"), 36, "Topic 'a.b' already exists."),
        (topic("a_b"), 17, "Topic 'a_b' collides with existing topic: a.b"),
        (topic("__cluster_metadata"), 42, "Creation of internal topic __cluster_metadata is prohibited."),
        (topic("x", 0), 37, "Number of partitions was set to an invalid non-positive value."),
        (topic("x", -2), 37, "Number of partitions was set to an invalid non-positive value."),
        (topic("x", 1, 0), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
        (topic("x", 1, -2), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
        (
            topic("x", 1, 5), 38,
            "Unable to replicate the partition 5 time(s): The target replication factor of 5 cannot be reached because "
            "only 1 broker(s) are registered or some brokers have all their log directories cordoned.",
        ),
        (topic("x", 10_001), 44, "Excessively large number of partitions per request."),
        (topic("x", assigned=[(0, [1, 1])]), 39, "The manual partition assignment includes the broker 1 more than once."),
        (topic("x", assigned=[(0, [])]), 39, "The manual partition assignment includes an empty replica list."),
        (
            topic("x", assigned=[(0, [7])]), 39,
            "The manual partition assignment includes broker 7, but no such broker is registered.",
        ),
        (
            topic("x", assigned=[(0, [1]), (2, [1])]), 39,
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (topic("x", assigned=[(0, [1]), (0, [1])]), 39, "Found multiple manual partition assignments for partition 0"),
        (topic("x", nope="1"), 40, "Unknown topic config name: nope"),
        (topic("x", retention_ms=None), 40, "Null value not supported for topic configs: retention.ms"),
        (topic("x", retention_ms="abc"), 40, "Invalid value abc for configuration retention.ms: Not a number of type LONG"),
        (
            topic("x", retention_ms="99999999999999999999"), 40,
            "Invalid value 99999999999999999999 for configuration retention.ms: Not a number of type LONG",
        ),
        (topic("x", retention_ms="-2"), 40, "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        (
            topic("x", cleanup_policy="none,delete"), 40,
            "Invalid value none for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        (
            topic("x", preallocate="1"), 40,
            "Invalid value 1 for configuration preallocate: Expected value to be either true or false",
        ),
        (
            topic("x", min_cleanable_dirty_ratio="2"), 40,
            "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        (
            topic("x", compression_gzip_level="0"), 40,
            "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
        ),
        (
            topic("x", min_compaction_lag_ms="10", max_compaction_lag_ms="5"), 40,
            "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
        ),
        (
            topic("x", remote_storage_enable="true"), 40,
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
        ),
    ],
)  # fmt: skip
def test_refusals_are_kafkas(asked: CreatableTopic, code: int, message: str) -> None:
    image = with_topic(cluster(), "a.b", A, ([1], [1], 1))
    decision = create(image, asked, topic("good"))
    refused, good = decision.answer.topics
    assert (refused.name, refused.error_code, refused.error_message) == (asked.name, code, message)
    assert good.error_code == 0
    assert list(replayed(image, decision.records).topics_by_name) == ["a.b", "good"]


@pytest.mark.parametrize(
    "asked",
    [
        topic("z" * 249),
        topic("x", cleanup_policy=""),
        topic("x", cleanup_policy="compact, delete"),
        topic("x", retention_ms=" 5 "),
        topic("x", preallocate="TRUE"),
        topic("x", leader_replication_throttled_replicas="1:1,0:1"),
        topic("x", leader_replication_throttled_replicas="*"),
        topic("__consumer_offsets"),
    ],
)
def test_what_kafka_accepts_is_accepted(asked: CreatableTopic) -> None:
    assert create(cluster(), asked).answer.topics[0].error_code == 0


def test_assigned_partitions_have_the_same_number_of_replicas() -> None:
    for first, second in (([1], [1, 2]), ([1, 2], [1])):
        (result,) = create(cluster((1, 2)), topic("x", assigned=[(1, first), (0, second)])).answer.topics
        assert (result.error_code, result.error_message) == (
            39,
            f"The manual partition assignment includes a partition with {len(second)} replica(s), but this is not "
            f"consistent with previous partitions, which have {len(first)} replica(s).",
        )


def test_counts_and_an_assignment_exclude_each_other() -> None:
    both = topic("x", assigned=[(0, [1])])
    both.num_partitions = 2
    (result,) = create(cluster(), both).answer.topics
    assert result.error_code == ErrorCode.INVALID_REQUEST


def test_a_name_given_twice_is_refused_once_and_written_never() -> None:
    decision = create(cluster(), topic("dup"), topic("other"), topic("dup", 2))
    assert [(each.name, each.error_code) for each in decision.answer.topics] == [("dup", 42), ("other", 0)]
    assert decision.answer.topics[0].error_message == "Duplicate topic name."
    assert len(decision.records) == 2


def test_defaults_come_from_the_broker() -> None:
    config = BrokerConfig({"num.partitions": "3", "default.replication.factor": "2"})
    (result,) = create(cluster((1, 2)), topic("x", -1, -1), config=config).answer.topics
    assert (result.num_partitions, result.replication_factor) == (3, 2)


def test_no_leader_among_fenced_brokers() -> None:
    image = cluster((1, 2))
    image = replayed(image, [FenceBrokerRecord(id=1, epoch=image.brokers[1].epoch)])
    after = replayed(image, create(image, topic("x", 2, 2)).records)
    for partition in after.topics_by_name["x"].partitions:
        assert (partition.leader, partition.isr, partition.replicas) == (2, (2,), (2, 1))
    (assigned,) = create(image, topic("x", assigned=[(0, [1])])).answer.topics
    assert assigned.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "fenced" in (assigned.error_message or "")
    image = replayed(image, [FenceBrokerRecord(id=2, epoch=image.brokers[2].epoch)])
    assert create(image, topic("x")).answer.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_broker_with_several_directories_chooses_itself() -> None:
    image = cluster()
    several = image.brokers[1]._replace(directories=(A, B))
    decision = create(replace(image, brokers={1: several}), topic("x"))
    (partition,) = [record for record in decision.records if isinstance(record, PartitionRecord)]
    assert partition.directories == [bytes(16)]


# -- deletion


def delete(
    image: MetadataImage, *states: DeleteTopicState, config: BrokerConfig | None = None
) -> MetadataDecision[Any]:
    return delete_topics(view(image, config), list(states))


def two_topics() -> MetadataImage:
    return with_topic(with_topic(cluster(), "a", A, ([1], [1], 1)), "b", B, ([1], [1], 1))


def test_topics_are_deleted_by_name_and_by_id() -> None:
    decision = delete(two_topics(), DeleteTopicState(name="a"), DeleteTopicState(topic_id=B))
    told = [(each.name, each.topic_id, each.error_code, each.error_message) for each in decision.answer.responses]
    assert told == [("a", A, 0, None), ("b", B, 0, None)]
    assert not replayed(two_topics(), decision.records).topics_by_name


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([DeleteTopicState(name="x")], [("x", 3, "This server does not host this topic-partition.")]),
        ([DeleteTopicState(name="a/b")], [("a/b", 3, "This server does not host this topic-partition.")]),
        ([DeleteTopicState(topic_id=bytes(15) + b"x")], [(None, 100, "This server does not host this topic ID.")]),
        ([DeleteTopicState()], [(None, 42, "Neither topic name nor id were specified.")]),
        ([DeleteTopicState(name="a", topic_id=A)], [("a", 42, "You may not specify both topic name and topic id.")]),
        ([DeleteTopicState(name="a")] * 2, [("a", 42, "Duplicate topic name.")]),
        ([DeleteTopicState(topic_id=A)] * 2, [(None, 42, "Duplicate topic id.")]),
        (
            [DeleteTopicState(name="a"), DeleteTopicState(topic_id=A)],
            [("a", 42, "The provided topic name maps to an ID that was already supplied.")],
        ),
    ],
)
def test_refused_deletions_are_kafkas(states: list[DeleteTopicState], expected: list[Any]) -> None:
    decision = delete(two_topics(), *states)
    assert [(each.name, each.error_code, each.error_message) for each in decision.answer.responses] == expected
    assert not decision.records


def test_deletion_can_be_switched_off() -> None:
    with pytest.raises(BrokerError) as refused:
        delete(two_topics(), DeleteTopicState(name="a"), config=BrokerConfig({"delete.topic.enable": "false"}))
    assert refused.value.code is ErrorCode.TOPIC_DELETION_DISABLED


# -- more partitions


def widen(
    image: MetadataImage, name: str, count: int, assigned: list[list[int]] | None = None, *, validate_only: bool = False
) -> MetadataDecision[Any]:
    assignments = None if assigned is None else [CreatePartitionsAssignment(broker_ids=ids) for ids in assigned]
    asked = CreatePartitionsTopic(name=name, count=count, assignments=assignments)
    return create_partitions(view(image), CreatePartitionsRequest(topics=[asked], validate_only=validate_only))


def test_partitions_are_added_behind_those_that_are_there() -> None:
    image = with_topic(cluster((1, 2)), "a", A, ([1, 2], [1, 2], 1))
    after = replayed(image, widen(image, "a", 3).records).topics_by_name["a"]
    assert after.partitions[0] == image.topics_by_name["a"].partitions[0]
    assert [len(partition.replicas) for partition in after.partitions] == [2, 2, 2]
    assigned = replayed(image, widen(image, "a", 2, [[2, 1]]).records).topics_by_name["a"].partitions[1]
    assert (assigned.replicas, assigned.leader) == ((2, 1), 2)
    assert not widen(image, "a", 3, validate_only=True).records
    for fewer in ([[1]], [[1, 2], [1]]):
        (refused,) = widen(image, "a", 1 + len(fewer), fewer).answer.results
        assert (refused.error_code, refused.error_message) == (
            39,
            "The manual partition assignment includes a partition with 1 replica(s), but this is not consistent with "
            "previous partitions, which have 2 replica(s).",
        )


@pytest.mark.parametrize(
    ("name", "count", "assigned", "code", "message"),
    [
        ("x", 2, None, 3, None),
        ("a", 1, None, 37, "Topic already has 1 partition(s)."),
        ("a", 0, None, 37, "The topic a currently has 1 partition(s); 0 would not be an increase."),
        ("a", 2, [[3]], 39, "The manual partition assignment includes broker 3, but no such broker is registered."),
        ("a", 3, [[1]], 39, "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified."),
        ("a", 2, [[1, 1]], 39, "The manual partition assignment includes the broker 1 more than once."),
        ("a", 2, [[]], 39, "The manual partition assignment includes an empty replica list."),
        ("a", 20_000, None, 44, "Excessively large number of partitions per request."),
    ],
)
def test_refused_additions_are_kafkas(
    name: str, count: int, assigned: list[list[int]] | None, code: int, message: str | None
) -> None:
    decision = widen(two_topics(), name, count, assigned)
    (result,) = decision.answer.results
    assert (result.name, result.error_code, result.error_message) == (name, code, message)
    assert not decision.records
