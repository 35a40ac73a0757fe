"""Requests about quotas of clients, as functions that return what a broker answers, in an order of their own."""

from __future__ import annotations

from typing import Any

from barnabas.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlteredQuotaEntity,
    DescribeClientQuotasRequest,
    QuotaAlteration,
    QuotaComponent,
    QuotaOperation,
)
from tests.support.oracle.admin_requests import Observe
from tests.support.oracle.wire import Wire

Part = tuple[str, str | None]
Change = tuple[str, float | None]  # a value of None removes


def entry(parts: list[Part], *changes: Change) -> QuotaAlteration:
    return QuotaAlteration(
        entity=[AlteredQuotaEntity(entity_type=kind, entity_name=name) for kind, name in parts],
        ops=[
            QuotaOperation(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in changes
        ],
    )


def alter_quotas(*entries: QuotaAlteration, validate_only: bool = False, version: int = 1) -> Observe:
    def observe(wire: Wire) -> Any:
        answer = wire.call(AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only), version)
        results = [
            (
                sorted(((part.entity_type, part.entity_name) for part in each.entity), key=str),
                each.error_code,
                each.error_message,
            )
            for each in answer.entries
        ]
        return sorted(results, key=str)

    return observe


def describe_quotas(*components: tuple[str, int, str | None], strict: bool = False, version: int = 1) -> Observe:
    asked = [QuotaComponent(entity_type=kind, match_type=how, match=match) for kind, how, match in components]

    def observe_now(wire: Wire) -> Any:
        answer = wire.call(DescribeClientQuotasRequest(components=asked, strict=strict), version)
        entries = None
        if answer.entries is not None:
            described = [
                (
                    sorted(((part.entity_type, part.entity_name) for part in each.entity), key=str),
                    sorted((value.key, value.value) for value in each.values),
                )
                for each in answer.entries
            ]
            entries = sorted(described, key=str)
        return answer.error_code, answer.error_message, entries

    return observe_now
