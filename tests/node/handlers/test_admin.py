"""The admin family over the wire: versions, refusals, and what DescribeConfigs shows."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol import registry
from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
)
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.reassignments import ListPartitionReassignmentsRequest
from barnabas.protocol.messages.shared import TopicPartitions
from tests.support.broker.nodes import Nodes, Peer, batch

TOPIC, BROKER, LOGGER = 2, 4, 8


def versions(request: Any) -> range:
    low, high = registry.API[request.API_KEY].versions
    return range(low, high + 1)


async def test_topics_come_and_go_in_every_version(node: Node, peer: Peer) -> None:
    for version in versions(CreateTopicsRequest):
        topic = CreatableTopic(name=f"v{version}", num_partitions=2, replication_factor=1)
        (created,) = (await peer.call(CreateTopicsRequest(topics=[topic]), version)).topics
        assert (created.name, created.error_code) == (f"v{version}", 0)
        found = node.image.topics_by_name[f"v{version}"]
        assert len(found.partitions) == 2
        if version >= 5:
            assert (created.num_partitions, created.replication_factor) == (2, 1)
            assert len(created.configs) == 33
        if version >= 7:
            assert created.topic_id == found.topic_id
    for version in versions(DeleteTopicsRequest):
        name = f"v{version + 1}"
        request = DeleteTopicsRequest(topic_names=[name], topics=[DeleteTopicState(name=name)], timeout_ms=5_000)
        (deleted,) = (await peer.call(request, version)).responses
        assert (deleted.name, deleted.error_code) == (name, 0)
        assert node.image.topic(name) is None
        assert node.replicas.get(name, 0) is None


async def test_deletion_by_id(node: Node, peer: Peer) -> None:
    await peer.create("a")
    topic_id = node.image.topic_id("a")
    assert topic_id is not None
    request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic_id)], timeout_ms=5_000)
    (deleted,) = (await peer.call(request, 6)).responses
    assert (deleted.name, deleted.topic_id, deleted.error_code) == ("a", topic_id, 0)
    (again,) = (await peer.call(request, 6)).responses
    assert (again.name, again.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)


@pytest.mark.parametrize(("version", "code"), [(1, 42), (2, 42), (3, 73), (6, 73)])
async def test_deletion_switched_off(nodes: Nodes, version: int, code: int) -> None:
    peer = await nodes.peer(await nodes.start(delete_topic_enable="false"))
    request = DeleteTopicsRequest(topic_names=["a"], topics=[DeleteTopicState(name="a")], timeout_ms=5_000)
    (refused,) = (await peer.call(request, version)).responses
    assert (refused.name, refused.error_code) == ("a", code)


async def test_a_topic_made_again_has_another_id_and_is_empty(node: Node, peer: Peer) -> None:
    await peer.create("a")
    first = node.image.topic_id("a")
    data = PartitionProduceData(index=0, records=batch(b"x"))
    produce = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="a", partition_data=[data])])
    assert (await peer.call(produce, 9)).responses[0].partition_responses[0].error_code == 0
    await peer.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=5_000), 6)
    await peer.create("a")
    assert node.image.topic_id("a") != first
    assert node.replicas.leader("a", 0).log.log_end_offset == 0


async def test_partitions_are_added_in_every_version(node: Node, peer: Peer) -> None:
    await peer.create("a")
    for version in versions(CreatePartitionsRequest):
        count = version + 2
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="a", count=count, assignments=None)], timeout_ms=5_000
        )
        (widened,) = (await peer.call(request, version)).results
        assert (widened.name, widened.error_code, widened.error_message) == ("a", 0, None)
        assert node.replicas.leader("a", count - 1).leader_epoch == 0
        (again,) = (await peer.call(request, version)).results
        assert again.error_code == ErrorCode.INVALID_PARTITIONS


async def test_records_are_deleted_up_to_an_offset_or_the_high_watermark(node: Node, peer: Peer) -> None:
    await peer.create("a")
    await peer.create("compacted", cleanup_policy="compact")
    data = PartitionProduceData(index=0, records=batch(*[b"x"] * 10))
    produce = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="a", partition_data=[data])])
    await peer.call(produce, 9)

    async def delete(topic: str, partition: int, offset: int, version: int = 2) -> tuple[int, int]:
        wanted = DeleteRecordsPartition(partition_index=partition, offset=offset)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])], timeout_ms=1000)
        (answer,) = (await peer.call(request, version)).topics[0].partitions
        assert answer.partition_index == partition
        return answer.low_watermark, answer.error_code

    assert await delete("a", 0, 4, 0) == (4, 0)
    assert await delete("a", 0, 3, 1) == (4, 0)  # never back
    assert await delete("a", 0, 11) == (-1, ErrorCode.OFFSET_OUT_OF_RANGE)
    assert await delete("a", 0, -2) == (-1, ErrorCode.OFFSET_OUT_OF_RANGE)
    assert await delete("a", 0, -1) == (10, 0)
    assert await delete("a", 1, 0) == (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert await delete("nope", 0, 0) == (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert await delete("compacted", 0, 0) == (-1, ErrorCode.POLICY_VIOLATION)
    assert node.replicas.leader("a", 0).log.log_start_offset == 10


async def described(peer: Peer, kind: int, name: str, *keys: str, version: int = 4, synonyms: bool = True) -> Any:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=list(keys) or None)
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=synonyms, include_documentation=version >= 3
    )
    (result,) = (await peer.call(request, version)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


async def altered(peer: Peer, kind: int, name: str, *changes: tuple[str, str | None, int], version: int = 1) -> Any:
    configs = [AlterableConfig(name=key, value=value, config_operation=operation) for key, value, operation in changes]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    (response,) = (await peer.call(IncrementalAlterConfigsRequest(resources=[resource]), version)).responses
    return response


async def test_configs_are_described_in_every_version(peer: Peer) -> None:
    await peer.create("a", retention_ms="1000")
    for version in versions(DescribeConfigsRequest):
        result = await described(peer, TOPIC, "a", version=version)
        assert (result.error_code, len(result.configs)) == (0, 33)
        (retention,) = [config for config in result.configs if config.name == "retention.ms"]
        assert (retention.value, retention.config_source, retention.read_only) == ("1000", 1, False)
        assert [(each.name, each.value, each.source) for each in retention.synonyms] == [("retention.ms", "1000", 1)]
        assert retention.config_type == (5 if version >= 3 else 0)
        if version >= 3:
            assert all(config.documentation for config in result.configs)


async def test_only_the_keys_asked_for_and_no_synonyms_unless_asked_for(peer: Peer) -> None:
    await peer.create("a")
    result = await described(peer, TOPIC, "a", "segment.bytes", "nope", synonyms=False)
    assert [(config.name, config.synonyms) for config in result.configs] == [("segment.bytes", [])]


async def test_a_broker_shows_itself_and_its_cluster(node: Node, peer: Peer) -> None:
    everything = await described(peer, BROKER, "1")
    values = {config.name: config for config in everything.configs}
    assert len(values) > 140
    assert (values["node.id"].value, values["node.id"].config_source, values["node.id"].read_only) == ("1", 4, True)
    assert (values["min.insync.replicas"].value, values["min.insync.replicas"].config_source) == ("1", 3)
    assert (await altered(peer, BROKER, "", ("log.retention.ms", "777", 0))).error_code == 0
    assert (await altered(peer, BROKER, "1", ("log.cleaner.threads", "2", 0), version=0)).error_code == 0
    cluster = await described(peer, BROKER, "")
    assert {config.name: config.value for config in cluster.configs} == {
        "min.insync.replicas": "1",
        "log.retention.ms": "777",
    }
    (threads,) = (await described(peer, BROKER, "1", "log.cleaner.threads")).configs
    assert [(each.value, each.source) for each in threads.synonyms] == [("2", 2), ("1", 5)]
    assert (await altered(peer, BROKER, "", ("log.retention.ms", None, 1))).error_code == 0
    assert [config.name for config in (await described(peer, BROKER, "")).configs] == ["min.insync.replicas"]


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "nope", 3, ""),
        (TOPIC, "..", 17, "Topic name is invalid: '..' is not allowed"),
        (BROKER, "9", 42, "Unexpected broker id, expected 1 or empty string, but received 9"),
        (BROKER, "abc", 42, "Broker id must be an integer, but it is: abc"),
        (3, "1", 42, "Unsupported resource type: 3"),
    ],
)
async def test_refused_descriptions(peer: Peer, kind: int, name: str, code: int, message: str | None) -> None:
    result = await described(peer, kind, name)
    assert (result.error_code, result.error_message, result.configs) == (code, message, [])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("9", "Unexpected broker id, expected 1, but received 9"),
        ("-1", "Unexpected broker id, expected 1, but received -1"),
        ("abc", "Node id must be an integer, but it is: abc"),
    ],
)
async def test_settings_of_another_broker_are_refused(peer: Peer, name: str, message: str) -> None:
    response = await altered(peer, BROKER, name, ("log.cleaner.threads", "2", 0))
    assert (response.error_code, response.error_message) == (ErrorCode.INVALID_REQUEST, message)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("9", "Unexpected node id. Expected 1, but received 9"),
        ("--1", "Node id must be an integer, but it is: --1"),
    ],
)
async def test_levels_of_another_broker_are_refused(peer: Peer, name: str, message: str) -> None:
    response = await altered(peer, LOGGER, name, ("kafka.raft", "DEBUG", 0))
    assert (response.error_code, response.error_message) == (ErrorCode.INVALID_REQUEST, message)


async def test_requests_on_one_connection_take_effect_one_after_another(node: Node, peer: Peer) -> None:
    topic = CreatableTopic(name="a", num_partitions=1, replication_factor=1)
    sent = [
        peer.send(CreateTopicsRequest(topics=[topic]), 7),
        peer.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=5_000), 6),
        peer.send(CreateTopicsRequest(topics=[topic]), 7),
        peer.send(CreateTopicsRequest(topics=[topic]), 7),
    ]
    codes = []
    for each in sent:
        answer = await peer.receive(each)
        codes.append(getattr(answer, "topics", None) or answer.responses)
    assert [answer[0].error_code for answer in codes] == [0, 0, 0, ErrorCode.TOPIC_ALREADY_EXISTS]


async def test_the_longest_names_are_refused_within_an_answer(peer: Peer) -> None:
    """A refusal that quotes a name of 32,767 bytes would be longer than a string may be."""
    name = "x" * 32_767
    election = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic=name, partitions=[0])], timeout_ms=1_000)
    for version in versions(election):
        (elected,) = (await peer.call(election, version)).replica_election_results
        assert elected.partition_result[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    described = DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=TOPIC, resource_name=name)])
    for version in versions(described):
        (refused,) = (await peer.call(described, version)).results
        assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert refused.error_message.endswith("…")


async def test_a_timeout_that_is_over_begins_nothing(nodes: Nodes) -> None:
    """As in Kafka, of requests that change topics: see tests/oracle/test_timeouts_diff.py for all of them."""
    node = await nodes.start()
    peer = await nodes.peer(node)
    await peer.create("there")
    topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    for timeout_ms in (0, -1):
        created = await peer.call(CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms), 5)
        deleted = await peer.call(
            DeleteTopicsRequest(topics=[DeleteTopicState(name="there")], timeout_ms=timeout_ms), 6
        )
        assert created.topics[0].error_code == deleted.responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        listed = await peer.call(ListPartitionReassignmentsRequest(topics=None, timeout_ms=timeout_ms), 0)
        assert listed.error_code == 0
    assert list(node.image.topics_by_name) == ["there"]
