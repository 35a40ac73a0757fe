"""ACLs: DescribeAcls 1-3, CreateAcls 1-3, DeleteAcls 1-3 (KIP-140; 1: pattern types, KIP-290; 3: USER, KIP-373)."""

from __future__ import annotations

from barnabas.protocol.schema import Message, Struct, field
from barnabas.protocol.wire import Array, Int8, Int16, Int32, String


class DescribeAclsRequest(Message, api_key=29, versions=(1, 3), flexible_since=2):
    """Requests the ACLs that match a filter; None matches everything."""

    resource_type_filter: int = field(Int8)
    resource_name_filter: str | None = field(String, nullable_since=0)
    pattern_type_filter: int = field(Int8, default=3)
    principal_filter: str | None = field(String, nullable_since=0)
    host_filter: str | None = field(String, nullable_since=0)
    operation: int = field(Int8)
    permission_type: int = field(Int8)


class AclDescription(Struct):
    """One ACL of a resource pattern."""

    principal: str = field(String)
    host: str = field(String)
    operation: int = field(Int8)
    permission_type: int = field(Int8)


class AclsResource(Struct):
    """A resource pattern with its ACLs."""

    resource_type: int = field(Int8)
    resource_name: str = field(String)
    pattern_type: int = field(Int8, default=3)
    acls: list[AclDescription] = field(Array(AclDescription))


class DescribeAclsResponse(Message, api_key=29, versions=(1, 3), flexible_since=2):
    """The matching ACLs."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)
    resources: list[AclsResource] = field(Array(AclsResource))


class AclCreation(Struct):
    """An ACL to create."""

    resource_type: int = field(Int8)
    resource_name: str = field(String)
    resource_pattern_type: int = field(Int8, default=3)
    principal: str = field(String)
    host: str = field(String)
    operation: int = field(Int8)
    permission_type: int = field(Int8)


class CreateAclsRequest(Message, api_key=30, versions=(1, 3), flexible_since=2):
    """Creates ACLs, each separately."""

    creations: list[AclCreation] = field(Array(AclCreation))


class AclCreationResult(Struct):
    """The result for one ACL."""

    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)


class CreateAclsResponse(Message, api_key=30, versions=(1, 3), flexible_since=2):
    """A result for each ACL, in the order of the request."""

    throttle_time_ms: int = field(Int32)
    results: list[AclCreationResult] = field(Array(AclCreationResult))


class DeleteAclsFilter(Struct):
    """The ACLs to delete; None matches everything."""

    resource_type_filter: int = field(Int8)
    resource_name_filter: str | None = field(String, nullable_since=0)
    pattern_type_filter: int = field(Int8, default=3)
    principal_filter: str | None = field(String, nullable_since=0)
    host_filter: str | None = field(String, nullable_since=0)
    operation: int = field(Int8)
    permission_type: int = field(Int8)


class DeleteAclsRequest(Message, api_key=31, versions=(1, 3), flexible_since=2):
    """Deletes the ACLs that match one of the filters."""

    filters: list[DeleteAclsFilter] = field(Array(DeleteAclsFilter))


class DeletedAcl(Struct):
    """A matching ACL, and whether it was deleted."""

    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)
    resource_type: int = field(Int8)
    resource_name: str = field(String)
    pattern_type: int = field(Int8, default=3)
    principal: str = field(String)
    host: str = field(String)
    operation: int = field(Int8)
    permission_type: int = field(Int8)


class DeleteAclsFilterResult(Struct):
    """The result for one filter."""

    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)
    matching_acls: list[DeletedAcl] = field(Array(DeletedAcl))


class DeleteAclsResponse(Message, api_key=31, versions=(1, 3), flexible_since=2):
    """A result for each filter, in the order of the request."""

    throttle_time_ms: int = field(Int32)
    filter_results: list[DeleteAclsFilterResult] = field(Array(DeleteAclsFilterResult))
