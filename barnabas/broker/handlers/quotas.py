"""Handles DescribeClientQuotas (48) and AlterClientQuotas (49), versions 0 to 1 (KIP-546).

Behaviour: DescribeClientQuotas lists the entities of this node's image that match a filter. AlterClientQuotas is forwarded to the
controller, which decides; the answer is sent once this node's own image has the change. On the controller listener the controller
is asked directly. A client may describe quotas if it may DESCRIBE_CONFIGS of the cluster, and change them if it may ALTER_CONFIGS.

Version notes: version 1 is the first flexible version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import Answer, Call, Computed, Table
from barnabas.broker.controller.core.quotas import CLIENT_ID_ENTITY, IP_ENTITY, USER_ENTITY
from barnabas.broker.handlers.admin import forwarded
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.handlers.refusals import refuse_each
from barnabas.broker.image.image import QuotaEntity
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuota,
    DescribedQuotaEntity,
    QuotaComponent,
    QuotaValue,
)

EXACT, DEFAULT, SPECIFIED = range(3)  # match types

_Wanted = str | None | bool  # of a type: its name, None for the default, True for any


def describe_quotas(needs: Needs, call: Call[DescribeClientQuotasRequest]) -> Computed:
    """Lists the entities that match every component of the filter, with their quotas."""
    if not call.access.allows(AclOperation.DESCRIBE_CONFIGS, AclResourceType.CLUSTER):
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted = _filter(call.request.components)
    quotas = needs.current_image.image.quotas

    def listed(_access: Access) -> DescribeClientQuotasResponse:
        entries = [
            _described(entity, values)
            for entity, values in quotas.items()
            if _matches(entity, wanted, call.request.strict)
        ]
        return DescribeClientQuotasResponse(error_message="", entries=entries)  # Kafka's message is not null

    return Computed(call, listed, len(quotas))


def _described(entity: QuotaEntity, values: Mapping[str, float]) -> DescribedQuota:
    return DescribedQuota(
        entity=[DescribedQuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity],
        values=[QuotaValue(key=key, value=value) for key, value in values.items()],
    )


def _filter(components: list[QuotaComponent]) -> dict[str, _Wanted]:
    """What is asked of each type.

    Raises:
        BrokerError: a component is invalid; the texts are Kafka's.
    """
    wanted: dict[str, _Wanted] = {}
    for component in components:
        kind, match = component.entity_type, component.match
        if not kind:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in wanted:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter."
            )
        if kind not in (USER_ENTITY, CLIENT_ID_ENTITY, IP_ENTITY):
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if component.match_type not in (EXACT, DEFAULT, SPECIFIED):
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}")
        if component.match_type == EXACT and match is None:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null."
            )
        if component.match_type != EXACT and match is not None:
            name = "MATCH_TYPE_DEFAULT" if component.match_type == DEFAULT else "MATCH_TYPE_SPECIFIED"
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, f"Request specified {name}, but also specified a match string."
            )
        wanted[kind] = True if component.match_type == SPECIFIED else match
    if IP_ENTITY in wanted and len(wanted) > 1:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with "
            "user or clientId filter component.",
        )
    return wanted


def _matches(entity: QuotaEntity, wanted: Mapping[str, _Wanted], strict: bool) -> bool:
    if strict and len(entity) != len(wanted):
        return False
    names = dict(entity)
    return all(kind in names and (match is True or names[kind] == match) for kind, match in wanted.items())


def alter_quotas(needs: Needs, call: Call[AlterClientQuotasRequest]) -> Answer:
    """Changes quotas of entities."""
    return forwarded(needs.controller, call, refuse_each)


def _refuse_describe(call: Call[DescribeClientQuotasRequest], error: BrokerError) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)


HANDLERS: Final[Table] = {
    DescribeClientQuotasRequest: (describe_quotas, _refuse_describe),
    AlterClientQuotasRequest: (alter_quotas, refuse_each),
}
