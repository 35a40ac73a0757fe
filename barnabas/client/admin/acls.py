"""ACL requests (KIP-140)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from barnabas.client.admin.requests import AdminRequests, raise_first
from barnabas.protocol.acls import AclOperation, AclPermission, AclResourceType, PatternType
from barnabas.protocol.messages.acls import (
    AclCreation,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeletedAcl,
    DescribeAclsRequest,
    DescribeAclsResponse,
)


@dataclass(frozen=True, slots=True)
class AclBinding:
    """One ACL: a principal ("User:alice", "User:*") and host ("*": any), an operation, and resources of a pattern."""

    resource_type: AclResourceType
    resource_name: str  # "*" with a literal pattern: all resources; "kafka-cluster" of the type CLUSTER
    principal: str
    operation: AclOperation
    permission: AclPermission = AclPermission.ALLOW
    pattern_type: PatternType = PatternType.LITERAL
    host: str = "*"


@dataclass(frozen=True, slots=True)
class AclBindingFilter:
    """A filter of ACLs; None and ANY match everything. MATCH finds all patterns that match the name of a resource."""

    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY
    pattern_type: PatternType = PatternType.ANY
    host: str | None = None


class AclAdmin(AdminRequests):
    """ACL requests."""

    async def create_acls(self, acls: Iterable[AclBinding], *, timeout_ms: int | None = None) -> None:
        """Creates ACLs; existing ones stay.

        Raises:
            KafkaError: an ACL is invalid (INVALID_REQUEST), the valid ones were created; the brokers have no authorizer
                (SECURITY_DISABLED); the client may not ALTER the cluster (CLUSTER_AUTHORIZATION_FAILED).
        """
        request = CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                    resource_pattern_type=each.pattern_type,
                    principal=each.principal,
                    host=each.host,
                    operation=each.operation,
                    permission_type=each.permission,
                )
                for each in acls
            ]
        )
        alone = (lambda answer: answer.results[0]) if len(request.creations) == 1 else None
        response: CreateAclsResponse = await self._retried(request, alone, timeout_ms=timeout_ms)
        raise_first(response.results)

    async def describe_acls(
        self, wanted: AclBindingFilter | None = None, *, timeout_ms: int | None = None
    ) -> list[AclBinding]:
        """Returns matching ACLs, all by default, sorted by resource, principal and operation.

        Raises:
            KafkaError: the brokers have no authorizer (SECURITY_DISABLED); the client may not DESCRIBE the cluster.
        """
        request = DescribeAclsRequest(**_fields(wanted or AclBindingFilter()))
        response: DescribeAclsResponse = await self._retried(request, timeout_ms=timeout_ms)
        found = [
            _binding(resource.resource_type, resource.resource_name, resource.pattern_type, acl)
            for resource in response.resources
            for acl in resource.acls
        ]
        return sorted(found, key=_ORDER)

    async def delete_acls(
        self, filters: Iterable[AclBindingFilter], *, timeout_ms: int | None = None
    ) -> list[AclBinding]:
        """Deletes the ACLs that match a filter. Returns them, each once, sorted as by `describe_acls`.

        Raises:
            KafkaError: as `create_acls`; more than 10,000 ACLs match (INVALID_REQUEST), none was deleted then.
        """
        request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_fields(each)) for each in filters])
        alone = (lambda answer: answer.filter_results[0]) if len(request.filters) == 1 else None
        response: DeleteAclsResponse = await self._retried(request, alone, timeout_ms=timeout_ms)
        deleted: set[AclBinding] = set()
        for result in response.filter_results:
            raise_first([result, *result.matching_acls])
            deleted |= {
                _binding(acl.resource_type, acl.resource_name, acl.pattern_type, acl) for acl in result.matching_acls
            }
        return sorted(deleted, key=_ORDER)


def _fields(wanted: AclBindingFilter) -> dict[str, Any]:
    """A filter as the fields of DescribeAcls and DeleteAcls."""
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def _binding(resource_type: int, name: str, pattern_type: int, entry: AclDescription | DeletedAcl) -> AclBinding:
    return AclBinding(
        AclResourceType(resource_type) if resource_type in _TYPES else AclResourceType.UNKNOWN,
        name,
        entry.principal,
        AclOperation(entry.operation) if entry.operation in _OPERATIONS else AclOperation.UNKNOWN,
        AclPermission(entry.permission_type) if entry.permission_type in (2, 3) else AclPermission.UNKNOWN,
        PatternType(pattern_type) if pattern_type in (3, 4) else PatternType.UNKNOWN,
        entry.host,
    )


_TYPES: Final = frozenset(map(int, AclResourceType))
_OPERATIONS: Final = frozenset(map(int, AclOperation))
_ORDER: Final[Callable[[AclBinding], Any]] = attrgetter(
    "resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission"
)
