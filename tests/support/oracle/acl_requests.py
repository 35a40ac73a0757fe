"""Requests about ACLs and SCRAM users, as functions that return what a broker answers, in an order of their own."""

from __future__ import annotations

from typing import Any

from barnabas.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from barnabas.protocol.messages.scram_users import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    ScramUserName,
)
from tests.support.oracle.admin_requests import Observe
from tests.support.oracle.wire import Wire

CLOSED = "closed"  # in place of an answer


def acl(
    name: str = "t",
    kind: int = 2,
    pattern: int = 3,
    principal: str = "User:a",
    host: str = "*",
    operation: int = 3,
    permission: int = 3,
) -> AclCreation:
    return AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )


def matching(
    name: str | None = None,
    kind: int = 1,
    pattern: int = 1,
    principal: str | None = None,
    host: str | None = None,
    operation: int = 1,
    permission: int = 1,
) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        resource_type_filter=kind,
        resource_name_filter=name,
        pattern_type_filter=pattern,
        principal_filter=principal,
        host_filter=host,
        operation=operation,
        permission_type=permission,
    )


def called(wire: Wire, request: Any, version: int) -> Any:
    try:
        return wire.call(request, version)
    except ConnectionResetError:
        wire.close()
        wire.__init__(wire.bootstrap)  # type: ignore[misc]  # connects again
        return None


def fields(element: Any) -> dict[str, Any]:
    return {each.name: getattr(element, each.name) for each in element.FIELDS}


def create_acls(*acls: AclCreation, version: int = 3) -> Observe:
    def observe(wire: Wire) -> Any:
        answer = called(wire, CreateAclsRequest(creations=list(acls)), version)
        return CLOSED if answer is None else [(each.error_code, each.error_message) for each in answer.results]

    return observe


def describe_acls(asked: DeleteAclsFilter, version: int = 3) -> Observe:
    request = DescribeAclsRequest(**fields(asked))

    def observe_now(wire: Wire) -> Any:
        answer = called(wire, request, version)
        if answer is None:
            return CLOSED
        found = sorted(
            (one.resource_type, one.resource_name, one.pattern_type, *fields(each).values())
            for one in answer.resources
            for each in one.acls
        )
        return answer.error_code, answer.error_message, found

    return observe_now


def delete_acls(*filters: DeleteAclsFilter, version: int = 3) -> Observe:
    def observe(wire: Wire) -> Any:
        answer = called(wire, DeleteAclsRequest(filters=list(filters)), version)
        if answer is None:
            return CLOSED
        return [
            (
                one.error_code,
                one.error_message,
                sorted(str(fields(each)) for each in one.matching_acls),
            )
            for one in answer.filter_results
        ]

    return observe


def upsertion(
    name: str = "u", mechanism: int = 1, iterations: int = 4096, salt: bytes = b"s" * 16, salted: bytes = b"p" * 32
) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
    )


def deletion(name: str = "u", mechanism: int = 1) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def alter_users(*changes: ScramCredentialUpsertion | ScramCredentialDeletion) -> Observe:
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
        upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
    )

    def observe(wire: Wire) -> Any:
        results = wire.call(request, 0).results
        return sorted((each.user, each.error_code, each.error_message) for each in results)

    return observe


def describe_users(*names: str, null: bool = False) -> Observe:
    users = None if null else [ScramUserName(name=name) for name in names]

    def observe_now(wire: Wire) -> Any:
        answer = wire.call(DescribeUserScramCredentialsRequest(users=users), 0)
        results = sorted(
            (
                each.user,
                each.error_code,
                each.error_message,
                sorted((one.mechanism, one.iterations) for one in each.credential_infos),
            )
            for each in answer.results
        )
        return answer.error_code, answer.error_message, results

    return observe_now
