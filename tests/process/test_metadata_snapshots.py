"""A node that was away while its cluster's metadata went on beyond what the log still holds: it is given a snapshot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from barnabas.protocol.messages.admin import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from tests.support.oracle.wire import Wire
from tests.support.processes.cluster import Cluster, Node
from tests.support.processes.kit_cluster import KitCluster

pytestmark = pytest.mark.process

AWAY = 3
TOPICS = 30


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Snapshots all the time, and none kept but the last."""
    settings = ("metadata.log.max.record.bytes.between.snapshots=1000", "metadata.max.retention.bytes=2000")
    with KitCluster(*settings) as cluster:
        yield cluster


def snapshots(node: Node) -> list[str]:
    return sorted(path.name for path in node.data.glob("__cluster_metadata-0/*.checkpoint"))


def test_a_node_that_was_away_is_given_a_snapshot(cluster: Cluster) -> None:
    cluster.create_topic("kept", 3)
    cluster.create_topic("deleted", 3)
    away = cluster.nodes[AWAY]
    cluster.kill(AWAY)
    before = snapshots(away)
    assert cluster.ask(DeleteTopicsRequest(topic_names=["deleted"], timeout_ms=30_000), 5).responses[0].error_code == 0
    on_the_others = [
        CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])
    ]  # the third may not be fenced yet
    for number in range(TOPICS):
        topic = CreatableTopic(
            name=f"topic-{number}", num_partitions=-1, replication_factor=-1, assignments=on_the_others
        )
        assert cluster.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5).topics[0].error_code == 0
    leader = cluster.wait_for(lambda: cluster.leader("kept", 0), lambda led: led not in (-1, AWAY), "another one leads")
    with Wire(cluster.nodes[leader].address) as wire:
        assert wire.produce(9, "kept", 0, [b"while it was away"]).error_code == 0
    there = snapshots(away)
    assert there == before
    cluster.start_node(AWAY)
    cluster.wait_in_sync("kept")
    assert len(cluster.partitions(f"topic-{TOPICS - 1}")) == 1
    taken = snapshots(away)
    assert taken, "it has a snapshot"
    assert taken[0] > (before or [""])[-1], "older ones are gone"
    assert min(path.name for path in away.data.glob("__cluster_metadata-0/*.log")) > "0" * 19 + "1.log"
    cluster.wait_until(
        lambda: not any(path.name.endswith(("-0", "-1", "-2")) for path in away.data.glob("deleted-*")),
        "the deleted topic is set aside",
    )
    cluster.create_topic("after", 3)
    # It has all that it needs to decide: the others go, one after the other, and it may lead.
    for node_id in (1, 2):
        cluster.stop(node_id)
        cluster.wait_until(lambda: cluster.controller() > 0, "there is a controller")
        cluster.create_topic(f"without-{node_id}", 1, replication_factor=2)
        cluster.start_node(node_id)
        cluster.wait_in_sync("after")
