"""acl, user and storage format --add-scram: good and bad calls on a running broker, and the keys of their JSON."""

from __future__ import annotations

import json
import stat
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.json_keys import documented, fitting, paths
from tests.support.processes.cli import Called, called
from tests.support.processes.served import ServedBroker  # not the kit: its directory is formatted before the start

pytestmark = pytest.mark.process

AUTHORIZER = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:ANONYMOUS",
)
SECRET = "planted-secret"  # in no output


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    """A broker with an authorizer, on a directory that was formatted with a first user."""
    data = tmp_path_factory.mktemp("secured") / "data"
    salt = b64encode(b"s" * 16).decode()
    users = data.parent / "users.txt"
    users.write_text(
        f"SCRAM-SHA-256=[name=first,password={SECRET}]\n"
        f'SCRAM-SHA-512=[name="first",iterations=8192,salt="{salt}",saltedpassword="{salt}"]\n'
    )
    formatted = called("storage", "format", str(data), "--node-id", "1", "--add-scram", f"@{users}")
    assert formatted.returncode == 0, formatted.stderr
    served = ServedBroker(data, *AUTHORIZER).start()
    yield served
    log = served.log()
    served.end()
    assert SECRET not in log


@pytest.fixture
def call(broker: ServedBroker) -> Any:
    def run(*arguments: str, stdin: str = "", **environment: str) -> Called:
        done = called(*arguments, stdin=stdin, environment={"BARNABAS_BOOTSTRAP": broker.address, **environment})
        assert SECRET not in done.stdout + done.stderr
        return done

    return run


def test_json_has_the_documented_keys(call: Any) -> None:
    known = {name: keys for name, keys in documented().items() if name.split()[0] in ("acl", "user")}
    calls = {
        "acl add": ("User:json", "read", "topic:json"),
        "acl list": (),
        "acl explain": ("User:json", "read", "topic:json"),
        "acl remove": ("User:json", "read", "topic:json", "--yes"),
        "user create": ("json",),
        "user list": (),
        "user delete": ("json", "--yes"),
    }
    assert known.keys() == calls.keys()
    for name, arguments in calls.items():
        done = call(*name.split(), *arguments, "--json", stdin=f"{SECRET}\n")
        assert done.returncode == 0, (name, done.stderr)
        assert fitting(paths(json.loads(done.stdout)), known[name]) == known[name], name


def test_acls_are_added_listed_explained_and_removed(call: Any) -> None:
    assert call("acl", "add", "User:alice", "read,write", "topic:orders", "group:g").returncode == 0
    assert call("acl", "add", "User:*", "all", "topic:or", "--prefixed", "--deny", "--host", "10.0.0.7").returncode == 0
    assert call("acl", "add", "User:alice", "cluster-action", "cluster").returncode == 0
    listed = call("acl", "list", "--resource", "topic:orders", "--match").stdout.splitlines()
    assert [line.split() for line in listed[1:]] == [
        ["topic:or", "prefixed", "User:*", "10.0.0.7", "all", "deny"],
        ["topic:orders", "literal", "User:alice", "*", "read", "allow"],
        ["topic:orders", "literal", "User:alice", "*", "write", "allow"],
    ]
    assert len(call("acl", "list", "--principal", "User:alice").stdout.splitlines()) == 6
    assert len(call("acl", "list", "--resource", "group").stdout.splitlines()) == 3

    def explained(*arguments: str) -> list[str]:
        return list(call("acl", "explain", *arguments).stdout.splitlines())

    assert explained("User:alice", "describe", "topic:orders") == [
        "User:alice may describe topic orders from 127.0.0.1",
        "rule: an ACL allows write on topic orders to User:alice from every host",
    ]
    assert explained("User:alice", "read", "topic:orders", "--host", "10.0.0.7") == [
        "User:alice may not read topic orders from 10.0.0.7",
        "rule: an ACL denies all on every topic that begins with or to User:* from 10.0.0.7",
    ]
    assert "super users are not known" in call("acl", "explain", "User:bob", "read", "topic:orders").stderr
    known = call("acl", "explain", "User:bob", "read", "topic:orders", "--super-user", "User:bob")
    assert known.stderr == ""
    for given, of_super_users in (
        ((), (False, "default", None)),
        (("--super-user", "User:bob"), (True, "super_user", True)),
        (("--super-user", "User:root"), (False, "default", False)),
    ):
        told = json.loads(call("acl", "explain", "User:bob", "read", "topic:orders", "--json", *given).stdout)
        assert (told["allowed"], told["rule"], told["super_user"]) == of_super_users
    assert explained("User:bob", "read", "topic:orders")[1] == "rule: no ACL allows it"
    assert explained("User:bob", "read", "topic:orders", "--super-user", "User:bob")[1].endswith("is a super user")
    assert (
        explained("User:bob", "read", "topic:x", "--allow-if-no-acl")[0] == "User:bob may read topic x from 127.0.0.1"
    )
    assert explained("User:alice", "cluster-action", "cluster")[1].startswith(
        "rule: an ACL allows cluster-action on the"
    )
    removed = call(
        "acl", "remove", "User:alice", "read,write,cluster-action", "topic:orders", "group:g", "cluster", "-y"
    )
    assert len(removed.stdout.splitlines()) == 6
    assert (
        call("acl", "remove", "User:*", "all", "topic:or", "--prefixed", "--deny", "--yes").returncode == 2
    )  # other host
    assert len(call("acl", "list").stdout.splitlines()) == 2


def test_users_are_created_listed_and_deleted(call: Any) -> None:
    assert call("user", "create", "bob", BARNABAS_USER_PASSWORD=SECRET).returncode == 0
    warned = called("user", "create", "bob", "--password", SECRET, "--mechanism", "SCRAM-SHA-512", "-b", "127.0.0.1:1")
    assert "the list of processes shows --password" in warned.stderr
    assert (
        call("user", "create", "bob", "--mechanism", "SCRAM-SHA-512", "--iterations", "5000", stdin=SECRET).returncode
        == 0
    )
    rows = [line.split() for line in call("user", "list").stdout.splitlines()[1:]]
    assert rows == [
        ["bob", "SCRAM-SHA-256", "4096"],
        ["bob", "SCRAM-SHA-512", "5000"],
        ["first", "SCRAM-SHA-256", "4096"],  # of storage format
        ["first", "SCRAM-SHA-512", "8192"],
    ]
    assert (
        call("user", "delete", "bob", "--yes").stdout
        == "user bob can no longer log in with SCRAM-SHA-256 and SCRAM-SHA-512\n"
    )
    assert call("user", "delete", "bob", "--yes").returncode == 1


WRONG = [
    (("acl", "add", "alice", "read", "topic:t"), "'alice' is no principal"),
    (("acl", "add", "User:a", "reed", "topic:t"), "unknown operation 'reed'"),
    (("acl", "add", "User:a", "read"), "name a resource"),
    (("acl", "add", "User:a", "read", "t"), "'t' is no resource"),
    (("acl", "add", "User:a", "read", "topic:"), "names no topic"),
    (("acl", "add", "User:a", "alter", "cluster:mine"), "the only cluster is kafka-cluster"),
    (("acl", "explain", "User:a", "read,write", "topic:t"), "is not one operation"),
    (("acl", "explain", "User:a", "all", "topic:t"), "is not one operation"),
    (("acl", "remove", "User:a", "read", "topic:t"), "confirm with y"),
    (("acl", "remove", "User:a", "read", "topic:t", "--yes"), "there is no such ACL"),
    (("user", "create", "a", "--iterations", "1"), "4096 to 16384"),
    (("user", "create", "a"), "the password has 0 characters"),
    (("user", "create", ""), "an empty text"),
    (("user", "create", "User:a"), "write the name alone, 'a'"),
    (("user", "delete", "a"), "confirm with y"),
    (("acl", "add", "user:a", "read", "topic:t"), "write User:a"),
    (("quota", "set", "--user", "User:a", "request_percentage=50"), "write the name alone, --user a"),
]


@pytest.mark.parametrize(("words", "reason"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_wrong_calls_change_nothing_and_exit_with_2(call: Any, words: tuple[str, ...], reason: str) -> None:
    done = call(*words, stdin="" if reason.startswith("the password") else f"{SECRET}\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr


def test_users_are_written_only_to_a_new_directory(tmp_path: Path) -> None:
    user = ("--add-scram", "SCRAM-SHA-256=[name=first,password=planted]")
    old = called("storage", "format", str(tmp_path / "old"), "--node-id", "1", "--release", "3.4", *user)
    assert (old.returncode, "3.5-IV2 or later" in old.stderr) == (2, True)
    assert called("storage", "format", str(tmp_path / "a"), "--node-id", "1").returncode == 0
    twice = called("storage", "format", str(tmp_path / "a"), "--node-id", "1", "--ignore-formatted", *user)
    assert (twice.returncode, "the users would not be written" in twice.stderr) == (1, True)
    wrong = called("storage", "format", str(tmp_path / "b"), "--node-id", "1", "--add-scram", "@nowhere")
    assert (wrong.returncode, (tmp_path / "b").exists()) == (2, False)
    assert "planted" not in old.stderr + twice.stderr + wrong.stderr


def test_a_cluster_begins_with_one_user_who_gives_rights_to_others(tmp_path: Path) -> None:
    """Its only listener asks for SCRAM, and an authorizer is on: no moment without them is needed."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"

    def properties(user: str) -> str:
        path = tmp_path / f"{user}.properties"
        path.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
            f'sasl.jaas.config={module} required username="{user}" password="{SECRET}";\n'
        )
        return str(path)

    first = f"SCRAM-SHA-512=[name=admin,password={SECRET}]"
    assert called("storage", "format", str(tmp_path / "data"), "--node-id", "1", "-S", first).returncode == 0
    settings = (
        "listeners=SASL_PLAINTEXT://127.0.0.1:0",
        "inter.broker.listener.name=SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=SCRAM-SHA-512",
        AUTHORIZER[0],
        "super.users=User:admin",
    )
    broker = ServedBroker(tmp_path / "data", *settings, listens=False).start()
    try:

        def run(user: str, *arguments: str, stdin: str = "") -> Called:
            at = ("-b", broker.address, "--command-config", properties(user))
            done = called(*arguments, *at, stdin=stdin)
            assert SECRET not in done.shown
            return done

        assert run("admin", "topic", "create", "orders", "--partitions", "1").returncode == 0
        assert run("alice", "topic", "list").returncode == 1  # she cannot log in
        assert run("admin", "user", "create", "alice", stdin=SECRET).returncode == 0
        hidden = run("alice", "topic", "list")
        assert (hidden.returncode, "orders" in hidden.stdout) == (0, False)
        assert run("alice", "user", "list").returncode == 1
        assert run("admin", "acl", "add", "User:alice", "read", "topic:orders").returncode == 0
        assert "orders" in run("alice", "topic", "list").stdout
        assert run("alice", "topic", "delete", "orders").returncode == 1
        assert run("admin", "user", "delete", "alice", "--yes").returncode == 0
        assert run("alice", "topic", "list").returncode == 1
        assert "is Denied operation = DELETE" in broker.log()
        assert SECRET not in broker.log()
    finally:
        broker.end()


def test_only_their_owner_reads_the_keys_of_first_users(tmp_path: Path) -> None:
    """Also in a directory that others may read."""
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    user = ("--add-scram", "SCRAM-SHA-256=[name=first,password=planted]")
    assert called("storage", "format", str(data), "--node-id", "1", *user).returncode == 0
    assert stat.S_IMODE((data / "bootstrap.checkpoint").stat().st_mode) == 0o600
    assert sorted(each.name for each in data.iterdir()) == ["bootstrap.checkpoint", "meta.properties"]
