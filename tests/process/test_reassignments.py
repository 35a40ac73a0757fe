"""Partitions that move to other brokers while they are written to, while brokers die, and back again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from barnabas.protocol.messages.admin import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.protocol.records import decode_records, iter_batches
from tests.support.oracle.wire import Wire
from tests.support.processes.cluster import Cluster, Node
from tests.support.processes.kit_cluster import KitCluster

pytestmark = pytest.mark.process

TOPIC = "moves"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with KitCluster("log.segment.delete.delay.ms=100") as cluster:
        yield cluster


class Writer(threading.Thread):
    """Produces numbers with acks=all, one after the other, to whoever leads; repeats what was not acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.acknowledged = 0
        self.ending = False

    def run(self) -> None:
        while not self.ending:
            try:
                leader = self.cluster.leader(TOPIC, 0)
                if leader < 0:
                    continue
                with Wire(self.cluster.nodes[leader].address, timeout_s=10) as wire:
                    while not self.ending:
                        value = str(self.acknowledged).encode().ljust(1_000)
                        if wire.produce(9, TOPIC, 0, [value]).error_code:
                            break
                        self.acknowledged += 1
            except OSError:
                pass  # it moved, or died
            time.sleep(0.02)

    def has_acknowledged(self, records: int) -> bool:
        return self.acknowledged >= records

    def stop(self) -> None:
        self.ending = True
        self.join(60)
        assert not self.is_alive()


def read(cluster: Cluster) -> list[int]:
    found: list[int] = []
    with Wire(cluster.nodes[cluster.leader(TOPIC, 0)].address) as wire:
        offset = 0
        while True:
            answer = wire.fetch(TOPIC, 0, offset)
            for position, _ in iter_batches(answer.records or b""):
                for record in decode_records(answer.records, position):
                    found.append(int(record.value or b""))
                    offset += 1
            if offset >= answer.high_watermark:
                return found


def move(cluster: Cluster, *target: int) -> None:
    """Begins it."""
    partition = ReassignablePartition(partition_index=0, replicas=list(target))
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=TOPIC, partitions=[partition])])
    answer = cluster.ask(request, 1)
    assert answer.error_code == 0, answer
    assert answer.responses[0].partitions[0].error_code == 0, answer


def await_place(cluster: Cluster, *target: int) -> None:
    """The move is over: the partition lies there, in sync, and its folders nowhere else."""

    def there() -> bool:
        (partition,) = cluster.partitions(TOPIC)
        return partition.replica_nodes == list(target) and sorted(partition.isr_nodes) == sorted(target)

    cluster.wait_until(there, f"the partition lies on {target}", 60)
    assert cluster.ask(ListPartitionReassignmentsRequest(topics=None), 0).topics == []
    for node in cluster.nodes.values():
        if node.alive:
            there_too = node.node_id in target
            cluster.wait_until(
                partial(has_folder, node, there_too),
                f"folder on node {node.node_id}: {there_too}",
                60,
            )


def has_folder(node: Node, there: bool) -> bool:
    """Whether the partition's folder on the node exists, or does not, as it should."""
    return any(node.data.glob(f"{TOPIC}-0*")) == there


def test_a_partition_moves_under_load(cluster: Cluster) -> None:
    assigned = [CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])]
    topic = CreatableTopic(name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=assigned)
    assert cluster.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5).topics[0].error_code == 0
    cluster.wait_in_sync(TOPIC)
    writer = Writer(cluster)
    writer.start()
    try:
        for target in ((2, 3), (1,), (3, 1, 2), (3, 2)):
            wanted = writer.acknowledged + 51
            cluster.wait_until(partial(writer.has_acknowledged, wanted), "it is written to")
            move(cluster, *target)
            await_place(cluster, *target)
        # The new replica dies in the middle of a move: the others go on, and it ends when the replica is back.
        cluster.kill(1)
        move(cluster, 1, 3)
        before = writer.acknowledged
        cluster.wait_until(lambda: writer.acknowledged > before + 50, "it is written to while a new replica is missing")
        assert cluster.ask(ListPartitionReassignmentsRequest(topics=None), 0).topics[0].partitions[
            0
        ].adding_replicas == [1]
        cluster.start_node(1)
        await_place(cluster, 1, 3)
    finally:
        writer.stop()
    found: list[int] = []

    def all_are_read() -> bool:
        """The high watermark of a new leader, or of a follower that answers, may lag behind what was acknowledged."""
        found[:] = read(cluster)
        return len(set(found)) >= writer.acknowledged

    cluster.wait_until(all_are_read, "all acknowledged records can be read")
    assert found == sorted(found)  # a number that was sent again stands beside itself
    assert list(dict.fromkeys(found))[: writer.acknowledged] == list(range(writer.acknowledged))
