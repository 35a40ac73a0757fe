"""Huge requests about quotas of clients: DescribeClientQuotas, AlterClientQuotas."""

from __future__ import annotations

from typing import Final

from barnabas.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlteredQuotaEntity,
    DescribeClientQuotasRequest,
    QuotaAlteration,
    QuotaComponent,
    QuotaOperation,
)
from tests.support.processes.huge.request import ELEMENTS, Huge, names

__all__ = ["QUOTAS"]

ENTITIES: Final = ELEMENTS // 3  # each has a part and an operation
WRITTEN: Final = 10_000
RATE: Final = "consumer_byte_rate"  # nothing is fetched with these client ids


def of_clients(clients: list[str], key: str = RATE, *, remove: bool = False) -> AlterClientQuotasRequest:
    return AlterClientQuotasRequest(
        entries=[
            QuotaAlteration(
                entity=[AlteredQuotaEntity(entity_type="client-id", entity_name=client)],
                ops=[QuotaOperation(key=key, value=1e9, remove=remove)],
            )
            for client in clients
        ]
    )


def many_operations() -> AlterClientQuotasRequest:
    operations = [QuotaOperation(key=key, value=1.0) for key in names(ELEMENTS - 3)]
    entity = [AlteredQuotaEntity(entity_type="user", entity_name="huge")]
    return AlterClientQuotasRequest(entries=[QuotaAlteration(entity=entity, ops=operations)])


def many_parts() -> AlterClientQuotasRequest:
    entity = [AlteredQuotaEntity(entity_type=kind, entity_name="x") for kind in names(ELEMENTS - 2)]
    return AlterClientQuotasRequest(entries=[QuotaAlteration(entity=entity)])


QUOTAS: Final = (
    Huge("AlterClientQuotas: unknown quotas", 1, {42}, lambda w: of_clients(names(ENTITIES), "nope")),
    Huge("AlterClientQuotas: one entity, often", 1, {42}, lambda w: of_clients(["huge"] * ENTITIES)),
    Huge("AlterClientQuotas: many operations", 1, {42}, lambda w: many_operations()),
    Huge("AlterClientQuotas: many parts", 1, {42}, lambda w: many_parts()),
    Huge("AlterClientQuotas: too many entities", 1, {44}, lambda w: of_clients(names(ENTITIES))),
    Huge("AlterClientQuotas: many entities", 1, {0}, lambda w: of_clients(names(WRITTEN))),
    Huge("DescribeClientQuotas: many entities", 1, {0}, lambda w: DescribeClientQuotasRequest()),
    Huge(
        "DescribeClientQuotas: many components",
        1,
        {42},
        lambda w: DescribeClientQuotasRequest(
            components=[QuotaComponent(entity_type="user", match_type=2, match=None)] * (ELEMENTS // 2)
        ),
    ),
    Huge("AlterClientQuotas: many entities removed", 1, {0}, lambda w: of_clients(names(WRITTEN), remove=True)),
)
