"""Huge requests about security: ACLs and SCRAM credentials of users. The broker has no authorizer: it reads ACLs and refuses them."""

from __future__ import annotations

from typing import Final

from barnabas.protocol.messages.acls import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from barnabas.protocol.messages.authentication import SaslAuthenticateRequest
from barnabas.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)
from barnabas.protocol.messages.scram_users import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    ScramUserName,
)
from tests.support.oracle.acl_requests import acl, matching
from tests.support.processes.huge.request import ELEMENTS, LARGE_BYTES, Huge, names

__all__ = ["SECURITY"]

WRITTEN: Final = 10_000
HALF_OF_ALL: Final = ELEMENTS // 2


def token_principals(count: int) -> list[TokenPrincipal]:
    return [TokenPrincipal(principal_type="User", principal_name=name) for name in names(count)]


def of_users(users: list[str], iterations: int = 4_096) -> AlterUserScramCredentialsRequest:
    return AlterUserScramCredentialsRequest(
        upsertions=[
            ScramCredentialUpsertion(
                name=name, mechanism=1, iterations=iterations, salt=bytes(16), salted_password=b"x" * 32
            )
            for name in users
        ]
    )


def without_users(users: list[str]) -> AlterUserScramCredentialsRequest:
    return AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name=name, mechanism=1) for name in users]
    )


def described(users: list[str]) -> DescribeUserScramCredentialsRequest:
    return DescribeUserScramCredentialsRequest(users=[ScramUserName(name=name) for name in users])


def acls(count: int) -> CreateAclsRequest:
    return CreateAclsRequest(creations=[acl(name) for name in names(count)])


def filters(count: int) -> DeleteAclsRequest:
    return DeleteAclsRequest(filters=[matching(name) for name in names(count)])


def long_name() -> DescribeAclsRequest:
    return DescribeAclsRequest(
        resource_type_filter=1, resource_name_filter="x" * 32_000, operation=1, permission_type=1, pattern_type_filter=1
    )


def long_password() -> AlterUserScramCredentialsRequest:
    return AlterUserScramCredentialsRequest(
        upsertions=[
            ScramCredentialUpsertion(
                name="huge", mechanism=1, iterations=1, salt=b"s", salted_password=b"x" * (LARGE_BYTES // 2)
            )
        ]
    )


SECURITY: Final = (
    Huge("SaslAuthenticate: a large token", 2, {34}, lambda w: SaslAuthenticateRequest(auth_bytes=bytes(LARGE_BYTES))),
    Huge(
        "CreateDelegationToken: many renewers",
        3,
        {64},
        lambda w: CreateDelegationTokenRequest(renewers=token_principals(ELEMENTS)),
    ),
    Huge("RenewDelegationToken: a large HMAC", 2, {64}, lambda w: RenewDelegationTokenRequest(hmac=bytes(LARGE_BYTES))),
    Huge(
        "ExpireDelegationToken: a large HMAC", 2, {64}, lambda w: ExpireDelegationTokenRequest(hmac=bytes(LARGE_BYTES))
    ),
    Huge(
        "DescribeDelegationToken: many owners",
        3,
        {64},
        lambda w: DescribeDelegationTokenRequest(owners=token_principals(ELEMENTS)),
    ),
    Huge("CreateAcls: many ACLs", 3, {54}, lambda w: acls(ELEMENTS - 1)),
    Huge("DeleteAcls: many filters", 3, {54}, lambda w: filters(ELEMENTS - 1)),
    Huge("DescribeAcls: a long name", 3, {54}, lambda w: long_name()),
    Huge("AlterUserScramCredentials: one user, often", 0, {92}, lambda w: of_users(["huge"] * (ELEMENTS - 2))),
    Huge("AlterUserScramCredentials: too many users", 0, {44}, lambda w: of_users(names(HALF_OF_ALL))),
    Huge("AlterUserScramCredentials: a long password", 0, {93}, lambda w: long_password()),
    Huge("AlterUserScramCredentials: unknown users", 0, {91}, lambda w: without_users(names(ELEMENTS - 2))),
    Huge("AlterUserScramCredentials: many users", 0, {0}, lambda w: of_users(names(WRITTEN))),
    Huge("DescribeUserScramCredentials: all users", 0, {0}, lambda w: described([])),
    Huge("DescribeUserScramCredentials: many users", 0, {0, 91}, lambda w: described(names(ELEMENTS - 1))),
    Huge("AlterUserScramCredentials: many users deleted", 0, {0}, lambda w: without_users(names(WRITTEN))),
)
