"""ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions."""

from __future__ import annotations

import dataclasses

import pytest

from barnabas.broker.controller.channel import ControllerChannel
from barnabas.broker.controller.core.decision import MetadataDecision
from barnabas.broker.handlers.metadata import CREATED_AT_ONCE
from barnabas.broker.image.image import MetadataDelta, PartitionImage, TopicImage
from barnabas.broker.image.records import FeatureLevelRecord
from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.metadata import (
    ApiVersionsRequest,
    Cursor,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    TopicRequest,
)
from barnabas.protocol.registry import API
from tests.support.broker.nodes import Nodes, Peer
from tests.support.waiting import until


@pytest.mark.parametrize("version", range(5))
async def test_api_versions(peer: Peer, node: Node, version: int) -> None:
    answer = await peer.call(ApiVersionsRequest(client_software_name="x", client_software_version="1.0"), version)
    assert answer.error_code == 0
    ranges = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    served = {key: api for key, api in API.items() if "broker" in api.listeners and api.family != "telemetry"}
    assert ranges == {
        key: api.advertised for key, api in served.items()
    }  # telemetry: node/metrics/test_client_series.py
    assert ranges[0] == (0, 13), "KAFKA-18659"
    assert ranges[22] == (0, 5), "version 6 is hidden"
    if version >= 3:
        finalized = {one.name: one.max_version_level for one in answer.finalized_features}
        assert finalized["transaction.version"] == 2
        assert finalized == dict(node.image.features)
        assert answer.finalized_features_epoch == node.image.offset
        supported = {one.name: (one.min_version, one.max_version) for one in answer.supported_features}
        assert ("transaction.version" in supported) == (version >= 4), (
            "a minimum of 0 breaks clients of v3 (KAFKA-17011)"
        )


async def test_features_that_are_not_served_are_not_told(peer: Peer, node: Node) -> None:
    """A directory of Kafka may have them on."""
    record = FeatureLevelRecord(name="share.version", feature_level=1)
    assert node.quorum_controller is not None
    node.quorum_controller.submit(lambda view: MetadataDecision(None, [record]))
    await until(lambda: node.image.feature("share.version") == 1)
    answer = await peer.call(ApiVersionsRequest(client_software_name="x", client_software_version="1.0"), 4)
    told = {one.name for one in (*answer.finalized_features, *answer.supported_features)}
    assert "transaction.version" in told
    assert not {"share.version", "streams.version"} & told


@pytest.mark.parametrize(("name", "release"), [("", "1"), ("x", ""), ("-x", "1"), ("x y", "1"), ("x", "1-")])
async def test_the_clients_software_must_be_well_named(peer: Peer, name: str, release: str) -> None:
    answer = await peer.call(ApiVersionsRequest(client_software_name=name, client_software_version=release), 3)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(14))
async def test_metadata_in_every_version(peer: Peer, node: Node, version: int) -> None:
    await peer.create("t", 2)
    answer = await peer.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), version)
    (broker,) = answer.brokers
    ((_, endpoint),) = node.listing.live(node.config.inter_broker_listener)
    assert (broker.node_id, broker.host, broker.port) == (1, endpoint.host, endpoint.port)
    assert answer.cluster_id == (node.cluster_id if version >= 2 else None)
    assert answer.controller_id == (1 if version >= 1 else -1)
    (topic,) = answer.topics
    assert topic.topic_id == (node.replicas.leader("t", 0).topic_id if version >= 10 else bytes(16))
    assert [(one.partition_index, one.leader_id, one.error_code) for one in topic.partitions] == [(0, 1, 0), (1, 1, 0)]
    assert [(one.replica_nodes, one.isr_nodes) for one in topic.partitions] == [([1], [1])] * 2


async def test_all_topics_and_none(peer: Peer) -> None:
    await peer.create("a")
    await peer.create("b")
    assert [topic.name for topic in (await peer.call(MetadataRequest(topics=[]), 0)).topics] == ["a", "b"]
    assert [topic.name for topic in (await peer.call(MetadataRequest(topics=None), 1)).topics] == ["a", "b"]
    assert (await peer.call(MetadataRequest(topics=[]), 1)).topics == []


async def test_by_id(peer: Peer, node: Node) -> None:
    await peer.create("t")
    topic_id = node.replicas.leader("t", 0).topic_id
    asked = [
        MetadataRequestTopic(topic_id=topic_id, name=None),
        MetadataRequestTopic(topic_id=bytes(range(16)), name=None),
    ]
    found, unknown = (await peer.call(MetadataRequest(topics=asked), 12)).topics
    assert (found.name, found.error_code) == ("t", 0)
    assert (unknown.name, unknown.error_code, unknown.topic_id) == (None, ErrorCode.UNKNOWN_TOPIC_ID, bytes(range(16)))


async def test_a_missing_topic_is_created_once_both_allow_it(nodes: Nodes) -> None:
    node = await nodes.start(num_partitions="3")
    peer = await nodes.peer(node)
    missing = [MetadataRequestTopic(name="new")]
    (refused,) = (await peer.call(MetadataRequest(topics=missing, allow_auto_topic_creation=False), 8)).topics
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (created,) = (await peer.call(MetadataRequest(topics=missing), 8)).topics
    assert (created.error_code, len(created.partitions)) == (0, 3)
    assert node.replicas.leader("new", 2).is_leader, "answered once this node leads it"


async def test_many_missing_topics_are_created_by_repeated_requests(nodes: Nodes) -> None:
    """Each request creates up to a thousand: those that exist already do not count."""
    peer = await nodes.peer(await nodes.start())
    asked = [MetadataRequestTopic(name=f"new-{number}") for number in range(CREATED_AT_ONCE + 20)]
    found = (await peer.call(MetadataRequest(topics=asked), 8)).topics
    assert [topic.error_code for topic in found].count(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == 20
    assert not any(topic.error_code for topic in (await peer.call(MetadataRequest(topics=asked), 8)).topics)


async def test_clients_together_create_no_more_topics_at_once(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each creation is a request to the controller."""
    peer = await nodes.peer(await nodes.start())
    monkeypatch.setattr(ControllerChannel, "waiting", CREATED_AT_ONCE - 3)
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=f"new-{number}") for number in range(5)])
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [topic.error_code for topic in (await peer.call(asked, 8)).topics] == [0, 0, 0, missing, missing]
    monkeypatch.setattr(ControllerChannel, "waiting", CREATED_AT_ONCE + 1)
    assert [topic.error_code for topic in (await peer.call(asked, 8)).topics] == [0, 0, 0, missing, missing]
    monkeypatch.undo()
    assert [topic.error_code for topic in (await peer.call(asked, 8)).topics] == [0] * 5


async def test_creation_can_be_off(nodes: Nodes) -> None:
    node = await nodes.start(auto_create_topics_enable="false")
    peer = await nodes.peer(node)
    (topic,) = (await peer.call(MetadataRequest(topics=[MetadataRequestTopic(name="new")]), 8)).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_authorized_operations_only_where_asked_for(peer: Peer) -> None:
    await peer.create("t")
    topics = [MetadataRequestTopic(name="t")]
    plain = await peer.call(MetadataRequest(topics=topics), 8)
    assert (plain.cluster_authorized_operations, plain.topics[0].topic_authorized_operations) == (-(2**31), -(2**31))
    asked = MetadataRequest(
        topics=topics, include_cluster_authorized_operations=True, include_topic_authorized_operations=True
    )
    told = await peer.call(asked, 8)
    assert (told.cluster_authorized_operations, told.topics[0].topic_authorized_operations) == (8096, 3576)


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster(peer: Peer, node: Node, version: int) -> None:
    answer = await peer.call(DescribeClusterRequest(), version)
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, node.cluster_id, 1)
    assert [broker.broker_id for broker in answer.brokers] == [1]
    if version >= 1:
        for endpoint_type, code in ((2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (7, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)):
            refused = await peer.call(DescribeClusterRequest(endpoint_type=endpoint_type), version)
            assert refused.error_code == code
            assert refused.error_message


async def test_topic_partitions_come_in_pages(peer: Peer) -> None:
    await peer.create("b", 3)
    await peer.create("a", 2)
    cursor = None
    pages = []
    while True:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name="b"), TopicRequest(name="a")], response_partition_limit=2, cursor=cursor
        )
        answer = await peer.call(request, 0)
        pages.append([(topic.name, [part.partition_index for part in topic.partitions]) for topic in answer.topics])
        cursor = answer.next_cursor
        if cursor is None:
            break
    assert pages == [[("a", [0, 1])], [("b", [0, 1])], [("b", [2])]]


async def test_described_topics_that_are_not_there(peer: Peer) -> None:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name="none"), TopicRequest(name="a b")], cursor=Cursor(topic_name="", partition_index=0)
    )
    answer = await peer.call(request, 0)
    assert {topic.name: topic.error_code for topic in answer.topics} == {
        "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


def several_brokers(node: Node) -> None:
    """Publishes an image with brokers 2 (alive), 3 (fenced), and topics whose replicas they hold."""
    own = node.image.brokers[1]
    second = own._replace(broker_id=2)
    third = own._replace(broker_id=3, fenced=True)
    directories = (node.directory_id,)
    led = PartitionImage(2, 5, 6, (3, 2), (2, 3), directories * 2, eligible_leader_replicas=(3,))
    lost = PartitionImage(-1, 1, 1, (3,), (), directories, (3,), (3,))
    topics = {
        name: TopicImage(name, bytes([at] * 16), (each,))
        for at, (name, each) in enumerate({"led": led, "lost": lost}.items(), 7)
    }
    image = dataclasses.replace(
        node.image,
        brokers={1: own, 2: second, 3: third},
        topics_by_name=topics,
        topics_by_id={topic.topic_id: topic for topic in topics.values()},
    )
    changed = {topic.topic_id: {0: None} for topic in topics.values()}
    node.current_image.publish(
        image, MetadataDelta(created=dict.fromkeys(changed), partitions=changed, brokers={2: None, 3: None})
    )


@pytest.mark.parametrize("version", [1, 5, 13])
async def test_fenced_brokers_are_offline(peer: Peer, node: Node, version: int) -> None:
    several_brokers(node)
    answer = await peer.call(
        MetadataRequest(topics=[MetadataRequestTopic(name="led"), MetadataRequestTopic(name="lost")]), version
    )
    assert [broker.node_id for broker in answer.brokers] == [1, 2]
    (led,), (lost,) = (topic.partitions for topic in answer.topics)
    assert (led.error_code, led.leader_id, led.replica_nodes, led.isr_nodes) == (0, 2, [3, 2], [2, 3])
    assert (lost.error_code, lost.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    if version >= 5:
        assert led.offline_replicas == lost.offline_replicas == [3]


async def test_a_broker_that_has_just_gone_leads_nothing_and_is_listed_for_a_while(
    peer: Peer, node: Node, nodes: Nodes
) -> None:
    gone = await nodes.start(node_id="2")
    address = gone.image.brokers[2].end_points
    several_brokers(node)
    brokers = {**node.image.brokers, 2: node.image.brokers[2]._replace(end_points=address)}
    node.current_image.publish(dataclasses.replace(node.image, brokers=brokers), MetadataDelta(brokers={2: None}))
    request = MetadataRequest(topics=[MetadataRequestTopic(name="led")])
    await node.peers.to(address[0].host, address[0].port, "fetch").request(request, timeout_ms=5_000)
    assert (await peer.call(request, 13)).topics[0].partitions[0].leader_id == 2
    for connection in list(gone.server.connections):
        connection.close("it was killed")
    await until(lambda: node.peers.missing(address[0].host, address[0].port))
    answer = await peer.call(request, 13)
    (led,) = answer.topics[0].partitions
    assert (led.error_code, led.leader_id, led.leader_epoch) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, 5)
    assert [broker.node_id for broker in answer.brokers] == [1, 2]


async def test_version_0_names_only_live_replicas(peer: Peer, node: Node) -> None:
    several_brokers(node)
    answer = await peer.call(
        MetadataRequest(topics=[MetadataRequestTopic(name="led"), MetadataRequestTopic(name="lost")]), 0
    )
    (led,), (lost,) = (topic.partitions for topic in answer.topics)
    assert (led.error_code, led.leader_id) == (ErrorCode.REPLICA_NOT_AVAILABLE, 2)
    assert (led.replica_nodes, led.isr_nodes) == ([2], [2])
    assert (lost.error_code, lost.replica_nodes) == (ErrorCode.LEADER_NOT_AVAILABLE, [])


async def test_described_partitions_of_several_brokers(peer: Peer, node: Node) -> None:
    several_brokers(node)
    answer = await peer.call(
        DescribeTopicPartitionsRequest(topics=[TopicRequest(name="led"), TopicRequest(name="lost")]), 0
    )
    (led,), (lost,) = (topic.partitions for topic in answer.topics)
    assert (led.leader_id, led.eligible_leader_replicas, led.last_known_elr, led.offline_replicas) == (2, [3], [], [3])
    assert (lost.error_code, lost.leader_id) == (0, -1), "as Kafka: the leader says it all"
    assert (lost.eligible_leader_replicas, lost.last_known_elr) == ([3], [3])


async def test_fenced_brokers_where_they_are_asked_for(peer: Peer, node: Node) -> None:
    several_brokers(node)
    answer = await peer.call(DescribeClusterRequest(), 2)
    assert [(broker.broker_id, broker.is_fenced) for broker in answer.brokers] == [(1, False), (2, False)]
    answer = await peer.call(DescribeClusterRequest(include_fenced_brokers=True), 2)
    assert [(broker.broker_id, broker.is_fenced) for broker in answer.brokers] == [(1, False), (2, False), (3, True)]
    assert answer.controller_id in (1, 2)
