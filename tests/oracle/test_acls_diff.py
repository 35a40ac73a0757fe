"""The same requests about ACLs and SCRAM users to Kafka and to Barnabas: the same answers, codes and words."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from tests.support.oracle.acl_requests import (
    acl,
    alter_users,
    create_acls,
    delete_acls,
    deletion,
    describe_acls,
    describe_users,
    matching,
    upsertion,
)
from tests.support.oracle.admin_requests import SETTLED_SECONDS_MAX, Observe
from tests.support.oracle.wire import Wire

pytestmark = pytest.mark.oracle

DESCRIBES = "observe_now"  # may be asked again
NUMBERS = (0, 1, 2, 8, 99, -1)
ALL = matching()

ACLS: dict[str, Sequence[Observe]] = {
    "one": [
        create_acls(acl()),
        create_acls(acl()),
        create_acls(acl("twice"), acl("twice")),
        create_acls(),
        describe_acls(ALL),
        *(describe_acls(matching("t", pattern=pattern)) for pattern in (1, 2, 3, 4)),
        *(create_acls(acl("old"), version=version) for version in (1, 2)),
        *(describe_acls(ALL, version=version) for version in (1, 2)),
        *(delete_acls(matching("old"), version=version) for version in (1, 2)),
    ],
    "wrong elements": [
        *(create_acls(acl(kind=number)) for number in NUMBERS if number != 2),
        *(create_acls(acl(pattern=number)) for number in NUMBERS),
        *(create_acls(acl(operation=number)) for number in NUMBERS if number not in (2, 8)),
        *(create_acls(acl(permission=number)) for number in NUMBERS if number != 2),
        create_acls(acl("good"), acl(kind=1), acl("")),
        create_acls(acl("good"), acl("", kind=99), acl(kind=99, pattern=99), acl(pattern=99, operation=99)),
        create_acls(acl(operation=99, permission=99), acl(permission=99, principal="x"), acl(principal="x")),
        create_acls(acl("good"), acl(principal=""), acl("also good")),
        describe_acls(ALL),
    ],
    "names": [
        create_acls(acl(""), acl("x" * 250), acl("a b/"), acl("*", pattern=4), acl("."), acl("*")),
        create_acls(*(acl(name, kind=4, operation=7) for name in ("", "*", "foo", "kafka-cluster"))),
        create_acls(*(acl(name, kind=4, operation=7, pattern=4) for name in ("kafka", "kafka-cluster"))),
        create_acls(*(acl("p", principal=each) for each in ("alice", "Group:x", ":x", "User:", "User:a:b", "User:*"))),
        create_acls(*(acl("h", host=each) for each in ("", "example.com", "10.0.0.0/8", "::1"))),
        create_acls(acl("User:a", kind=7, operation=13), acl("o", operation=9), acl("g", kind=3, operation=4)),
        describe_acls(ALL),
    ],
    "filters": [
        create_acls(
            acl("a"),
            acl("ab", pattern=4),
            acl("a", pattern=4, permission=2),
            acl("*", operation=2),
            acl("*", kind=3),
            acl("abc", kind=3, principal="User:b", host="10.0.0.1"),
        ),
        *(
            describe_acls(matching(name, kind=kind, pattern=pattern))
            for name in (None, "a", "ab", "abc", "*", "")
            for kind in (1, 2, 3)
            for pattern in (1, 2, 3, 4)
        ),
        *(describe_acls(matching(principal=each)) for each in ("User:a", "User:b", "User:*", "a", "")),
        *(describe_acls(matching(host=each)) for each in ("*", "10.0.0.1", "")),
        *(describe_acls(matching(operation=number)) for number in (0, 2, 3, 99)),
        *(describe_acls(matching(permission=number)) for number in (0, 2, 3, 99)),
        *(describe_acls(matching(kind=number)) for number in (0, 4, 99)),
        *(describe_acls(matching(pattern=number)) for number in (0, 99)),
        delete_acls(),
        delete_acls(matching("none")),
        delete_acls(matching(kind=0)),
        delete_acls(matching("a"), matching(operation=0)),
        delete_acls(matching("ab", pattern=2, kind=2), matching("a", pattern=4), matching("a", kind=2)),
        delete_acls(matching(principal="User:b"), matching(principal="nobody")),
        describe_acls(ALL),
    ],
    "many": [
        create_acls(*(acl(f"n{number}") for number in range(10_001))),
        describe_acls(ALL),
        create_acls(*(acl(f"n{number}") for number in range(6_000))),
        create_acls(*(acl(f"n{number}") for number in range(10_000))),
        create_acls(acl("one more")),
        delete_acls(matching("n1"), ALL),
        delete_acls(matching("n1"), matching("n2")),
        delete_acls(matching("one more")),
        delete_acls(ALL),
    ],
}
USERS: dict[str, Sequence[Observe]] = {
    "one": [
        alter_users(),
        describe_users(),
        describe_users(null=True),
        alter_users(upsertion()),
        alter_users(upsertion(mechanism=2, iterations=16_384)),
        describe_users("u"),
        describe_users("u", "u"),
        describe_users("u", "nobody", "", "u"),
        alter_users(deletion()),
        alter_users(deletion()),
        describe_users(),
    ],
    "wrong": [
        *(alter_users(upsertion(iterations=number)) for number in (0, -1, 4_095, 4_096, 16_384, 16_385)),
        *(alter_users(upsertion(mechanism=number)) for number in (-1, 0, 3)),
        *(alter_users(deletion(mechanism=number)) for number in (-1, 0, 2, 3)),
        alter_users(upsertion("", 0), deletion("", 0)),
        alter_users(upsertion("")),
        alter_users(upsertion(mechanism=0, iterations=1)),
        alter_users(upsertion(salt=b"", salted=b"x")),
        alter_users(upsertion(salted=b""), upsertion("good")),
        alter_users(upsertion("n" * 300), upsertion("a,b=c é")),
        describe_users(),
    ],
    "twice": [
        alter_users(upsertion(), upsertion(mechanism=2)),
        alter_users(upsertion(), upsertion(), upsertion()),
        alter_users(upsertion()),
        alter_users(upsertion(), deletion()),
        alter_users(deletion(), deletion()),
        alter_users(deletion(), deletion(mechanism=2)),
        alter_users(upsertion("x"), upsertion("y", iterations=1), upsertion("x", 2, 1), deletion("z")),
        describe_users(),
    ],
}
NO_ACLS = delete_acls(ALL)
NO_USERS = [alter_users(deletion(name)) for name in ("u", "good", "n" * 300, "a,b=c é", "y", "x")]


def compare(kafka: str, barnabas: str, steps: Sequence[Observe]) -> None:
    with Wire(kafka) as theirs, Wire(barnabas) as ours:
        for step, observe in enumerate(steps):
            expected, answer = observe(theirs), observe(ours)
            deadline = time.monotonic() + SETTLED_SECONDS_MAX
            # Kafka answers a change before its broker has replayed it.
            while answer != expected and observe.__name__ == DESCRIBES and time.monotonic() < deadline:
                time.sleep(0.05)
                expected = observe(theirs)
            assert answer == expected, f"step {step}"


@pytest.mark.parametrize("script", ACLS)
def test_answers_about_acls_are_those_of_kafka(authorized_kafka: str, authorized_barnabas: str, script: str) -> None:
    compare(authorized_kafka, authorized_barnabas, [*ACLS[script], NO_ACLS, describe_acls(ALL)])


@pytest.mark.parametrize("script", USERS)
def test_answers_about_users_are_those_of_kafka(kafka: str, barnabas: str, script: str) -> None:
    compare(kafka, barnabas, [*USERS[script], *NO_USERS, describe_users()])


def test_without_an_authorizer_acls_are_refused_as_by_kafka(kafka: str, barnabas: str) -> None:
    steps = [
        create_acls(acl(), acl(principal="x")),
        create_acls(acl(kind=1)),
        create_acls(acl(kind=0)),
        create_acls(),
        describe_acls(ALL),
        describe_acls(matching(kind=0)),
        delete_acls(ALL, matching("t")),
        delete_acls(),
    ]
    compare(kafka, barnabas, steps)
