"""Requests with a timeout of 0 ms, and of a negative one, beside Kafka's answers: some wait for nothing, some are refused."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.protocol.messages.admin import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
    FeatureUpdateKey,
    UpdateFeaturesRequest,
)
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.protocol.messages.shared import TopicPartitionIndexes, TopicPartitions
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from tests.support.oracle.wire import Wire

pytestmark = pytest.mark.oracle

Observe = Callable[[Wire, str, int], Any]


def create_topics(wire: Wire, topic: str, timeout_ms: int) -> Any:
    topics = [CreatableTopic(name=topic + "-new", num_partitions=1, replication_factor=1)]
    (result,) = wire.call(CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms), 5).topics
    return result.error_code, result.error_message


def delete_topics(wire: Wire, topic: str, timeout_ms: int) -> Any:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=timeout_ms)
    (result,) = wire.call(request, 6).responses
    return result.error_code, result.error_message


def create_partitions(wire: Wire, topic: str, timeout_ms: int) -> Any:
    request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=topic, count=2)], timeout_ms=timeout_ms)
    (result,) = wire.call(request, 3).results
    return result.error_code, result.error_message


def elect_leaders(wire: Wire, topic: str, timeout_ms: int) -> Any:
    topics = [TopicPartitions(topic=topic, partitions=[0])]
    answer = wire.call(ElectLeadersRequest(election_type=0, topic_partitions=topics, timeout_ms=timeout_ms), 2)
    parts = [part for each in answer.replica_election_results for part in each.partition_result]
    return answer.error_code, [(part.error_code, part.error_message) for part in parts]


def elect_leaders_by_version_0(wire: Wire, topic: str, timeout_ms: int) -> Any:
    topics = [TopicPartitions(topic=topic, partitions=[0])]
    answer = wire.call(ElectLeadersRequest(topic_partitions=topics, timeout_ms=timeout_ms), 0)
    return [part.error_code for each in answer.replica_election_results for part in each.partition_result]


def update_features(wire: Wire, topic: str, timeout_ms: int) -> Any:
    update = FeatureUpdateKey(feature="transaction.version", max_version_level=2, upgrade_type=1)
    answer = wire.call(UpdateFeaturesRequest(feature_updates=[update], timeout_ms=timeout_ms), 1)
    return answer.error_code, answer.error_message


def alter_reassignments(wire: Wire, topic: str, timeout_ms: int) -> Any:
    parts = [ReassignablePartition(partition_index=0, replicas=[1])]
    topics = [ReassignableTopic(name=topic, partitions=parts)]
    answer = wire.call(AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=timeout_ms), 0)
    each = [(part.error_code, part.error_message) for one in answer.responses for part in one.partitions]
    return answer.error_code, answer.error_message, each


def list_reassignments(wire: Wire, topic: str, timeout_ms: int) -> Any:
    topics = [TopicPartitionIndexes(name=topic, partition_indexes=[0])]
    answer = wire.call(ListPartitionReassignmentsRequest(topics=topics, timeout_ms=timeout_ms), 0)
    return answer.error_code, answer.error_message, answer.topics


def delete_records(wire: Wire, topic: str, timeout_ms: int) -> Any:
    topics = [DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=0)])]
    answer = wire.call(DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms), 2)
    part = answer.topics[0].partitions[0]
    return part.error_code, part.low_watermark


def produce(wire: Wire, topic: str, timeout_ms: int) -> Any:
    records = bytes(build_batch([NewRecord(None, b"v", 1_700_000_000_000)]))
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])
    answer = wire.call(ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=[data]), 9)
    part = answer.responses[0].partition_responses[0]
    return part.error_code, part.base_offset


EVERY: list[Observe] = [
    create_topics,
    delete_topics,
    create_partitions,
    elect_leaders,
    elect_leaders_by_version_0,
    update_features,
    alter_reassignments,
    list_reassignments,
    delete_records,
    produce,
]


@pytest.mark.parametrize("timeout_ms", [0, -1, 30_000])
@pytest.mark.parametrize("observe", EVERY)
def test_both_say_the_same(kafka: str, barnabas: str, observe: Observe, timeout_ms: int) -> None:
    said = {}
    for name, address in (("kafka", kafka), ("barnabas", barnabas)):
        topic = "t" + uuid.uuid4().hex[:8]
        with Wire(address) as wire:
            wire.create_topic(topic)
            said[name] = repr(observe(wire, topic, timeout_ms)).replace(topic, "TOPIC")
    assert said["barnabas"] == said["kafka"]
