"""AlterConfigs over the wire, and the order of answers of both ways to change configurations."""

from __future__ import annotations

import pytest

from barnabas.broker.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsRequestConfig,
    AlterConfigsRequestResource,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.support.broker.nodes import Peer

TOPIC, BROKER = 2, 4


def replacement(kind: int, name: str, **settings: str | None) -> AlterConfigsRequestResource:
    configs = [AlterConfigsRequestConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()]
    return AlterConfigsRequestResource(resource_type=kind, resource_name=name, configs=configs)


@pytest.mark.parametrize("version", range(3))
async def test_what_is_not_named_is_gone(peer: Peer, node: Node, version: int) -> None:
    await peer.create("a", retention_ms="1000", segment_ms="7")
    request = AlterConfigsRequest(resources=[replacement(TOPIC, "a", retention_ms="1000", flush_ms="9")])
    (response,) = (await peer.call(request, version)).responses
    assert (response.resource_type, response.resource_name, response.error_code) == (TOPIC, "a", 0)
    assert node.image.topic_config("a") == {"retention.ms": "1000", "flush.ms": "9"}


async def test_a_trial_changes_nothing(peer: Peer, node: Node) -> None:
    await peer.create("a", retention_ms="1000")
    request = AlterConfigsRequest(resources=[replacement(TOPIC, "a")], validate_only=True)
    assert (await peer.call(request, 2)).responses[0].error_code == 0
    assert node.image.topic_config("a") == {"retention.ms": "1000"}


async def test_the_min_isr_of_the_cluster_cannot_be_left_out(peer: Peer, node: Node) -> None:
    request = AlterConfigsRequest(resources=[replacement(BROKER, "", log_cleaner_backoff_ms="13000")])
    (response,) = (await peer.call(request, 2)).responses
    assert (response.error_code, response.error_message) == (
        ErrorCode.INVALID_CONFIG,
        "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
    )
    assert node.image.cluster_config == {"min.insync.replicas": "1"}


async def test_answers_stand_in_the_order_of_the_request(peer: Peer, node: Node) -> None:
    await peer.create("a")
    names = [(TOPIC, "nope"), (BROKER, "9"), (TOPIC, "a"), (BROKER, "x"), (BROKER, "1")]
    codes = [3, 42, 0, 42, 0]
    request = AlterConfigsRequest(resources=[replacement(kind, name) for kind, name in names])
    answered = (await peer.call(request, 2)).responses
    assert [(each.resource_type, each.resource_name) for each in answered] == names
    assert [each.error_code for each in answered] == codes
    change = AlterableConfig(name="flush.ms", config_operation=1)
    incremental = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(resource_type=kind, resource_name=name, configs=[change] if kind == TOPIC else [])
            for kind, name in names
        ]
    )
    answered = (await peer.call(incremental, 1)).responses
    assert [(each.resource_type, each.resource_name) for each in answered] == names
    assert [each.error_code for each in answered] == codes
