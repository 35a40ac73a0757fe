"""Client quota requests (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from types import EllipsisType
from typing import Literal, TypeAlias

from barnabas.client.admin.requests import AdminRequests
from barnabas.client.admin.types import ClientQuotas
from barnabas.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlteredQuotaEntity,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaAlteration,
    QuotaComponent,
    QuotaOperation,
)

QuotaEntityType: TypeAlias = Literal["user", "client-id", "ip"]

_EXACT, _DEFAULT, _SPECIFIED = range(3)


class QuotaAdmin(AdminRequests):
    """Client quota requests."""

    async def describe_client_quotas(
        self,
        entity: Mapping[QuotaEntityType, str | EllipsisType | None] | None = None,
        *,
        strict: bool = False,
        timeout_ms: int | None = None,
    ) -> list[ClientQuotas]:
        """Returns matching entities with quotas, all by default, in ascending order.

        Args:
            entity: a name by type, None for the default, `...` for any name and the default.
            strict: only entities without other types.

        Raises:
            KafkaError: the filter is invalid (INVALID_REQUEST): a type is unknown, or an ip is combined with other types.
        """
        request = DescribeClientQuotasRequest(
            components=[_component(kind, name) for kind, name in (entity or {}).items()], strict=strict
        )
        response: DescribeClientQuotasResponse = await self._retried(request, timeout_ms=timeout_ms)
        found = [
            ClientQuotas(
                tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)),
                {each.key: each.value for each in entry.values},
            )
            for entry in response.entries or ()
        ]
        return sorted(found, key=lambda each: [(kind, name is not None, name or "") for kind, name in each.entity])

    async def alter_client_quotas(
        self,
        entity: Mapping[QuotaEntityType, str | None],
        quotas: Mapping[str, float | None],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Sets and removes quotas of one entity, all or none; its other quotas stay unchanged.

        Args:
            entity: a name by type, None for the default: user, client-id, both, or ip.
            quotas: values by name, None removes one: producer_byte_rate and consumer_byte_rate (bytes a second),
                request_percentage, controller_mutation_rate (partitions a second); of an ip connection_creation_rate
                (connections a second).
            validate_only: checks without changes.

        Raises:
            KafkaError: the entity, a name or a value is invalid (INVALID_REQUEST). Nothing has changed then.
        """
        entry = QuotaAlteration(
            entity=[AlteredQuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity.items()],
            ops=[
                QuotaOperation(key=key, value=0.0 if value is None else value, remove=value is None)
                for key, value in quotas.items()
            ],
        )
        request = AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)
        await self._retried(request, lambda answer: answer.entries[0], timeout_ms=timeout_ms)


def _component(kind: str, name: str | EllipsisType | None) -> QuotaComponent:
    if name is ...:
        return QuotaComponent(entity_type=kind, match_type=_SPECIFIED, match=None)
    if name is None:
        return QuotaComponent(entity_type=kind, match_type=_DEFAULT, match=None)
    return QuotaComponent(entity_type=kind, match_type=_EXACT, match=name)
