"""Huge requests about configurations: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

from typing import Any, Final

from tests.support.processes.huge.request import ELEMENTS, LARGE_BYTES, WIDE, BrokerObjects, Huge, named, names
from tests.support.requests import Fields

TOPIC: Final = 2
BROKER: Final = 4
GROUP: Final = 32
KEYS: Final = names(ELEMENTS - 1)
THROTTLED: Final = "leader.replication.throttled.replicas"


def resources(kind: int, found: list[str], **fields: Any) -> list[Fields]:
    return [{"resource_type": kind, "resource_name": name, **fields} for name in found]


def replaced(found: list[str], *keys: str, kind: int = TOPIC, **fields: Any) -> Fields:
    """The same keys of each resource, for AlterConfigs."""
    return {"resources": resources(kind, found, configs=named(list(keys), value="1000")), **fields}


def changed(found: list[str], *keys: str, kind: int = TOPIC) -> Fields:
    """The same for IncrementalAlterConfigs."""
    return {"resources": resources(kind, found, configs=named(list(keys), config_operation=0, value="1000"))}


def described(kind: int, found: list[str], keys: list[str] | None = None, **fields: Any) -> Fields:
    return {"resources": resources(kind, found, configuration_keys=keys), **fields}


def long_values(world: BrokerObjects) -> Fields:
    """A list of 32 kB for each topic, as many as fit."""
    value = ",".join(f"{n}:1" for n in range(4_600))
    count = LARGE_BYTES // len(value)
    topics = names(min(world.topics, count), "made")
    fields = {"name": THROTTLED, "value": value}
    found = [
        each
        for operation in (0, 2)
        for each in resources(TOPIC, topics, configs=[{**fields, "config_operation": operation}])
    ]
    return {"resources": found[:count], "validate_only": True}


EVERYTHING: Final[Fields] = {"include_synonyms": True, "include_documentation": True}

CONFIGS: Final = (
    Huge("DescribeConfigs: unknown topics", 4, {3}, lambda w: described(TOPIC, names(ELEMENTS))),
    Huge(
        "DescribeConfigs: many topics",
        4,
        {0},
        lambda w: described(TOPIC, names(w.topics, "made"), include_synonyms=True),
    ),
    Huge(
        "DescribeConfigs: this broker, often", 4, {0, 42}, lambda w: described(BROKER, ["1"] * ELEMENTS, **EVERYTHING)
    ),
    # Groups that nobody knows: each has every key of a group.
    Huge("DescribeConfigs: unknown groups", 4, {0, 42}, lambda w: described(GROUP, names(ELEMENTS), **EVERYTHING)),
    Huge("DescribeConfigs: many keys", 4, {0}, lambda w: described(TOPIC, [WIDE], KEYS)),
    Huge("AlterConfigs: unknown topics", 2, {3}, lambda w: replaced(names(ELEMENTS))),
    Huge(
        "AlterConfigs: many topics",
        2,
        {0},
        lambda w: replaced(names(w.topics, "made"), "retention.ms", validate_only=True),
    ),
    Huge("AlterConfigs: many keys", 2, {40}, lambda w: replaced([WIDE], *KEYS)),
    Huge("IncrementalAlterConfigs: unknown topics", 1, {3}, lambda w: changed(names(ELEMENTS))),
    Huge("IncrementalAlterConfigs: many topics", 1, {0}, lambda w: changed(names(w.topics, "made"), "retention.ms")),
    Huge("IncrementalAlterConfigs: long values", 1, {0, 42}, long_values),
    Huge("IncrementalAlterConfigs: one topic, often", 1, {42}, lambda w: changed([WIDE] * ELEMENTS)),
    Huge("IncrementalAlterConfigs: many keys", 1, {40}, lambda w: changed([WIDE], *KEYS)),
)
