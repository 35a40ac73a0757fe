"""The listener for controllers beside Kafka's: what it answers to those who are wrong, and to Kafka's tools."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

import pytest

from barnabas.protocol.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsRequestResource,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    ElectLeadersRequest,
    FeatureUpdateKey,
    UpdateFeaturesRequest,
)
from barnabas.protocol.messages.cluster import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    RegistrationFeature,
    RegistrationListener,
    UnregisterBrokerRequest,
)
from barnabas.protocol.messages.metadata import ApiVersionsRequest, DescribeClusterRequest
from barnabas.protocol.messages.quorum import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochRequestPartition,
    BeginQuorumEpochRequestTopic,
    DescribeQuorumRequest,
    DescribeQuorumRequestTopic,
    EndQuorumEpochRequest,
    EndQuorumEpochRequestPartition,
    EndQuorumEpochRequestTopic,
    FetchSnapshotRequest,
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
)
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.protocol.messages.shared import PartitionIndex, TopicPartitionIndexes, TopicPartitions
from tests.support.oracle.tools import tool
from tests.support.oracle.wire import Wire
from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker

pytestmark = pytest.mark.oracle

METADATA = "__cluster_metadata"
CLUSTER = "the cluster's own id"  # stands for it in requests
NO_TOPIC = bytes(15) + b"\7"
FEATURES = [RegistrationFeature(name="metadata.version", min_supported_version=7, max_supported_version=30)]


def vote(cluster_id: str | None, topic: str = METADATA) -> VoteRequest:
    partition = VoteRequestPartition(replica_id=1, replica_epoch=0)
    return VoteRequest(
        cluster_id=cluster_id, voter_id=1, topics=[VoteRequestTopic(topic_name=topic, partitions=[partition])]
    )


def begin_epoch(cluster_id: str | None, *, topics: bool = True) -> BeginQuorumEpochRequest:
    topic = BeginQuorumEpochRequestTopic(
        topic_name=METADATA, partitions=[BeginQuorumEpochRequestPartition(leader_id=2, leader_epoch=0)]
    )
    return BeginQuorumEpochRequest(cluster_id=cluster_id, voter_id=1, topics=[topic] if topics else [])


def end_epoch(cluster_id: str | None, *, topics: bool = True) -> EndQuorumEpochRequest:
    topic = EndQuorumEpochRequestTopic(
        topic_name=METADATA, partitions=[EndQuorumEpochRequestPartition(leader_id=2, leader_epoch=0)]
    )
    return EndQuorumEpochRequest(cluster_id=cluster_id, topics=[topic] if topics else [])


def registration(**fields: Any) -> BrokerRegistrationRequest:
    known: dict[str, Any] = {"broker_id": 5, "cluster_id": CLUSTER, "incarnation_id": bytes(15) + b"\5"}
    return BrokerRegistrationRequest(**known | fields)


def features(*updates: tuple[str, int, int], validate_only: bool = True) -> UpdateFeaturesRequest:
    """(name, level, upgrade type)."""
    return UpdateFeaturesRequest(
        validate_only=validate_only,
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind) for name, level, kind in updates
        ],
    )


def quorum_of(topic: str, *partitions: int) -> DescribeQuorumRequest:
    asked = [PartitionIndex(partition_index=number) for number in partitions]
    return DescribeQuorumRequest(topics=[DescribeQuorumRequestTopic(topic_name=topic, partitions=asked)])


def moves(
    topic: str, partition: int, replicas: list[int] | None, timeout_ms: int = 60_000
) -> AlterPartitionReassignmentsRequest:
    moved = ReassignablePartition(partition_index=partition, replicas=replicas)
    topics = [ReassignableTopic(name=topic, partitions=[moved])]
    return AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=timeout_ms)


def assigned(*assignments: tuple[int, list[int]]) -> CreateTopicsRequest:
    """(partition, brokers)."""
    named = [CreatableReplicaAssignment(partition_index=number, broker_ids=ids) for number, ids in assignments]
    topic = CreatableTopic(name="assigned", num_partitions=-1, replication_factor=-1, assignments=named)
    return CreateTopicsRequest(topics=[topic], validate_only=True)


def widened(*assignments: list[int]) -> CreatePartitionsRequest:
    named = [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    topic = CreatePartitionsTopic(name=WIDENED, count=1 + len(named), assignments=named)
    return CreatePartitionsRequest(topics=[topic], validate_only=True)


WIDENED = "widened"
SECOND = 6  # id of a second broker, which is registered and never comes
ALTERED = [AlterPartitionRequestTopic(topic_id=NO_TOPIC, partitions=[AlterPartitionRequestPartition()])]
ELECTIONS = [TopicPartitions(topic="none", partitions=[0])]
ILLEGAL = [CreatableTopic(name="a b", num_partitions=1, replication_factor=1)]
ONE = [CreatableTopic(name="one", num_partitions=1, replication_factor=1)]
GROWN = [CreatePartitionsTopic(name="none", count=2)]
TOO_MANY = [CreatableTopic(name="many", num_partitions=1, replication_factor=5)]
NO_RESOURCE = [AlterConfigsRequestResource(resource_type=2, resource_name="none")]

CASES: list[tuple[Any, tuple[int, ...]]] = [
    (DescribeClusterRequest(endpoint_type=2, include_cluster_authorized_operations=True), (1, 2)),
    (DescribeClusterRequest(endpoint_type=1), (0, 1, 2)),
    (DescribeClusterRequest(endpoint_type=9), (1,)),
    *((request("wrong"), (0, 1)) for request in (vote, begin_epoch, end_epoch)),
    *((request(CLUSTER), (0, 1)) for request in (begin_epoch, end_epoch)),
    *((request(None), (0, 1)) for request in (begin_epoch, end_epoch)),
    *((request(CLUSTER, topics=False), (0, 1)) for request in (begin_epoch, end_epoch)),
    (vote("wrong"), (2,)),
    (vote(CLUSTER, "t"), (0, 1, 2)),
    (VoteRequest(cluster_id=CLUSTER), (0, 1, 2)),
    (FetchSnapshotRequest(cluster_id="wrong"), (0, 1)),
    (BrokerHeartbeatRequest(broker_id=99), (0, 1, 2)),
    (BrokerHeartbeatRequest(broker_id=1, broker_epoch=99_999), (0, 1, 2)),
    (registration(cluster_id="wrong"), (4,)),
    (registration(), (1, 2, 3, 4)),
    (registration(log_dirs=[bytes(16)], features=FEATURES), (4,)),
    (registration(log_dirs=[b"\1" * 16, b"\1" * 16], features=FEATURES), (4,)),
    (UnregisterBrokerRequest(broker_id=99), (0,)),
    (AllocateProducerIdsRequest(broker_id=99, broker_epoch=3), (0,)),
    (AllocateProducerIdsRequest(broker_id=1, broker_epoch=99_999), (0,)),
    (AlterPartitionRequest(broker_id=1, broker_epoch=99_999, topics=ALTERED), (2, 3)),
    (AlterPartitionRequest(broker_id=99, broker_epoch=77, topics=ALTERED), (2, 3)),
    (AssignReplicasToDirsRequest(broker_id=99, broker_epoch=77), (0,)),
    (ElectLeadersRequest(topic_partitions=ELECTIONS, timeout_ms=1_000), (0, 1, 2)),
    (ElectLeadersRequest(topic_partitions=None, timeout_ms=1_000), (0, 1, 2)),
    (CreateTopicsRequest(topics=ILLEGAL, validate_only=True), (5, 7)),
    (CreateTopicsRequest(topics=TOO_MANY, validate_only=True), (5, 7)),
    (AlterConfigsRequest(resources=NO_RESOURCE), (0, 1, 2)),
    (AlterConfigsRequest(resources=[AlterConfigsRequestResource(resource_type=77, resource_name="x")]), (0, 2)),
    (features(), (0, 1, 2)),
    (features(("transaction.version", 9, 1)), (1, 2)),
    (features(("transaction.version", 1, 1)), (1, 2)),
    (features(("transaction.version", 1, 7)), (1, 2)),
    (features(("transaction.version", 2, 2)), (1, 2)),
    (features(("transaction.version", -1, 2)), (1, 2)),
    (features(("no.such.feature", 1, 1)), (1, 2)),
    (features(("no.such.feature", 0, 2)), (1, 2)),
    (features(("metadata.version", 29, 2)), (1, 2)),
    (features(("metadata.version", 29, 1)), (1, 2)),
    (features(("metadata.version", 29, 3)), (1, 2)),
    (features(("eligible.leader.replicas.version", 0, 1)), (1, 2)),
    (features(("metadata.version", 3, 3)), (1, 2)),
    (features(("metadata.version", 99, 1)), (1, 2)),
    (features(("transaction.version", 1, 2), ("no.such.feature", 1, 1)), (1, 2)),
    (quorum_of("t", 0), (0, 1, 2)),
    (quorum_of(METADATA, 1), (0, 1, 2)),
    (quorum_of(METADATA), (0, 1, 2)),
    (DescribeQuorumRequest(topics=[]), (0, 1, 2)),
    (moves("none", 0, [1]), (0, 1)),
    (moves("none", 0, None), (0, 1)),
    (ListPartitionReassignmentsRequest(topics=None), (0,)),
    (
        ListPartitionReassignmentsRequest(topics=[TopicPartitionIndexes(name="none", partition_indexes=[0])]),
        (0,),
    ),
    (
        DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=4, resource_name="9")]),
        (1, 4),
    ),
    *(
        case
        for timeout_ms in (0, -1)
        for case in (
            (CreateTopicsRequest(topics=ONE, validate_only=True, timeout_ms=timeout_ms), (5, 7)),
            (DeleteTopicsRequest(topics=[DeleteTopicState(name="none")], timeout_ms=timeout_ms), (6,)),
            (CreatePartitionsRequest(topics=GROWN, timeout_ms=timeout_ms), (3,)),
            (ElectLeadersRequest(topic_partitions=ELECTIONS, timeout_ms=timeout_ms), (0, 2)),
            (moves("none", 0, [1], timeout_ms=timeout_ms), (0,)),
            (UpdateFeaturesRequest(validate_only=True, timeout_ms=timeout_ms), (1,)),
            (ListPartitionReassignmentsRequest(topics=None, timeout_ms=timeout_ms), (0,)),
        )
    ),
]


@pytest.fixture(scope="module")
def sides(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses of both listeners."""
    host, port = kafka.rsplit(":", 1)
    own = f"127.0.0.1:{free_ports(1)[0]}"
    settings = (f"listeners=CONTROLLER://{own}", f"controller.quorum.voters=1@{own}")
    node = ServedBroker(tmp_path_factory.mktemp("controller") / "data", *settings).start()
    try:
        yield f"{host}:{int(port) + 1}", own
        assert node.stop() == 0, node.log()
    finally:
        node.kill()
    assert "Traceback" not in node.log(), node.log()


def said(address: str, request: Any, version: int) -> str:
    """The answer, with what must differ replaced."""
    with Wire(address) as wire:
        cluster_id = wire.call(DescribeClusterRequest(endpoint_type=2), 1).cluster_id
        if getattr(request, "cluster_id", None) == CLUSTER:
            request = copy(request)
            request.cluster_id = cluster_id
        answer = wire.call(request, version)
        # Others' topics on that Kafka.
        if isinstance(request, ElectLeadersRequest) and request.topic_partitions is None:
            answer.replica_election_results = [one for one in answer.replica_election_results if one.partition_result]
    return repr(answer).replace(cluster_id, CLUSTER).replace(address.rsplit(":", 1)[1], "PORT")


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        pytest.param(request, version, id=f"{number}-{type(request).__name__}-{version}")
        for number, (request, versions) in enumerate(CASES)
        for version in versions
    ],
)
def test_answers_are_kafka_s(sides: tuple[str, str], request_: Any, version: int) -> None:
    kafka, own = sides
    assert said(own, request_, version) == said(kafka, request_, version)


@pytest.fixture(scope="module")
def sides_of_two_brokers(sides: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Both with a second broker, and a topic of one replica."""
    for address in sides:
        with Wire(address) as wire:
            cluster_id = wire.call(DescribeClusterRequest(endpoint_type=2), 1).cluster_id
            answer = wire.call(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4)
            second = registration(
                broker_id=SECOND,
                cluster_id=cluster_id,
                log_dirs=[b"\6" * 16],
                listeners=[RegistrationListener(name="PLAINTEXT", host="127.0.0.1", port=1)],
                features=[
                    RegistrationFeature(name=one.name, max_supported_version=one.max_version_level)
                    for one in answer.finalized_features
                ],
            )
            assert wire.call(second, 4).error_code == 0
            topic = CreatableTopic(name=WIDENED, num_partitions=1, replication_factor=1)
            assert wire.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7).topics[0].error_code == 0
    yield sides
    for address in sides:
        with Wire(address) as wire:
            assert wire.call(UnregisterBrokerRequest(broker_id=SECOND), 0).error_code == 0


@pytest.mark.parametrize(
    "assignments",
    [
        [(0, [1]), (1, [1, SECOND])],
        [(1, [1]), (0, [1, SECOND])],
        [(0, [1, SECOND]), (2, [1])],
        [(0, [1]), (1, [SECOND])],
        [(0, [1]), (1, [9, SECOND])],
        [(0, [1]), (1, [1, 1])],
        [(0, [7, 7])],
        [(0, [8, 1, 1, 7])],
        [(0, [1]), (0, [1, SECOND])],
        [(0, [1]), (5, [9])],
        [(1, [1]), (3, [1])],
    ],
)
def test_assignments_are_refused_as_by_kafka(
    sides_of_two_brokers: tuple[str, str], assignments: list[tuple[int, list[int]]]
) -> None:
    kafka, own = sides_of_two_brokers
    request = assigned(*assignments)
    assert said(own, request, 7) == said(kafka, request, 7)
    assert "error_code=39" in said(own, request, 7)


@pytest.mark.parametrize(
    "assignments",
    [[[1]], [[1, SECOND]], [[1], [1, SECOND]], [[1, SECOND], [1, SECOND]], [[1, 9]], [[SECOND]]],
)
def test_assignments_of_more_partitions_are_refused_as_by_kafka(
    sides_of_two_brokers: tuple[str, str], assignments: list[list[int]]
) -> None:
    kafka, own = sides_of_two_brokers
    request = widened(*assignments)
    assert said(own, request, 3) == said(kafka, request, 3)


def test_all_that_we_serve_there_kafka_serves(sides: tuple[str, str]) -> None:
    served = []
    for address in sides:
        with Wire(address) as wire:
            answer = wire.call(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4)
        served.append({one.api_key: (one.min_version, one.max_version) for one in answer.api_keys})
    kafka, own = served
    assert own.items() <= kafka.items()


def test_kafka_s_tools_find_their_way(sides: tuple[str, str]) -> None:
    _, own = sides
    option = ("--bootstrap-controller", own)
    status = tool("MetadataQuorumCommand", *option, "describe", "--status")
    assert "LeaderId:               1" in status
    assert f"CONTROLLER://{own}" in status
    assert "Leader" in tool("MetadataQuorumCommand", *option, "describe", "--replication")
    endpoints = tool("ClusterTool", "list-endpoints", *option)
    assert own.replace(":", " ") in " ".join(endpoints.split())
    assert "transaction.version" in tool("FeatureCommand", *option, "describe")
