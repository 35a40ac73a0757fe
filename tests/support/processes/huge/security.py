"""Huge requests about security: ACLs and SCRAM credentials of users. The broker has no authorizer: it reads ACLs and refuses them."""

from __future__ import annotations

from typing import Final

from tests.support.oracle.acl_requests import acl, matching
from tests.support.processes.huge.request import ELEMENTS, LARGE_BYTES, Huge, named, names
from tests.support.requests import Fields

WRITTEN: Final = 10_000
HALF_OF_ALL: Final = ELEMENTS // 2
LARGE: Final = bytes(LARGE_BYTES)


def token_principals(count: int) -> list[Fields]:
    return [{"principal_type": "User", "principal_name": name} for name in names(count)]


def of_users(users: list[str], iterations: int = 4_096, salt: bytes = bytes(16), password: bytes = b"x" * 32) -> Fields:
    fields = {"mechanism": 1, "iterations": iterations, "salt": salt, "salted_password": password}
    return {"upsertions": named(users, **fields)}


def without_users(users: list[str]) -> Fields:
    return {"deletions": named(users, mechanism=1)}


def long_name() -> Fields:
    any_of = dict.fromkeys(("resource_type_filter", "operation", "permission_type", "pattern_type_filter"), 1)
    return {"resource_name_filter": "x" * 32_000, **any_of}


SECURITY: Final = (
    Huge("SaslAuthenticate: a large token", 2, {34}, lambda w: {"auth_bytes": LARGE}),
    Huge("CreateDelegationToken: many renewers", 3, {64}, lambda w: {"renewers": token_principals(ELEMENTS)}),
    Huge("RenewDelegationToken: a large HMAC", 2, {64}, lambda w: {"hmac": LARGE}),
    Huge("ExpireDelegationToken: a large HMAC", 2, {64}, lambda w: {"hmac": LARGE}),
    Huge("DescribeDelegationToken: many owners", 3, {64}, lambda w: {"owners": token_principals(ELEMENTS)}),
    Huge("CreateAcls: many ACLs", 3, {54}, lambda w: {"creations": [acl(name) for name in names(ELEMENTS - 1)]}),
    Huge("DeleteAcls: many filters", 3, {54}, lambda w: {"filters": [matching(name) for name in names(ELEMENTS - 1)]}),
    Huge("DescribeAcls: a long name", 3, {54}, lambda w: long_name()),
    Huge("AlterUserScramCredentials: one user, often", 0, {92}, lambda w: of_users(["huge"] * (ELEMENTS - 2))),
    Huge("AlterUserScramCredentials: too many users", 0, {44}, lambda w: of_users(names(HALF_OF_ALL))),
    Huge(
        "AlterUserScramCredentials: a long password",
        0,
        {93},
        lambda w: of_users(["huge"], iterations=1, salt=b"s", password=b"x" * (LARGE_BYTES // 2)),
    ),
    Huge("AlterUserScramCredentials: unknown users", 0, {91}, lambda w: without_users(names(ELEMENTS - 2))),
    Huge("AlterUserScramCredentials: many users", 0, {0}, lambda w: of_users(names(WRITTEN))),
    Huge("DescribeUserScramCredentials: all users", 0, {0}, lambda w: {"users": []}),
    Huge("DescribeUserScramCredentials: many users", 0, {0, 91}, lambda w: {"users": named(names(ELEMENTS - 1))}),
    Huge("AlterUserScramCredentials: many users deleted", 0, {0}, lambda w: without_users(names(WRITTEN))),
)
