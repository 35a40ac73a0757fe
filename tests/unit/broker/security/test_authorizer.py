"""The authorizer: Kafka's answers to generated questions, the cache, changes of ACLs, audit lines."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from barnabas.broker.api.access import Access
from barnabas.broker.api.principal import USER, Principal
from barnabas.broker.authorization import authorizer as module
from barnabas.broker.authorization.authorizer import Authorizer, java_address
from barnabas.broker.config.authorizer_settings import AuthorizerSettings, authorizer_settings
from barnabas.broker.config.table import AUTHORIZER_CLASS
from barnabas.broker.image.image import AclImage, MetadataDelta, MetadataImage, difference
from barnabas.errors import BrokerError
from barnabas.loggers import TRACE
from barnabas.protocol.acls import AclOperation, AclPermission, AclResourceType, PatternType
from barnabas.work import finished
from tests.support.oracle.authorizer_worlds import GOLDEN, World, audit_part, fingerprint, worlds

O, T = AclOperation, AclResourceType  # noqa: E741
ALICE = Principal(USER, "alice")
HOST = "127.0.0.1"
NO_SETTINGS = AuthorizerSettings()


def acl(
    name: str,
    operation: AclOperation,
    principal: str = "User:alice",
    *,
    kind: AclResourceType = T.TOPIC,
    pattern: PatternType = PatternType.LITERAL,
    host: str = "*",
    permission: AclPermission = AclPermission.ALLOW,
) -> AclImage:
    return AclImage(kind, name, pattern, principal, host, operation, permission)


def image_of(acls: Sequence[AclImage]) -> MetadataImage:
    return MetadataImage(acls={number.to_bytes(16, "big"): each for number, each in enumerate(acls)})


def publish(authorizer: Authorizer, former: MetadataImage, image: MetadataImage, *, prepared: bool = True) -> None:
    delta: MetadataDelta = finished(difference(former, image))
    if prepared:
        finished(authorizer.follow(image, delta))
    authorizer.on_image(former, image, delta)


def made(*acls: AclImage, settings: AuthorizerSettings = NO_SETTINGS) -> tuple[Authorizer, MetadataImage]:
    authorizer = Authorizer(settings, lambda: True)
    image = image_of(acls)
    publish(authorizer, MetadataImage(), image)
    return authorizer, image


def answers(world: World, authorizer: Authorizer) -> str:
    signs = []
    for question in world.questions:
        access = authorizer.access(Principal(USER, question.user), question.host).asked_by(1)
        if question.name is None:
            allowed = access.allows_any(question.operation, question.resource_type)
        else:
            allowed = access.allows(question.operation, question.resource_type, question.name, references=2)
        signs.append("+" if allowed else "-")
    return "".join(signs)


def authorizer_of(world: World) -> Authorizer:
    static = {
        "authorizer.class.name": AUTHORIZER_CLASS,
        "super.users": world.super_users,
        "allow.everyone.if.no.acl.found": str(world.allow_if_no_acl),
    }
    settings = authorizer_settings(static, controller=False)
    assert settings is not None
    return made(*world.acls, settings=settings)[0]


@pytest.fixture(scope="module")
def kafka_said() -> Any:
    golden = json.loads(GOLDEN.read_text())
    assert golden["questions"] == fingerprint(worlds()), "run python -m tests.support.oracle.authorizer_worlds"
    return golden


def test_decides_as_kafka_about_all_generated_questions(kafka_said: Any) -> None:
    found = "".join(answers(world, authorizer_of(world)) for world in worlds())
    assert len(found) >= 3_000
    assert found == kafka_said["answers"]


def test_decides_the_same_from_cache_and_after_changes(kafka_said: Any) -> None:
    """An index that was made by adding and removing ACLs one by one answers as one that was made at once."""
    found = ""
    for world in worlds():
        authorizer = authorizer_of(world._replace(acls=world.acls[: len(world.acls) // 2]))
        image = image_of(world.acls[: len(world.acls) // 2])
        answers(world, authorizer)
        others = [acl("other", O.ALL, pattern=PatternType.PREFIXED), acl("f", O.ALL, pattern=PatternType.PREFIXED)]
        for acls in (others, [*others, *world.acls], world.acls):
            following = image_of(acls)
            publish(authorizer, image, following, prepared=len(acls) % 2 == 0)
            image = following
        answers(world, authorizer)
        found += answers(world, authorizer)
    assert found == kafka_said["answers"]


def test_audit_lines_are_those_of_kafka(kafka_said: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "barnabas.kafka.authorizer.logger")
    for world in worlds():
        answers(world, authorizer_of(world))
    found = audit_part([f"{each.levelname} {each.getMessage()}" for each in caplog.records])
    assert found["audit"] == kafka_said["audit"]
    assert found["audit_sha256"] == kafka_said["audit_sha256"]


def test_a_deny_does_not_imply_and_an_allow_does() -> None:
    denied = acl("t", O.READ, permission=AclPermission.DENY)
    authorizer, _ = made(denied, acl("t", O.WRITE), acl("t", O.ALTER_CONFIGS))
    access = authorizer.access(ALICE, HOST)
    asked = (O.READ, O.WRITE, O.DESCRIBE, O.DESCRIBE_CONFIGS, O.DELETE)
    assert [access.allows(each, T.TOPIC, "t") for each in asked] == [False, True, True, True, False]
    allowed = (O.WRITE, O.DESCRIBE, O.DESCRIBE_CONFIGS, O.ALTER_CONFIGS)
    assert access.operations(T.TOPIC, "t") == sum(1 << each for each in allowed)


def test_an_acl_of_anyone_ends_the_default_for_its_resource() -> None:
    settings = AuthorizerSettings(allow_if_no_acl=True)
    authorizer, _ = made(acl("p", O.READ, "User:bob", pattern=PatternType.PREFIXED), settings=settings)
    access = authorizer.access(ALICE, HOST)
    assert access.allows(O.READ, T.TOPIC, "other")
    assert not access.allows(O.READ, T.TOPIC, "p-1")
    assert access.allows(O.READ, T.GROUP, "p-1")


def test_a_change_applies_to_the_next_question_of_an_open_connection() -> None:
    authorizer, image = made()
    access = authorizer.access(ALICE, HOST).asked_by(0)
    assert not access.allows(O.WRITE, T.TOPIC, "t")
    following = image_of([acl("t", O.WRITE)])
    delta: MetadataDelta = finished(difference(image, following))
    finished(authorizer.follow(following, delta))
    assert not access.allows(O.WRITE, T.TOPIC, "t")  # prepared, not published
    authorizer.on_image(image, following, delta)
    assert access.allows(O.WRITE, T.TOPIC, "t")
    unrelated = replace(following, offset=9)
    authorizer.on_image(following, unrelated, MetadataDelta())
    assert access.allows(O.WRITE, T.TOPIC, "t")
    publish(authorizer, unrelated, MetadataImage())
    assert not access.allows(O.WRITE, T.TOPIC, "t")


def test_before_the_metadata_is_loaded_only_super_users_pass() -> None:
    loaded: list[bool] = []
    settings = AuthorizerSettings(frozenset({"User:admin"}), allow_if_no_acl=True)
    authorizer = Authorizer(settings, lambda: bool(loaded))
    assert authorizer.access(Principal(USER, "admin"), HOST).allows(O.CLUSTER_ACTION, T.CLUSTER)
    access = authorizer.access(ALICE, HOST)
    with pytest.raises(BrokerError, match="not loaded"):
        access.allows(O.READ, T.TOPIC, "t")
    with pytest.raises(BrokerError, match="not loaded"):
        access.allows_any(O.READ, T.TOPIC)
    loaded.append(True)
    assert access.allows(O.READ, T.TOPIC, "t")


def test_explain_names_the_acl() -> None:
    deny = acl("secret", O.ALL, "User:*", pattern=PatternType.PREFIXED, permission=AclPermission.DENY)
    authorizer, _ = made(acl("*", O.READ), deny)
    assert authorizer.explain("User:alice", HOST, O.READ, T.TOPIC, "secret-1").acl == deny
    assert authorizer.explain("User:alice", HOST, O.READ, T.TOPIC, "open").acl == acl("*", O.READ)
    assert authorizer.explain("User:bob", HOST, O.READ, T.TOPIC, "open").rule == "DefaultDeny"


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED_MAX", 50)
    monkeypatch.setattr(module, "CACHED_OF_CLIENT_MAX", 20)
    authorizer, _ = made(acl("t", O.READ, pattern=PatternType.PREFIXED))
    accesses = [authorizer.access(Principal(USER, name), HOST) for name in ("alice", "bob", "carol", "dave")]
    most = 0
    for number in range(300):
        access = accesses[number % 4]
        assert access.allows(O.READ, T.TOPIC, f"t{number}") == (access.principal == ALICE)
        assert not access.allows(O.WRITE, T.TOPIC, "t" * 600)
        most = max(most, sum(len(each) for each in authorizer._cached.values()))
    assert 20 <= most <= 50


def test_an_idle_connection_keeps_no_decisions_that_were_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client chooses the names, and may open many connections: all of them together keep what the cache may hold."""
    monkeypatch.setattr(module, "CACHED_MAX", 50)
    authorizer, _ = made(acl("t", O.READ))
    accesses = [authorizer.access(Principal(USER, f"u{number}"), HOST) for number in range(20)]
    for number, access in enumerate(accesses):
        for name in range(30):
            assert not access.allows(O.READ, T.TOPIC, f"t{number}-{name}")
    assert sum(len(access._cached) for access in accesses) <= 50


def test_lines_are_written_by_level(caplog: pytest.LogCaptureFixture) -> None:
    authorizer, _ = made(acl("t", O.READ))
    access: Access = authorizer.access(ALICE, HOST).asked_by(1)
    for level, expected in ((logging.INFO, ["INFO"]), (logging.DEBUG, ["DEBUG", "INFO"]), (TRACE, ["DEBUG", "INFO"])):
        caplog.clear()
        caplog.set_level(level, "barnabas.kafka.authorizer.logger")
        access.allows(O.READ, T.TOPIC, "t")
        access.allows(O.WRITE, T.TOPIC, "t")
        access.allows(O.WRITE, T.TOPIC, "t", log=False)
        found = [each.levelname for each in caplog.records]
        assert found[: len(expected)] == expected
        assert len(found) == len(expected) + (level == TRACE)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::a%eth0", "fe80:0:0:0:0:0:0:a%eth0"),
        ("?", "?"),
    ],
)
def test_hosts_are_written_as_java_does(text: str, shown: str) -> None:
    assert java_address(text) == shown


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (
            "authorizer.class.name",
            "my.Authorizer",
            "only Kafka's org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        ),
        ("super.users", "admin", "write TYPE:NAME"),
        ("super.users", " ; ", "no broker can register: authorizer.class.name=org"),
    ],
)
def test_wrong_settings_are_refused(key: str, value: str, expected: str) -> None:
    static = {"authorizer.class.name": AUTHORIZER_CLASS, "super.users": "User:a", key: value}
    with pytest.raises(BrokerError, match=expected):
        authorizer_settings(static, controller=True)


def test_without_a_class_there_is_no_authorizer() -> None:
    assert authorizer_settings({"authorizer.class.name": " "}, controller=True) is None
