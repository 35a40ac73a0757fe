"""Huge requests about configurations: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

from typing import Any, Final

from barnabas.protocol.messages import admin
from tests.support.processes.huge.request import ELEMENTS, LARGE_BYTES, WIDE, BrokerObjects, Huge, names

__all__ = ["CONFIGS", "incremental", "replacing"]

Resource = tuple[int, str, list[str]]  # type, name, keys
TOPIC: Final = 2
BROKER: Final = 4
GROUP: Final = 32
KEYS: Final = names(ELEMENTS - 1)


def incremental(resources: list[Resource], **fields: Any) -> admin.IncrementalAlterConfigsRequest:
    return admin.IncrementalAlterConfigsRequest(
        resources=[
            admin.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[admin.AlterableConfig(name=key, config_operation=0, value="1000") for key in keys],
            )
            for kind, name, keys in resources
        ],
        **fields,
    )


def replacing(resources: list[Resource], **fields: Any) -> admin.AlterConfigsRequest:
    return admin.AlterConfigsRequest(
        resources=[
            admin.AlterConfigsRequestResource(
                resource_type=kind,
                resource_name=name,
                configs=[admin.AlterConfigsRequestConfig(name=key, value="1000") for key in keys],
            )
            for kind, name, keys in resources
        ],
        **fields,
    )


def describe(
    resources: list[tuple[int, str]], keys: list[str] | None = None, **fields: Any
) -> admin.DescribeConfigsRequest:
    return admin.DescribeConfigsRequest(
        resources=[
            admin.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name in resources
        ],
        **fields,
    )


def topics(found: list[str], *keys: str) -> list[Resource]:
    """The same keys of each topic."""
    return [(TOPIC, name, list(keys)) for name in found]


def describe_many_topics(world: BrokerObjects) -> admin.DescribeConfigsRequest:
    return describe([(TOPIC, name) for name in names(world.topics, "made")], include_synonyms=True)


def describe_groups(_world: BrokerObjects) -> admin.DescribeConfigsRequest:
    """Groups that nobody knows: each has every key of a group."""
    return describe([(GROUP, name) for name in names(ELEMENTS)], include_synonyms=True, include_documentation=True)


def long_values(world: BrokerObjects) -> admin.IncrementalAlterConfigsRequest:
    """A list of 32 kB for each topic, as many as fit."""
    value = ",".join(f"{n}:1" for n in range(4_600))
    return admin.IncrementalAlterConfigsRequest(
        resources=[
            admin.AlterConfigsResource(
                resource_type=TOPIC,
                resource_name=name,
                configs=[
                    admin.AlterableConfig(
                        name="leader.replication.throttled.replicas", config_operation=operation, value=value
                    )
                ],
            )
            for operation in (0, 2)
            for name in names(min(world.topics, LARGE_BYTES // len(value)), "made")
        ][: LARGE_BYTES // len(value)],
        validate_only=True,
    )


def describe_this_broker_often(_world: BrokerObjects) -> admin.DescribeConfigsRequest:
    return describe([(BROKER, "1")] * ELEMENTS, include_synonyms=True, include_documentation=True)


CONFIGS: Final = (
    Huge("DescribeConfigs: unknown topics", 4, {3}, lambda w: describe([(TOPIC, name) for name in names(ELEMENTS)])),
    Huge("DescribeConfigs: many topics", 4, {0}, describe_many_topics),
    Huge("DescribeConfigs: this broker, often", 4, {0, 42}, describe_this_broker_often),
    Huge("DescribeConfigs: unknown groups", 4, {0, 42}, describe_groups),
    Huge("DescribeConfigs: many keys", 4, {0}, lambda w: describe([(TOPIC, WIDE)], KEYS)),
    Huge("AlterConfigs: unknown topics", 2, {3}, lambda w: replacing(topics(names(ELEMENTS)))),
    Huge(
        "AlterConfigs: many topics",
        2,
        {0},
        lambda w: replacing(topics(names(w.topics, "made"), "retention.ms"), validate_only=True),
    ),
    Huge("AlterConfigs: many keys", 2, {40}, lambda w: replacing(topics([WIDE], *KEYS))),
    Huge("IncrementalAlterConfigs: unknown topics", 1, {3}, lambda w: incremental(topics(names(ELEMENTS)))),
    Huge(
        "IncrementalAlterConfigs: many topics",
        1,
        {0},
        lambda w: incremental(topics(names(w.topics, "made"), "retention.ms")),
    ),
    Huge("IncrementalAlterConfigs: long values", 1, {0, 42}, long_values),
    Huge("IncrementalAlterConfigs: one topic, often", 1, {42}, lambda w: incremental(topics([WIDE] * ELEMENTS))),
    Huge("IncrementalAlterConfigs: many keys", 1, {40}, lambda w: incremental(topics([WIDE], *KEYS))),
)
