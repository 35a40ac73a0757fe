"""Arguments of `barnabas acl add`: hosts as brokers compare them; an ACL that could match nothing is refused."""

from __future__ import annotations

import pytest

from barnabas.cli.acl import _acls, _check_effect, _compared_host


@pytest.mark.parametrize(
    ("given", "compared"),
    [
        ("*", "*"),
        ("10.0.0.7", "10.0.0.7"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:DB8::0a", "2001:db8:0:0:0:0:0:a"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
    ],
)
def test_addresses_are_written_as_java_writes_them(given: str, compared: str) -> None:
    assert _compared_host(given) == compared


@pytest.mark.parametrize("host", ["localhost", "10.0.0.0/8", "10.0.0.*", "10.0.0", "user@10.0.0.1", "١٠.0.0.7"])
def test_hosts_that_match_no_client_are_refused(host: str) -> None:
    with pytest.raises(ValueError, match="match no client"):
        _compared_host(host)


@pytest.mark.parametrize(
    ("principal", "operations", "resource", "prefixed", "reason"),
    [
        ("user:alice", "read", "topic:x", False, "write User:alice"),
        (
            "User:alice",
            "create",
            "group:x",
            False,
            "group has no operation create; it has read, describe, delete, desc",
        ),
        ("User:alice", "read", "cluster", False, "cluster has no operation read; it has create, cluster-action"),
        ("User:alice", "read,create-tokens", "topic:x", False, "none of the resources has an operation create-tokens"),
        ("User:alice", "read", "topic:a*", False, "topic:a --prefixed"),
        ("User:alice", "read", "group:*", True, r"group:\* without --prefixed"),
        ("User:alice", "read", "topic:ü", False, "no name of a topic"),
        ("User:alice", "create-tokens", "user:bob", False, "write user:User:bob"),
    ],
)
def test_acls_that_could_match_nothing_are_refused(
    principal: str, operations: str, resource: str, prefixed: bool, reason: str
) -> None:
    acls = _acls(principal, operations, [resource], prefixed=prefixed, deny=True, host="*")
    with pytest.raises(ValueError, match=reason):
        _check_effect(acls)


@pytest.mark.parametrize(
    ("operations", "resources", "prefixed"),
    [
        ("read,write", ["topic:x", "group:ü*ü"], False),
        ("all", ["cluster", "topic:*", "group:x", "transactional-id:*", "delegation-token:x", "user:*"], False),
        ("create-tokens", ["user:User:"], True),
        ("read", ["topic:a."], True),
    ],
)
def test_other_acls_are_accepted(operations: str, resources: list[str], prefixed: bool) -> None:
    _check_effect(_acls("CN:a", operations, resources, prefixed=prefixed, deny=False, host="*"))
