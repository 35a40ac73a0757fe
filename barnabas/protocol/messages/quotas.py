"""Quotas of clients (KIP-546): DescribeClientQuotas 0 to 1, AlterClientQuotas 0 to 1."""

from __future__ import annotations

from barnabas.protocol.schema import Message, Struct, field
from barnabas.protocol.wire import Array, Bool, Float64, Int8, Int16, Int32, String


class QuotaComponent(Struct):
    """A filter on entities with one type."""

    entity_type: str = field(String)
    match_type: int = field(Int8)  # 0: the name, 1: the default, 2: any name and the default
    match: str | None = field(String, nullable_since=0)


class DescribeClientQuotasRequest(Message, api_key=48, versions=(0, 1), flexible_since=1):
    """Requests the quotas of entities that match all components."""

    components: list[QuotaComponent] = field(Array(QuotaComponent))
    strict: bool = field(Bool)  # without entities that have a type that no component names


class DescribedQuotaEntity(Struct):
    """One part of an entity: its type ("user", "client-id", "ip") and its name, None for the default."""

    entity_type: str = field(String)
    entity_name: str | None = field(String, nullable_since=0)


class QuotaValue(Struct):
    """One quota of an entity."""

    key: str = field(String)
    value: float = field(Float64)


class DescribedQuota(Struct):
    """An entity with its quotas."""

    entity: list[DescribedQuotaEntity] = field(Array(DescribedQuotaEntity))
    values: list[QuotaValue] = field(Array(QuotaValue))


class DescribeClientQuotasResponse(Message, api_key=48, versions=(0, 1), flexible_since=1):
    """The matching entities; None with an error."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)
    entries: list[DescribedQuota] | None = field(Array(DescribedQuota), nullable_since=0)


class AlteredQuotaEntity(Struct):
    """One part of an entity: its type ("user", "client-id", "ip") and its name, None for the default."""

    entity_type: str = field(String)
    entity_name: str | None = field(String, nullable_since=0)


class QuotaOperation(Struct):
    """Sets one quota, or removes it."""

    key: str = field(String)
    value: float = field(Float64)
    remove: bool = field(Bool)


class QuotaAlteration(Struct):
    """The changes of one entity."""

    entity: list[AlteredQuotaEntity] = field(Array(AlteredQuotaEntity))
    ops: list[QuotaOperation] = field(Array(QuotaOperation))


class AlterClientQuotasRequest(Message, api_key=49, versions=(0, 1), flexible_since=1):
    """Changes quotas; each entity separately, all of its changes or none."""

    entries: list[QuotaAlteration] = field(Array(QuotaAlteration))
    validate_only: bool = field(Bool)


class AlteredQuota(Struct):
    """The result for one entity."""

    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)
    entity: list[AlteredQuotaEntity] = field(Array(AlteredQuotaEntity))


class AlterClientQuotasResponse(Message, api_key=49, versions=(0, 1), flexible_since=1):
    """A result for each entity."""

    throttle_time_ms: int = field(Int32)
    entries: list[AlteredQuota] = field(Array(AlteredQuota))
