"""Decisions on ACLs: CreateAcls (KIP-140, KIP-290, KIP-373) and DeleteAcls; ACL filters, also for DescribeAcls.
Error texts and codes are Kafka's (AclApis, AclControlManager).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from barnabas.broker.api.access import CLUSTER_NAME
from barnabas.broker.controller.core.decision import ClusterView, LongDecision, MetadataDecision
from barnabas.broker.image.image import AclImage
from barnabas.broker.image.records import AccessControlEntryRecord, MetadataRecord, RemoveAccessControlEntryRecord
from barnabas.errors import BrokerError, ErrorCode, RemoteProtocolError
from barnabas.limits import REFUSAL_TEXTS_MAX
from barnabas.protocol.acls import AclOperation, AclPermission, AclResourceType, PatternType
from barnabas.protocol.messages.acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeletedAcl,
    DescribeAclsRequest,
)
from barnabas.work import Steps, Work

ACLS_OF_A_REQUEST_MAX: Final = 10_000  # created or deleted, as in Kafka
MATCHES_MAX: Final = 100_000  # listed in one answer: an ACL appears for each filter that it matches
NAME_SHOWN_MAX: Final = 1_000  # characters of a name in an error text
ACLS_PER_UNIT: Final = 32  # of work: compared with a filter
ANY: Final = 1
WILDCARD_NAME: Final = "*"


@LongDecision[CreateAclsRequest, CreateAclsResponse]
def create_acls(view: ClusterView, request: CreateAclsRequest) -> Work:
    """Decides each ACL separately; an existing ACL is not written again."""
    for number, creation in enumerate(request.creations):
        _check_specific(creation)
        if number % ACLS_PER_UNIT == 0:
            yield 1
    existing: set[AclImage] = set()
    for number, acl in enumerate(view.image.acls.values()):
        existing.add(acl)
        if number % ACLS_PER_UNIT == 0:
            yield 1
    records: list[MetadataRecord] = []
    results: list[AclCreationResult] = []
    texts = 0
    for creation in request.creations:
        yield 1
        try:
            acl = _checked(creation)
        except BrokerError as error:
            texts += 1
            text = error.message if texts <= REFUSAL_TEXTS_MAX else None
            results.append(AclCreationResult(error_code=error.code, error_message=text))
            continue
        results.append(AclCreationResult(error_message=""))  # Kafka's message is not null
        if acl in existing:
            continue
        existing.add(acl)
        records.append(AccessControlEntryRecord(id=view.new_id(), **acl._asdict()))
        if len(records) > ACLS_OF_A_REQUEST_MAX:
            raise BrokerError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    return MetadataDecision(CreateAclsResponse(results=results), records)


def known_numbers(*numbers: int) -> None:
    """Raises RemoteProtocolError for the number 0 of a type, pattern, operation or permission: Kafka closes the connection."""
    if 0 in numbers:
        raise RemoteProtocolError("an ACL or a filter has an UNKNOWN element")


def _check_specific(creation: AclCreation) -> None:
    """Refuses the whole request, as Kafka does, if an ACL has elements that only filters may have."""
    pattern_type = creation.resource_pattern_type
    if (
        ANY in (creation.resource_type, pattern_type, creation.operation, creation.permission_type)
        or pattern_type == PatternType.MATCH
    ):
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "ANY and MATCH are for filters")


def _checked(creation: AclCreation) -> AclImage:
    """Raises BrokerError(INVALID_REQUEST)."""
    kind, name = creation.resource_type, creation.resource_name
    if kind == AclResourceType.CLUSTER and name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not name:
        raise _invalid("Invalid empty resource name")
    if kind not in _TYPES:
        raise _invalid("Invalid resourceType UNKNOWN")
    if creation.resource_pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid("Invalid patternType UNKNOWN")
    if creation.operation not in _OPERATIONS:
        raise _invalid("Invalid operation UNKNOWN")
    if creation.permission_type not in (AclPermission.ALLOW, AclPermission.DENY):
        raise _invalid("Invalid permissionType UNKNOWN")
    if ":" not in creation.principal:
        raise _invalid(
            f"Could not parse principal from `{name_in_error(creation.principal)}` "
            "(no colon is present separating the principal type from the principal name)"
        )
    return AclImage(
        kind,
        name,
        creation.resource_pattern_type,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )


def name_in_error(name: str) -> str:
    """Shortens a name so that the error text fits into a response (32,767 bytes)."""
    return name if len(name) <= NAME_SHOWN_MAX else f"{name[:NAME_SHOWN_MAX]}…"


def _invalid(text: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_REQUEST, text)


_TYPES: Final = frozenset(int(each) for each in AclResourceType if each > AclResourceType.ANY)
_OPERATIONS: Final = frozenset(int(each) for each in AclOperation if each > AclOperation.ANY)


class AclFilter(NamedTuple):
    """None and 1 (ANY) match everything."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    def matches(self, acl: AclImage) -> bool:
        return (
            self.resource_type in (ANY, acl.resource_type)
            and self.pattern_type in (ANY, PatternType.MATCH, acl.pattern_type)
            and (self.resource_name is None or self._matches_name(self.resource_name, acl))
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (ANY, acl.operation)
            and self.permission_type in (ANY, acl.permission_type)
        )

    def _matches_name(self, name: str, acl: AclImage) -> bool:
        if self.pattern_type != PatternType.MATCH:
            return name == acl.resource_name
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, WILDCARD_NAME)

    def found(self, acls: Iterable[tuple[bytes, AclImage]]) -> Steps[list[tuple[bytes, AclImage]]]:
        found = []
        matches: Callable[[AclImage], bool] = self.matches
        for number, item in enumerate(acls):
            if matches(item[1]):
                found.append(item)
            if number % ACLS_PER_UNIT == 0:
                yield 1
        return found


def acl_filter(asked: DeleteAclsFilter | DescribeAclsRequest) -> AclFilter:
    return AclFilter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )


@LongDecision[DeleteAclsRequest, DeleteAclsResponse]
def delete_acls(view: ClusterView, request: DeleteAclsRequest) -> Work:
    """All filters or none. An ACL that several filters match is in the result of each."""
    by_name: dict[str, list[tuple[bytes, AclImage]]] = {}
    for number, item in enumerate(view.image.acls.items()):
        by_name.setdefault(item[1].resource_name, []).append(item)
        if number % ACLS_PER_UNIT == 0:
            yield 1
    known: dict[AclFilter, list[tuple[bytes, AclImage]]] = {}
    removed: dict[bytes, None] = {}
    matches = 0
    results = []
    for asked in request.filters:
        yield 1
        wanted = acl_filter(asked)
        found = known.get(wanted)
        if found is None:
            name = wanted.resource_name
            exact = name is not None and wanted.pattern_type != PatternType.MATCH
            candidates = by_name.get(name or "", []) if exact else view.image.acls.items()
            found = known[wanted] = yield from wanted.found(candidates)
        matches += len(found)
        removed.update(dict.fromkeys(acl_id for acl_id, _ in found))
        if len(removed) > ACLS_OF_A_REQUEST_MAX or matches > MATCHES_MAX:
            raise _invalid(f"Cannot remove more than {ACLS_OF_A_REQUEST_MAX} acls in a single delete operation.")
        deleted = [DeletedAcl(error_message=None, **acl._asdict()) for _, acl in found]
        results.append(DeleteAclsFilterResult(error_message=None, matching_acls=deleted))
        yield 1 + len(found) // 4
    records: list[MetadataRecord] = [RemoveAccessControlEntryRecord(id=acl_id) for acl_id in removed]
    return MetadataDecision(DeleteAclsResponse(filter_results=results), records)
