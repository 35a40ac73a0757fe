"""Decisions on client quotas: AlterClientQuotas (KIP-546, KIP-599, KIP-612); error texts and codes of Kafka's ClientQuotaControlManager.
Deviation: the name of an ip entity is an address. Kafka also takes host names that it can resolve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Final, NamedTuple

from barnabas.broker.controller.core.decision import ClusterView, LongDecision, MetadataDecision, check_record_count
from barnabas.broker.image.image import QuotaEntity
from barnabas.broker.image.records import ClientQuotaRecord, MetadataRecord, QuotaEntityPart
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import REFUSAL_TEXTS_MAX
from barnabas.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuota,
    AlteredQuotaEntity,
    QuotaAlteration,
    QuotaOperation,
)
from barnabas.work import Steps, Work

USER_ENTITY: Final = "user"
CLIENT_ID_ENTITY: Final = "client-id"
IP_ENTITY: Final = "ip"
OPERATIONS_PER_UNIT: Final = 4  # of work
PARTS_MAX: Final = 64  # read parts of an entity: one with more than two is refused
ADDRESS_LENGTH_MAX: Final = 64  # characters
FRACTION_MAX: Final = 1e-6  # of a number that counts as whole


class _Range(NamedTuple):
    """Values above 0."""

    type_name: str = ""
    largest: float | None = None  # None: any number, also a fraction


_LONG: Final = _Range("a LONG", 2.0**63)
_OF_CLIENTS: Final[Mapping[str, _Range]] = {
    "producer_byte_rate": _LONG,
    "consumer_byte_rate": _LONG,
    "request_percentage": _Range(),
    "controller_mutation_rate": _Range(),
}
_OF_ADDRESSES: Final[Mapping[str, _Range]] = {"connection_creation_rate": _Range("an INT", 2.0**31 - 1)}


@LongDecision[AlterClientQuotasRequest, AlterClientQuotasResponse]
def alter_client_quotas(view: ClusterView, request: AlterClientQuotasRequest) -> Work:
    """Each entity separately, all of its changes or none. With `validate_only` the answer is the same, without records."""
    records: list[MetadataRecord] = []
    results: dict[QuotaEntity, AlteredQuota] = {}
    texts = 0
    for entry in request.entries:
        yield 1 + min(len(entry.entity), PARTS_MAX)
        entity = _entity(entry.entity[:PARTS_MAX])
        try:
            changes = yield from _operations(entry)
            if changes is None or entity in results:
                raise BrokerError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {_text(entity)}")
            records += yield from _altered(view, entity, changes)
            error = None
        except BrokerError as refused:
            error = refused.with_traceback(None)  # its frames hold `error`: a cycle
            texts += 1
        results[entity] = AlteredQuota(
            error_code=ErrorCode.NONE if error is None else error.code,
            error_message=None if error is None or texts > REFUSAL_TEXTS_MAX else error.message,
            entity=[AlteredQuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity],
        )
        check_record_count(len(records))
    answer = AlterClientQuotasResponse(entries=list(results.values()))
    return MetadataDecision(answer, [] if request.validate_only else records)


def _entity(parts: Sequence[AlteredQuotaEntity]) -> QuotaEntity:
    """The last name of a repeated type counts, as in Kafka."""
    return tuple(sorted({part.entity_type: part.entity_name for part in parts}.items()))


def _text(entity: QuotaEntity) -> str:
    parts = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{parts}}})"


def _operations(entry: QuotaAlteration) -> Steps[dict[str, QuotaOperation] | None]:
    found: dict[str, QuotaOperation] = {}
    for number, operation in enumerate(entry.ops):
        if number % OPERATIONS_PER_UNIT == 0:
            yield 1
        if operation.key in found:
            return None
        found[operation.key] = operation
    return found


def _altered(
    view: ClusterView, entity: QuotaEntity, changes: Mapping[str, QuotaOperation]
) -> Steps[list[MetadataRecord]]:
    """Records of one entity; only real changes are written."""
    ranges = _ranges(entity)
    now = view.image.quotas.get(entity, {})
    records: list[MetadataRecord] = []
    for number, (key, change) in enumerate(changes.items()):
        if number % OPERATIONS_PER_UNIT == 0:
            yield 1
        if change.remove:
            if key in now:
                records.append(ClientQuotaRecord(entity=_parts(entity), key=key, remove=True))
            continue
        _check_value(ranges, key, change.value)
        if now.get(key) != change.value:
            records.append(ClientQuotaRecord(entity=_parts(entity), key=key, value=change.value))
    return records


def _parts(entity: QuotaEntity) -> list[QuotaEntityPart]:
    return [QuotaEntityPart(entity_type=kind, entity_name=name) for kind, name in entity]


def _ranges(entity: QuotaEntity) -> Mapping[str, _Range]:
    """Quotas that an entity may have. Raises BrokerError(INVALID_REQUEST) for an invalid entity."""
    if not entity:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in (USER_ENTITY, CLIENT_ID_ENTITY, IP_ENTITY):
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"Empty {kind} not supported")
    names = dict(entity)
    if IP_ENTITY not in names:
        return _OF_CLIENTS
    if len(names) > 1:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",  # as in Kafka
        )
    address = names[IP_ENTITY]
    if address is not None and not _is_address(address):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{address} is not a valid IP or resolvable host.")
    return _OF_ADDRESSES


def _is_address(text: str) -> bool:
    if len(text) > ADDRESS_LENGTH_MAX:
        return False
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _check_value(ranges: Mapping[str, _Range], key: str, value: float) -> None:
    found = ranges.get(key)
    if found is None:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {key}")
    if value <= 0.0:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Quota {key} must be greater than 0")
    if found.largest is None:
        return
    if value > found.largest:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Proposed value for {key} is too large for {found.type_name}.")
    if value % 1.0 > FRACTION_MAX:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{key} cannot be a fractional value.")
