"""One node of three can write no more. With one directory it ends and the others go on; with two, only what lies in the one moves."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from functools import partial

import pytest

from barnabas.protocol.messages.admin import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    DescribeLogDirsRequest,
)
from barnabas.protocol.records import decode_records, iter_batches
from tests.support.oracle.wire import Wire
from tests.support.processes.cluster import Cluster, Node, traceback_of
from tests.support.processes.kit_cluster import KitCluster

pytestmark = pytest.mark.process

TOPIC = "full"
FILE_BYTES_MAX = 128 * 1024
BATCH_BYTES = 10_000
MOVED_SECONDS_MAX = 60.0


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[KitCluster]:
    """Three nodes that may end by themselves. The parameter is the number of their log directories."""
    with KitCluster(log_dirs=getattr(request, "param", 1)) as cluster:
        for each in cluster.nodes:
            cluster.kafka.expect_end(each)
        yield cluster


def limit(node: Node, size_bytes: int) -> None:
    """From here on no file of its may grow beyond: the same end as a full disk, which needs no file system of its own to try."""
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


def create(cluster: Cluster, *leaders: int) -> None:
    """A partition each, led by these nodes and held by all three."""
    assignments = [
        CreatableReplicaAssignment(
            partition_index=number, broker_ids=[leader, *(each for each in (1, 2, 3) if each != leader)]
        )
        for number, leader in enumerate(leaders)
    ]
    topic = CreatableTopic(name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=assignments)
    answer = cluster.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
    assert answer.topics[0].error_code == 0, answer
    cluster.wait_in_sync(TOPIC)


def fill(cluster: Cluster, leader: int, partition: int) -> list[bytes]:
    """Produces with acks=all to the leader until it refuses; what it acknowledged, in order."""
    acknowledged: list[bytes] = []
    with Wire(cluster.nodes[leader].address) as wire:
        for number in range(100):
            value = number.to_bytes(4, "big") * (BATCH_BYTES // 4)
            try:
                if wire.produce(9, TOPIC, partition, [value]).error_code:
                    return acknowledged
            except ConnectionError:
                return acknowledged
            acknowledged.append(value)
    raise AssertionError("its disk has no end")


def await_leader(cluster: Cluster, partition: int, other_than: int) -> int:
    return cluster.wait_for(
        lambda: cluster.leader(TOPIC, partition),
        lambda leader: leader not in (-1, other_than),
        "another one leads",
        MOVED_SECONDS_MAX,
    )


def read(cluster: Cluster, partition: int) -> list[bytes]:
    found: list[bytes] = []
    with Wire(cluster.nodes[cluster.leader(TOPIC, partition)].address) as wire:
        while True:
            answer = wire.fetch(TOPIC, partition, len(found))
            for position, _ in iter_batches(answer.records or b""):
                found += [record.value or b"" for record in decode_records(answer.records, position)]
            if len(found) >= answer.high_watermark:
                return found


def ended(cluster: Cluster, node: Node) -> None:
    """By itself, naming directory and error, without a traceback."""
    cluster.wait_until(lambda: not node.alive, "it has ended")
    assert f"[Errno 27] File too large: '{node.data}'" in node.log()
    assert "Traceback" not in node.log(), traceback_of(node.log())


def test_a_node_whose_disk_is_full_ends_and_the_others_go_on(cluster: Cluster) -> None:
    controller = cluster.wait_for(cluster.controller, lambda leader: leader > 0, "there is a controller")
    create(cluster, controller)
    node = cluster.nodes[controller]
    limit(node, FILE_BYTES_MAX)
    acknowledged = fill(cluster, controller, 0)
    assert len(acknowledged) > 5
    ended(cluster, node)
    leader = await_leader(cluster, 0, controller)
    assert cluster.wait_for(cluster.controller, lambda who: who not in (-1, controller), "another controls") > 0
    with Wire(cluster.nodes[leader].address) as wire:
        assert wire.produce(9, TOPIC, 0, [b"goes on"]).error_code == 0
    found = read(cluster, 0)
    assert found[: len(acknowledged)] == acknowledged
    assert found[-1] == b"goes on"
    cluster.start_node(controller)  # as if there were room again
    cluster.wait_in_sync(TOPIC)


def is_created(cluster: Cluster, topic: CreatableTopic) -> bool:
    """Creates the topic, or finds that it exists."""
    answer = cluster.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5)
    return answer.topics[0].error_code in (0, 36)


def test_a_controller_that_cannot_write_its_log_ends(cluster: Cluster) -> None:
    controller = cluster.wait_for(cluster.controller, lambda leader: leader > 0, "there is a controller")
    node = cluster.nodes[controller]
    log_bytes = max(path.stat().st_size for path in node.data.glob("__cluster_metadata-0/*.log"))
    limit(node, max(log_bytes, len(node.log())) + 2_000)  # what it says on stderr is a file, too
    for number in range(30):
        topic = CreatableTopic(name=f"topic-{number}", num_partitions=1, replication_factor=3)
        cluster.wait_until(
            partial(is_created, cluster, topic),
            f"{topic.name} is created",
            60,
        )
    ended(cluster, node)
    cluster.wait_until(lambda: cluster.controller() not in (-1, controller), "another one controls")
    cluster.start_node(controller)
    cluster.wait_in_sync(*(f"topic-{number}" for number in range(30)))


@pytest.mark.parametrize("cluster", [2], indirect=True, ids=["two directories"])
def test_of_several_directories_one_fails(cluster: KitCluster) -> None:
    create(cluster, 2, 2, 2, 2)
    node = cluster.nodes[2]
    first, more = cluster.kafka.broker(2).directories
    there = cluster.wait_for(
        lambda: sorted(int(path.name.rpartition("-")[2]) for path in more.glob(f"{TOPIC}-*")),
        lambda found: len(found) == 2,
        "two of four partitions lie there",
    )
    elsewhere = next(number for number in range(4) if number not in there)
    limit(node, FILE_BYTES_MAX)
    acknowledged = fill(cluster, 2, there[0])
    assert len(acknowledged) > 5
    for number in there:
        assert await_leader(cluster, number, 2) in (1, 3)
    assert cluster.leader(TOPIC, elsewhere) == 2
    assert node.alive
    assert f"[Errno 27] File too large: '{more}'" in node.log()
    with Wire(node.address) as wire:
        assert wire.produce(9, TOPIC, elsewhere, [b"goes on"]).error_code == 0
        failed = {each.log_dir: each.error_code for each in wire.call(DescribeLogDirsRequest(topics=None), 4).results}
        assert failed == {str(first): 0, str(more): 56}  # KAFKA_STORAGE_ERROR
    assert read(cluster, there[0])[: len(acknowledged)] == acknowledged
    cluster.stop(2)
    cluster.start_node(2)
    cluster.wait_in_sync(TOPIC)
