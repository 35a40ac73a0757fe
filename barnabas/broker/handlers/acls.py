"""Handles DescribeAcls (29), CreateAcls (30) and DeleteAcls (31), versions 1 to 3 (KIP-140).

Behaviour: DescribeAcls lists the ACLs of this node's image that match a filter. The others are forwarded to the controller, which
decides; the answer is sent once this node's own image has the change. On the controller listener the controller is asked directly.
A client may describe ACLs if it may DESCRIBE the cluster, and change them if it may ALTER it. A node without an authorizer answers
SECURITY_DISABLED. A request with a number 0 (UNKNOWN) ends the connection, as in Kafka.

Version notes: version 1 is the first with pattern types, version 2 the first flexible version, version 3 has the resource type USER.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import Call, Computed, Rest, Table
from barnabas.broker.authorization.permissions import check_permission
from barnabas.broker.controller.core.acls import AclFilter, acl_filter, known_numbers
from barnabas.broker.handlers.admin import forwarded
from barnabas.broker.handlers.needs import Needs
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.acls import (
    AclCreationResult,
    AclDescription,
    AclsResource,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from barnabas.broker.image.image import AclImage

NO_AUTHORIZER: Final = "No Authorizer is configured."


def describe_acls(needs: Needs, call: Call[DescribeAclsRequest]) -> Computed:
    """Lists the ACLs that match."""
    request = call.request
    known_numbers(request.resource_type_filter, request.pattern_type_filter, request.operation, request.permission_type)
    check_permission(call.access, AclOperation.DESCRIBE, AclResourceType.CLUSTER)
    if needs.authorizer is None:
        raise BrokerError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
    acls = needs.current_image.image.acls
    return Computed(call, partial(_matching, acl_filter(request), acls), len(acls))


def _matching(wanted: AclFilter, acls: Mapping[bytes, AclImage], _access: Access) -> DescribeAclsResponse:
    resources: dict[tuple[int, str, int], AclsResource] = {}
    for acl in acls.values():
        if not wanted.matches(acl):
            continue
        pattern = (acl.resource_type, acl.resource_name, acl.pattern_type)
        resource = resources.get(pattern)
        if resource is None:
            resource = resources[pattern] = AclsResource(
                resource_type=acl.resource_type, resource_name=acl.resource_name, pattern_type=acl.pattern_type, acls=[]
            )
        resource.acls.append(
            AclDescription(
                principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission_type
            )
        )
    return DescribeAclsResponse(error_message="", resources=list(resources.values()))  # Kafka's message is not null


def change_acls(needs: Needs, call: Call[CreateAclsRequest] | Call[DeleteAclsRequest]) -> Computed:
    """Creates or deletes ACLs."""
    return checked(needs, call, lambda: forwarded(needs.controller, call, HANDLERS[type(call.request)][1]))


def checked(needs: Needs, call: Call[CreateAclsRequest] | Call[DeleteAclsRequest], change: Rest) -> Computed:
    """Continues with `change`. Refuses a client that may not change ACLs, and every client if there is no authorizer.

    The check raises:
        BrokerError: CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED.
        RemoteProtocolError: a number is 0.
    """

    def check(access: Access) -> Rest:
        request = call.request
        if isinstance(request, CreateAclsRequest):
            for each in request.creations:
                known_numbers(each.resource_type, each.resource_pattern_type, each.operation, each.permission_type)
        else:
            for asked in request.filters:
                known_numbers(
                    asked.resource_type_filter, asked.pattern_type_filter, asked.operation, asked.permission_type
                )
        check_permission(access, AclOperation.ALTER, AclResourceType.CLUSTER)
        if needs.authorizer is None:
            raise BrokerError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        return change

    return Computed(call, check)


def _shown(error: BrokerError) -> str | None:
    return None if error.code == ErrorCode.UNKNOWN_SERVER_ERROR else error.message


def _refuse_describe(call: Call[DescribeAclsRequest], error: BrokerError) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=error.code, error_message=_shown(error))


def _refuse_create(call: Call[CreateAclsRequest], error: BrokerError) -> CreateAclsResponse:
    text = _shown(error)
    refused = AclCreationResult(error_code=error.code, error_message=text)
    return CreateAclsResponse(results=[refused] * len(call.request.creations))


def _refuse_delete(call: Call[DeleteAclsRequest], error: BrokerError) -> DeleteAclsResponse:
    text = _shown(error)
    refused = DeleteAclsFilterResult(error_code=error.code, error_message=text)
    return DeleteAclsResponse(filter_results=[refused] * len(call.request.filters))


HANDLERS: Final[Table] = {
    DescribeAclsRequest: (describe_acls, _refuse_describe),
    CreateAclsRequest: (change_acls, _refuse_create),
    DeleteAclsRequest: (change_acls, _refuse_delete),
}
