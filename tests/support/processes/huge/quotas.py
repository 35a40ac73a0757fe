"""Huge requests about quotas of clients: DescribeClientQuotas, AlterClientQuotas."""

from __future__ import annotations

from typing import Final

from tests.support.processes.huge.request import ELEMENTS, Huge, names
from tests.support.requests import Fields

ENTITIES: Final = ELEMENTS // 3  # each has a part and an operation
WRITTEN: Final = 10_000
RATE: Final = "consumer_byte_rate"  # nothing is fetched with these client ids


def of_clients(clients: list[str], key: str = RATE, *, remove: bool = False) -> Fields:
    ops = [{"key": key, "value": 1e9, "remove": remove}]
    entities = ({"entity_type": "client-id", "entity_name": client} for client in clients)
    return {"entries": [{"entity": [entity], "ops": ops} for entity in entities]}


def many_operations() -> Fields:
    operations = [{"key": key, "value": 1.0} for key in names(ELEMENTS - 3)]
    return {"entries": [{"entity": [{"entity_type": "user", "entity_name": "huge"}], "ops": operations}]}


def many_parts() -> Fields:
    return {"entries": [{"entity": [{"entity_type": kind, "entity_name": "x"} for kind in names(ELEMENTS - 2)]}]}


def many_components() -> Fields:
    return {"components": [{"entity_type": "user", "match_type": 2, "match": None}] * (ELEMENTS // 2)}


QUOTAS: Final = (
    Huge("AlterClientQuotas: unknown quotas", 1, {42}, lambda w: of_clients(names(ENTITIES), "nope")),
    Huge("AlterClientQuotas: one entity, often", 1, {42}, lambda w: of_clients(["huge"] * ENTITIES)),
    Huge("AlterClientQuotas: many operations", 1, {42}, lambda w: many_operations()),
    Huge("AlterClientQuotas: many parts", 1, {42}, lambda w: many_parts()),
    Huge("AlterClientQuotas: too many entities", 1, {44}, lambda w: of_clients(names(ENTITIES))),
    Huge("AlterClientQuotas: many entities", 1, {0}, lambda w: of_clients(names(WRITTEN))),
    Huge("DescribeClientQuotas: many entities", 1, {0}, lambda w: {}),
    Huge("DescribeClientQuotas: many components", 1, {42}, lambda w: many_components()),
    Huge("AlterClientQuotas: many entities removed", 1, {0}, lambda w: of_clients(names(WRITTEN), remove=True)),
)
