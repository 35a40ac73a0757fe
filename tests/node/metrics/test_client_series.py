"""Metrics that clients push: over the wire to a node, and at /metrics."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import Producer

from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import AlterableConfig, AlterConfigsResource, IncrementalAlterConfigsRequest
from barnabas.protocol.messages.metadata import ApiVersionsRequest
from barnabas.protocol.messages.telemetry import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from tests.support.broker.nodes import Nodes, Peer
from tests.support.broker.pushes import gauge_and_sum
from tests.support.broker.scrapes import scrape
from tests.support.waiting import until

CLIENT_METRICS = 16
TELEMETRY = {71, 72}
NO_ID = bytes(16)


@pytest.fixture
async def watched(nodes: Nodes) -> Node:
    """A node with metrics."""
    return await nodes.start(metrics_listen="127.0.0.1:0")


async def subscribe_clients(peer: Peer, **settings: str) -> None:
    configs = [AlterableConfig(name=name.replace("_", "."), value=value) for name, value in settings.items()]
    resource = AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name="all", configs=configs)
    (response,) = (await peer.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)).responses
    assert response.error_code == 0, response.error_message


async def test_a_node_without_metrics_does_not_offer_telemetry(nodes: Nodes) -> None:
    peer = await nodes.peer(await nodes.start())
    offered = {each.api_key for each in (await peer.call(ApiVersionsRequest(), 2)).api_keys}
    assert not offered & TELEMETRY
    for request in (GetTelemetrySubscriptionsRequest(client_instance_id=NO_ID), PushTelemetryRequest(metrics=b"")):
        assert (await peer.call(request, 0)).error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_a_push_is_shown_until_its_connection_ends(nodes: Nodes, watched: Node) -> None:
    peer = await nodes.peer(watched)
    await subscribe_clients(peer, metrics="org.apache.kafka.producer.", interval_ms="300000")
    software = ApiVersionsRequest(client_software_name="our-client", client_software_version="1.0")
    assert {each.api_key for each in (await peer.call(software, 3)).api_keys} >= TELEMETRY
    found = await peer.call(GetTelemetrySubscriptionsRequest(client_instance_id=NO_ID), 0)
    assert found.error_code == 0
    assert found.client_instance_id != NO_ID
    assert found.requested_metrics == ["org.apache.kafka.producer."]
    assert (found.push_interval_ms, found.telemetry_max_bytes, found.delta_temporality) == (300_000, 1_048_576, True)
    assert found.accepted_compression_types == [4, 3, 1, 2]

    request = PushTelemetryRequest(
        client_instance_id=found.client_instance_id,
        subscription_id=found.subscription_id,
        metrics=gauge_and_sum(7.5, 3, topic='a "quoted"\nname'),
    )
    assert (await peer.call(request, 0)).error_code == 0
    assert (await peer.call(request, 0)).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    shown = await scrape(watched)
    labels = {"client_id": "peer", "client_software_name": "our-client", "topic": 'a "quoted"\nname'}
    assert shown.total("kafka_client_producer_queue_size", **labels) == 7.5
    assert shown.total("kafka_client_producer_sent_total", **labels) == 3
    assert shown.families["kafka_client_producer_sent"] == "counter"
    assert shown.value("kafka_server_client_metrics_instance_count") == 1
    assert shown.value("kafka_server_client_metrics_plugin_export_total") == 1
    assert shown.value("kafka_server_client_metrics_throttle_total") == 1

    peer.writer.close()
    await peer.writer.wait_closed()
    telemetry = watched.telemetry
    assert telemetry is not None
    await until(lambda: not len(telemetry))
    assert "kafka_client_producer_queue_size" not in (await scrape(watched)).names


async def test_librdkafka_pushes_its_metrics(nodes: Nodes, watched: Node) -> None:
    await subscribe_clients(await nodes.peer(watched), metrics="*", interval_ms="100")
    ((_, endpoint),) = watched.listing.live(watched.config.inter_broker_listener)
    producer = Producer({"bootstrap.servers": f"{endpoint.host}:{endpoint.port}", "client.id": "orders"})
    producer.produce("orders", b"record")
    labels = {"client_id": "orders", "client_software_name": "confluent-kafka-python"}
    try:
        async with asyncio.timeout(60):
            while not (await scrape(watched)).total("kafka_client_producer_node_request_latency_avg", **labels):
                producer.poll(0)
    finally:
        await asyncio.to_thread(producer.flush, 10)


async def test_settings_that_were_there_before_a_start_are_followed(nodes: Nodes) -> None:
    first = await nodes.start()
    await subscribe_clients(await nodes.peer(first), metrics="a")
    await first.stop()
    node = await nodes.start(first.log_dirs.main.disk, metrics_listen="127.0.0.1:0")
    peer = await nodes.peer(node)
    assert (await peer.call(GetTelemetrySubscriptionsRequest(client_instance_id=NO_ID), 0)).requested_metrics == ["a"]
