"""AlterConfigs over the wire, and the order of answers of both ways to change configurations."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.handlers import configs
from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsRequestConfig,
    AlterConfigsRequestResource,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.support.broker.nodes import Peer

TOPIC, BROKER, GROUP = 2, 4, 32


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


def describe(kind: int, names: list[str], **fields: Any) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None) for name in names
        ],
        **fields,
    )


async def test_topics_with_the_same_settings_are_described_alike_and_others_by_their_own(peer: Peer) -> None:
    await peer.create("a", retention_ms="1000")
    await peer.create("b")
    await peer.create("c", retention_ms="1000")
    await peer.create("d", retention_ms="2000")
    results = (await peer.call(describe(TOPIC, ["a", "b", "c", "d"], include_synonyms=True), 4)).results
    retention = {
        result.resource_name: [
            (entry.value, entry.config_source) for entry in result.configs if entry.name == "retention.ms"
        ]
        for result in results
    }
    assert retention == {"a": [("1000", 1)], "b": [("604800000", 5)], "c": [("1000", 1)], "d": [("2000", 1)]}
    (one,) = (await peer.call(describe(TOPIC, ["c"], include_synonyms=True), 4)).results
    assert one.configs == results[2].configs


async def test_the_length_of_a_description_is_bounded(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"g{n}" for n in range(20)]
    monkeypatch.setattr(configs, "DESCRIBED_BYTES_MAX", 5_000)
    results = (await peer.call(describe(GROUP, names, include_documentation=True), 4)).results
    codes = [result.error_code for result in results]
    assert codes[0] == 0
    assert codes[-1] == ErrorCode.INVALID_REQUEST
    assert results[-1].error_message == "The answer is too long: describe fewer resources at once."
    assert [result.resource_name for result in results] == names
