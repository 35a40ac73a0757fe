"""The broker's series after known workloads, on one node."""

from __future__ import annotations

import dataclasses
from struct import pack

import pytest

from barnabas.broker.image.image import NO_LEADER
from barnabas.broker.metrics.request_meters import MeasuredRoute
from barnabas.broker.node.node import Node
from barnabas.protocol.messages.admin import DeleteTopicsRequest
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.metadata import ApiVersionsRequest
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.registry import API_VERSIONS_KEY
from tests.support.broker.nodes import Nodes, Peer, batch
from tests.support.broker.scrapes import scrape
from tests.support.waiting import until

TOPIC = "kafka_server_brokertopicmetrics_"


@pytest.fixture
async def node(nodes: Nodes) -> Node:
    """A node with metrics."""
    return await nodes.start(metrics_listen="127.0.0.1:0")


def produce(topic: str, *records: bytes, acks: int = -1) -> ProduceRequest:
    data = [PartitionProduceData(index=number, records=one) for number, one in enumerate(records)]
    return ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=[TopicProduceData(name=topic, partition_data=data)])


def fetch(topic: str, offset: int = 0) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1_000_000)
    return FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[part])])


async def test_what_is_written_and_read(node: Node, peer: Peer) -> None:
    await peer.create("orders", 2)
    records = batch(b"tea", b"coffee", b"milk")
    for _ in range(5):
        answer = await peer.call(produce("orders", records, records), 9)
        assert [one.error_code for one in answer.responses[0].partition_responses] == [0, 0]
    read = await peer.call(fetch("orders"), 12)
    size = len(records)
    assert len(read.responses[0].partitions[0].records) == 5 * size

    found = await scrape(node)
    expected = {
        "messagesin": 30,
        "bytesin": 10 * size,
        "bytesout": 5 * size,
        "bytesrejected": 0,
        "totalproducerequests": 10,
        "failedproducerequests": 0,
        "totalfetchrequests": 1,
        "failedfetchrequests": 0,
    }
    for name, value in expected.items():
        assert found.value(f"{TOPIC}{name}_total", topic="orders") == value, name
        assert found.value(f"{TOPIC}{name}_total") == value, name
    for partition in "01":
        labels = {"topic": "orders", "partition": partition}
        assert found.value("kafka_log_log_size", **labels) == 5 * size
        assert found.value("kafka_log_log_logendoffset", **labels) == 15
        assert found.value("kafka_log_log_numlogsegments", **labels) == 1
        assert found.value("kafka_cluster_partition_replicascount", **labels) == 1
        assert found.value("kafka_cluster_partition_atminisr", **labels) == 1
        assert found.value("kafka_cluster_partition_underminisr", **labels) == 0
    assert found.value("kafka_server_replicamanager_leadercount") == 2
    assert found.value("kafka_network_requestmetrics_requests_total", request="Produce", version="9") == 5
    assert found.value("kafka_network_requestmetrics_totaltimems_count", request="Produce") == 5
    assert found.value("kafka_network_requestmetrics_totaltimems_count", request="FetchConsumer") == 1
    assert 0 < found.value("kafka_network_requestmetrics_totaltimems", request="Produce", quantile="0.999") < 60_000
    assert (
        found.value("kafka_server_socket_server_metrics_connection_count", listener="PLAINTEXT", networkProcessor="0")
        == 1
    )


async def test_a_repeated_batch_counts_once(node: Node, peer: Peer) -> None:
    await peer.create("orders")
    records = batch(b"tea", producer_id=7, producer_epoch=0, base_sequence=0)
    for _ in range(3):
        answer = await peer.call(produce("orders", records), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
    found = await scrape(node)
    assert found.value(f"{TOPIC}messagesin_total", topic="orders") == 1
    assert found.value(f"{TOPIC}bytesin_total", topic="orders") == len(records)
    assert found.value(f"{TOPIC}totalproducerequests_total", topic="orders") == 3


async def test_refused_batches(node: Node, peer: Peer) -> None:
    """An old producer epoch is a failure, a batch that is too large is not, as in Kafka."""
    await peer.create("orders", max_message_bytes="200")
    large = batch(bytes(300))
    await peer.call(produce("orders", large), 9)
    assert await peer.call(produce("orders", batch(b"", producer_id=7, producer_epoch=1, base_sequence=0)), 9)
    await peer.call(produce("orders", batch(b"", producer_id=7, producer_epoch=0, base_sequence=1)), 9)
    await peer.call(produce("unknown", batch(b"")), 9)
    await peer.call(fetch("orders", 99), 12)
    found = await scrape(node)
    assert found.value(f"{TOPIC}bytesrejected_total", topic="orders") == len(large)
    assert found.value(f"{TOPIC}totalproducerequests_total", topic="orders") == 3
    assert found.value(f"{TOPIC}failedproducerequests_total", topic="orders") == 1
    assert found.value(f"{TOPIC}totalfetchrequests_total", topic="orders") == 1
    assert found.value(f"{TOPIC}failedfetchrequests_total", topic="orders") == 0
    assert "unknown" not in found.labels(f"{TOPIC}bytesin_total", "topic")


async def test_a_deleted_topic_disappears_and_the_sums_do_not(node: Node, peer: Peer) -> None:
    for name in ("orders", "bills"):
        await peer.create(name, 3)
        await peer.call(produce(name, batch(b"tea")), 9)
    before = await scrape(node)
    await peer.call(DeleteTopicsRequest(topic_names=["orders"], timeout_ms=5_000), 5)
    await until(lambda: not node.replicas.get("orders", 0))
    found = await scrape(node)
    for name in ("kafka_log_log_size", "kafka_cluster_partition_replicascount", f"{TOPIC}bytesin_total"):
        assert before.labels(name, "topic") - {""} == {"orders", "bills"}
        assert found.labels(name, "topic") - {""} == {"bills"}
    assert found.value(f"{TOPIC}messagesin_total") == before.value(f"{TOPIC}messagesin_total") == 2
    assert found.value("kafka_server_replicamanager_partitioncount") == 3
    assert found.value("kafka_controller_kafkacontroller_globalpartitioncount") == 3

    await peer.create("orders")
    again = await scrape(node)
    assert again.value("kafka_log_log_size", topic="orders", partition="0") == 0
    assert again.value(f"{TOPIC}messagesin_total", topic="orders") == 0


async def test_client_ids_and_errors_make_no_unbounded_labels(node: Node, nodes: Nodes) -> None:
    """No label has a value that a client chooses, except names of existing topics."""
    first = await scrape(node)
    peer = await nodes.peer(node)
    for number in range(50):
        peer.client_id = f'client-{number}"\\\n'
        await peer.call(fetch(f"unknown-{number}"), 12)
    after = await scrape(node)
    added = after.names - first.names
    assert added <= {"kafka_network_requestmetrics_errors_total"}
    for name in after.names:
        for label in ("topic", "clientId", "client_id", "request", "error"):
            assert not any("-" in value and value[-1].isdigit() for value in after.labels(name, label)), name


async def test_the_time_of_a_malformed_request_is_not_that_of_the_next_one(node: Node, nodes: Nodes) -> None:
    peer = await nodes.peer(node)
    await peer.call(ApiVersionsRequest(), 0)
    route = node.router.routes[API_VERSIONS_KEY << 16]
    assert isinstance(route, MeasuredRoute)
    measured = sum(route.meter.total.counts)
    route.measured = 1  # every second one
    route.requests = 1
    frame = pack(">hhih", API_VERSIONS_KEY, 0, 1, -2)
    peer.writer.write(pack(">i", len(frame)) + frame)
    assert await peer.is_closed()
    assert route.began_ns
    await (await nodes.peer(node)).call(ApiVersionsRequest(), 0)
    assert route.requests == 3
    assert sum(route.meter.total.counts) == measured


async def test_a_partition_that_leads_before_its_image_is_published_is_there_once(node: Node, peer: Peer) -> None:
    """Replicas learn of an election earlier. Prometheus refuses all samples of a scrape if one is there twice."""
    await peer.create("t", 2)
    image = node.image
    topic = image.topics_by_name["t"]
    first, second = topic.partitions
    former = topic._replace(partitions=(first._replace(leader=NO_LEADER), second))
    node.current_image.image = dataclasses.replace(
        image, topics_by_name={"t": former}, topics_by_id={topic.topic_id: former}
    )
    leaders = [(await scrape(node)).value("kafka_topic_partition_leader", topic="t", partition=n) for n in "01"]
    assert leaders == [-1, 1]
    node.current_image.image = image
    leaders = [(await scrape(node)).value("kafka_topic_partition_leader", topic="t", partition=n) for n in "01"]
    assert leaders == [1, 1]
