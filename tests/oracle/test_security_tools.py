"""kafka-acls, kafka-configs, kafka-storage, librdkafka and kafka-python about ACLs and users: against Kafka and Barnabas the same."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from barnabas.broker.image.records import UserScramCredentialRecord, decode_record
from barnabas.broker.quorum.core.snapshots import decode_snapshot
from tests.support.oracle.tools import tool
from tests.support.processes.cli import called

pytestmark = pytest.mark.oracle

SETTLED_SECONDS_MAX = 60.0


def settled(found: Callable[[], Any], expected: Any) -> Any:
    """The value once it is the expected one: Kafka answers a change before its broker has replayed it."""
    deadline = time.monotonic() + SETTLED_SECONDS_MAX
    value = found()
    while value != expected and time.monotonic() < deadline:
        time.sleep(0.05)
        value = found()
    return value


def kafka_acls(address: str) -> list[list[str]]:
    def run(*arguments: str) -> list[str]:
        output = tool("AclCommand", "--bootstrap-server", address, *arguments)
        return sorted(line.strip() for line in output.replace(address, "ADDRESS").splitlines() if line.strip())

    alice = ("--allow-principal", "User:alice")
    return [
        run("--add", *alice, "--producer", "--topic", "tools", "--transactional-id", "tools"),
        run("--remove", *alice, "--operation", "Write", "--topic", "tools", "--force"),
        run("--list", "--topic", "tools", "--resource-pattern-type", "match"),
    ]


def kafka_configs(address: str) -> list[list[str]]:
    def run(*arguments: str) -> list[str]:
        user = ("--entity-type", "users", "--entity-name", "tools")
        output = tool("kafka.admin.ConfigCommand", "--bootstrap-server", address, *user, *arguments)
        return sorted(re.sub(r"\s+", " ", line).strip() for line in output.splitlines() if line.strip())

    return [run("--alter", "--add-config", "SCRAM-SHA-256=[iterations=8192,password=secret]"), run("--describe")]


def test_kafka_tools_print_the_same(authorized_kafka: str, authorized_barnabas: str) -> None:
    assert kafka_acls(authorized_barnabas) == kafka_acls(authorized_kafka)
    assert kafka_configs(authorized_barnabas) == kafka_configs(authorized_kafka)


def librdkafka_acls(address: str) -> list[Any]:
    admin: Any = AdminClient({"bootstrap.servers": address})
    allow, deny = AclPermissionType.ALLOW, AclPermissionType.DENY
    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    acls = [
        AclBinding(ResourceType.TOPIC, "rd", literal, "User:alice", "*", AclOperation.READ, allow),
        AclBinding(ResourceType.GROUP, "rd", prefixed, "User:*", "10.0.0.7", AclOperation.ALL, deny),
    ]
    wrong = AclBinding(ResourceType.TOPIC, "rd", literal, "alice", "*", AclOperation.READ, allow)
    for future in admin.create_acls(acls).values():
        future.result(60)
    with pytest.raises(Exception, match="Could not parse principal") as refused:
        next(iter(admin.create_acls([wrong]).values())).result(60)
    anyone: Any = None
    of_rd = AclBindingFilter(
        ResourceType.ANY, "rd", ResourcePatternType.ANY, anyone, anyone, AclOperation.ANY, AclPermissionType.ANY
    )

    def described() -> list[str]:
        return sorted(map(str, admin.describe_acls(of_rd).result(60)))

    found = settled(described, sorted(map(str, acls)))
    deleted = sorted(map(str, next(iter(admin.delete_acls([of_rd]).values())).result(60)))
    return [found, deleted, settled(described, []), str(refused.value)]


def librdkafka_users(address: str) -> list[Any]:
    admin: Any = AdminClient({"bootstrap.servers": address})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 5_000)

    def described() -> Any:
        try:
            found = admin.describe_user_scram_credentials(["rd"])["rd"].result(60)
        except Exception as error:
            return str(error)
        return [(each.mechanism.name, each.iterations) for each in found.scram_credential_infos]

    change = UserScramCredentialUpsertion("rd", info, b"secret", b"0123456789abcdef")
    admin.alter_user_scram_credentials([change])["rd"].result(60)
    found = settled(described, [("SCRAM_SHA_512", 5_000)])
    removal = UserScramCredentialDeletion("rd", ScramMechanism.SCRAM_SHA_512)
    admin.alter_user_scram_credentials([removal])["rd"].result(60)
    with pytest.raises(Exception, match="does not exist") as refused:
        settled(lambda: admin.alter_user_scram_credentials([removal])["rd"].result(60), None)
    return [found, str(refused.value)]


def test_librdkafka_gets_the_same_answers(authorized_kafka: str, authorized_barnabas: str) -> None:
    assert librdkafka_acls(authorized_barnabas) == librdkafka_acls(authorized_kafka)
    assert librdkafka_users(authorized_barnabas) == librdkafka_users(authorized_kafka)


def kafka_python_acls(address: str) -> list[Any]:
    from kafka.admin import (
        ACL,
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        KafkaAdminClient,
        ResourcePattern,
        ResourcePatternFilter,
    )
    from kafka.admin import ResourceType as Kind

    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        pattern = ResourcePattern(Kind.TOPIC, "python")
        acl = ACL("User:alice", "*", ACLOperation.WRITE, ACLPermissionType.ALLOW, pattern)
        created = admin.create_acls([acl])
        from kafka.admin import ACLResourcePatternType

        any_pattern = ResourcePatternFilter(Kind.TOPIC, "python", ACLResourcePatternType.ANY)
        wanted = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, any_pattern)

        def described() -> str:
            return repr(admin.describe_acls(wanted)[0])

        found = settled(described, repr([acl]))
        admin.delete_acls([wanted])
        return [len(created["succeeded"]), len(created["failed"]), found, settled(described, "[]")]
    finally:
        admin.close()


def kafka_python_users(address: str) -> list[Any]:
    from kafka.admin import KafkaAdminClient
    from kafka.admin._users import ScramMechanism as Mechanism
    from kafka.admin._users import UserScramCredentialDeletion as Deletion
    from kafka.admin._users import UserScramCredentialUpsertion as Upsertion

    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        upserted = admin.alter_user_scram_credentials(
            [Upsertion("py", Mechanism.SCRAM_SHA_256, "secret", iterations=4_096)]
        )

        def described() -> str:
            return repr(admin.describe_user_scram_credentials(["py"]))

        expected = repr(
            {"py": {"error": None, "credential_infos": [{"mechanism": Mechanism.SCRAM_SHA_256, "iterations": 4_096}]}}
        )
        found = settled(described, expected)
        deleted = admin.alter_user_scram_credentials([Deletion("py", Mechanism.SCRAM_SHA_256)])
        again = admin.alter_user_scram_credentials([Deletion("py", Mechanism.SCRAM_SHA_256)])
        return [upserted, found, deleted, again]
    finally:
        admin.close()


def test_kafka_python_gets_the_same_answers(authorized_kafka: str, authorized_barnabas: str) -> None:
    answers = kafka_python_acls(authorized_barnabas)
    assert answers == kafka_python_acls(authorized_kafka)
    assert answers[:2] == [1, 0]
    assert kafka_python_users(authorized_barnabas) == kafka_python_users(authorized_kafka)


def test_a_first_user_is_written_as_by_kafka_storage(tmp_path: Path) -> None:
    arguments = (
        'SCRAM-SHA-256=[name=alice,iterations=8192,salt="MDEyMzQ1Njc4OWFiY2RlZg==",password=alice-secret]',
        'SCRAM-SHA-512=[name="bob",salt="MDEyMzQ1Njc4OWFiY2RlZg==",saltedpassword="MDEyMzQ1Njc4OWFiY2RlZg=="]',
    )
    users = [word for argument in arguments for word in ("--add-scram", argument)]
    cluster_id = "5L6g3nShT-eMCtKaX86swQ"
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    settings = tmp_path / "server.properties"
    settings.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:9093\n"
        "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\ncontroller.listener.names=CONTROLLER\n"
        f"log.dirs={theirs}\n"
    )
    tool("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(settings), *users)
    done = called("storage", "format", str(ours), "--node-id", "1", "--cluster-id", cluster_id, *users)
    assert done.returncode == 0, done.stderr

    def credentials(folder: Path) -> list[Any]:
        values = decode_snapshot((folder / "bootstrap.checkpoint").read_bytes())
        return [
            (each.name, each.mechanism, each.salt, each.stored_key, each.server_key, each.iterations)
            for each in map(decode_record, values)
            if isinstance(each, UserScramCredentialRecord)
        ]

    assert credentials(ours) == credentials(theirs)
    assert len(credentials(ours)) == 2


def test_explain_applies_the_rules_to_the_acls_of_kafka(authorized_kafka: str) -> None:
    at = ("-b", authorized_kafka)
    assert called("acl", "add", "User:alice", "write", "topic:explained-", "--prefixed", *at).returncode == 0
    expected = "User:alice may describe topic explained-1 from 127.0.0.1"

    def explained() -> list[str]:
        return called("acl", "explain", "User:alice", "describe", "topic:explained-1", *at).stdout.splitlines()

    assert settled(lambda: explained()[0], expected) == expected
    assert explained()[1].startswith("rule: an ACL allows write on every topic that begins with explained-")
    assert called("acl", "remove", "User:alice", "write", "topic:explained-", "--prefixed", "-y", *at).returncode == 0
