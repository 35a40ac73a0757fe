"""Kafka's own tools against three of our nodes: what administrators of a cluster reach for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from barnabas.protocol.messages.admin import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from tests.support.oracle.real_kafka import needs_java
from tests.support.oracle.tools import tool
from tests.support.processes.cluster import Cluster, barnabas_nodes
from tests.support.processes.served import ServedBroker

pytestmark = pytest.mark.oracle

TOPIC = "administered"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, and a topic of two partitions, on 1 and 2, and on 2 and 3."""
    needs_java("no tools of Kafka")
    with Cluster(barnabas_nodes(tmp_path_factory.mktemp("cluster"))) as cluster:
        assignments = [
            CreatableReplicaAssignment(partition_index=number, broker_ids=ids)
            for number, ids in enumerate([[1, 2], [2, 3]])
        ]
        topic = CreatableTopic(name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=assignments)
        assert cluster.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5).topics[0].error_code == 0
        cluster.wait_in_sync(TOPIC)
        yield cluster


def controllers(cluster: Cluster) -> str:
    return ",".join(node.arguments[1] for node in cluster.nodes.values() if isinstance(node, ServedBroker))


def rows(said: str) -> list[list[str]]:
    return [line.split() for line in said.splitlines() if line.strip()]


def test_the_quorum_is_described(cluster: Cluster) -> None:
    of_controllers = ("MetadataQuorumCommand", "--bootstrap-controller", controllers(cluster))
    said = rows(tool(*of_controllers, "describe", "--replication"))
    leader = str(cluster.controller())
    assert {row[0]: row[-1] for row in said[1:]} == {
        each: "Leader" if each == leader else "Follower" for each in ("1", "2", "3")
    }
    assert {row[3] for row in said[1:]} == {"0"}, "nobody lags"


def test_a_broker_that_is_unregistered_alive_comes_back(cluster: Cluster) -> None:
    """Into the ISR of idle partitions, too."""
    said = tool("ClusterTool", "unregister", "--bootstrap-server", cluster.bootstrap, "--id", "3")
    assert "Broker 3 is no longer registered." in said
    cluster.wait_until(lambda: cluster.brokers() == [1, 2, 3], "it has registered anew")
    cluster.wait_in_sync(TOPIC)


def test_hanging_transactions_are_looked_for_on_followers_too(cluster: Cluster) -> None:
    said = tool("TransactionsCommand", "--bootstrap-server", cluster.bootstrap, "find-hanging", "--broker-id", "2")
    assert len(rows(said)) == 1, "a head without lines"


def test_features_that_are_not_served_are_not_there(cluster: Cluster) -> None:
    command = ("FeatureCommand", "--bootstrap-server", cluster.bootstrap)
    said = tool(*command, "describe")
    assert "Feature: transaction.version" in said
    assert "share.version" not in said
    refused = tool(*command, "upgrade", "--feature", "share.version=1", expected=1)
    assert "Local controller" in refused
    assert "only supports versions 0-0" in refused
