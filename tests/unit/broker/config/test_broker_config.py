"""BrokerConfig: Kafka's keys and defaults, server.properties, layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.entries import broker_entries, cluster_entries, topic_entries
from barnabas.broker.config.key import ConfigSource
from barnabas.broker.config.properties import parse_properties
from barnabas.broker.config.table import SERVER_KEYS, TOPIC_KEYS, unserved
from barnabas.broker.config.topic_config import log_config, topic_value, validate_topic_config
from barnabas.broker.controller.core.config_remarks import remarks
from barnabas.errors import BrokerError, ErrorCode, LocalProtocolError
from barnabas.storage.log_config import LogConfig

KAFKA = json.loads((Path(__file__).parents[3] / "golden" / "metadata" / "config-defaults.json").read_text())

OURS = {
    "broker.probe.enable",
    "metrics.listen",
    "record.validation",
    "cluster.id",
    "delegation.token.max.per.owner",
}  # keys that Kafka does not have

HIDDEN_IN_KAFKA = {"producer.id.expiration.check.interval.ms"}

# What Kafka 4.3.1 takes and does not describe: internal keys, keys that are dynamic alone, and those of the authorizer.
NOT_DESCRIBED_BY_KAFKA = {
    "allow.everyone.if.no.acl.found",
    "super.users",
    "controller.performance.always.log.threshold.ms",
    "controller.performance.sample.period.ms",
    "follower.replication.throttled.rate",
    "group.consumer.regex.refresh.interval.ms",
    "internal.metadata.delete.delay.millis",
    "internal.metadata.log.segment.bytes",
    "internal.metadata.max.batch.size.in.bytes",
    "leader.replication.throttled.rate",
    "log.initial.task.delay.ms",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "replication.quota.window.num",
    "replication.quota.window.size.seconds",
    "server.max.startup.time.ms",
    "unclean.leader.election.interval.ms",
    "unstable.api.versions.enable",
    "unstable.feature.versions.enable",
}

OTHER_DEFAULT = {
    "controller.quorum.append.linger.ms",
    "transaction.two.phase.commit.enable",
    "metric.reporters",  # a Java class
    "socket.listen.backlog.size",  # a fleet of clients that reconnects at once finds room
    "socket.receive.buffer.bytes",  # Linux finds a better size for each connection
    "socket.send.buffer.bytes",
}

# In Kafka these take effect with a new listener only; here there are no new listeners at run time.
NOT_DYNAMIC_HERE = {
    "config.providers",  # only the file declares them
    "listeners",
    "listener.security.protocol.map",
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.keymanager.algorithm",
    "ssl.protocol",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
}


STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def test_types_and_defaults_are_kafkas() -> None:
    differences: list[tuple[str, str, Any, Any]] = []
    for name, key in SERVER_KEYS.items():
        if name in OURS | HIDDEN_IN_KAFKA | NOT_DESCRIBED_BY_KAFKA:
            continue
        kind, default, read_only = KAFKA["broker"][name]
        if key.type != kind:
            differences.append((name, "type", key.type, kind))
        if key.render(key.default) != default and name not in OTHER_DEFAULT:
            differences.append((name, "default", key.render(key.default), default))
        if key.dynamic == read_only and name not in NOT_DYNAMIC_HERE:
            differences.append((name, "dynamic", key.dynamic, not read_only))
    assert differences == []


@pytest.mark.parametrize("name", sorted({*KAFKA["broker"], *NOT_DESCRIBED_BY_KAFKA}))
def test_every_key_of_kafka_has_its_effect_or_is_known_to_have_none(name: str) -> None:
    assert (name in SERVER_KEYS) != (unserved(name) is not None)


def test_topic_keys_are_all_of_kafkas_with_its_defaults_and_synonyms() -> None:
    config = BrokerConfig()
    assert set(TOPIC_KEYS) == set(KAFKA["topic"])
    for entry in topic_entries(config, {}):
        kind, default, synonym = KAFKA["topic"][entry.name]
        assert (entry.name, entry.type, entry.value) == (entry.name, kind, default)
        listed = entry.synonyms[0].name if entry.synonyms else None
        assert (entry.name, listed) == (entry.name, synonym)


@pytest.mark.parametrize("key", [*SERVER_KEYS.values(), *TOPIC_KEYS.values()], ids=lambda key: key.name)
def test_every_default_passes_its_own_check_and_reads_back(key: Any) -> None:
    text = key.render(key.default)
    if text is not None:
        assert key.parse(text) == key.default
    assert key.doc.endswith(".")


def test_topic_keys_fall_back_on_keys_that_are_there() -> None:
    for entry in TOPIC_KEYS.values():
        for synonym in entry.synonyms:
            assert synonym in SERVER_KEYS


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("num.partitions", "0"),
        ("num.partitions", "1.5"),
        ("broker.heartbeat.interval.ms", "0"),
        ("replica.lag.time.max.ms", "-1"),
        ("offsets.topic.compression.codec", "5"),
        ("num.partitions", "2147483648"),
        ("num.partitions", ""),
        ("log.retention.ms", "9223372036854775808"),
        ("offsets.topic.replication.factor", "40000"),
        ("log.cleanup.policy", "delete,shred"),
        ("compression.type", "rar"),
        ("auto.create.topics.enable", "yes"),
        ("log.cleaner.min.cleanable.ratio", "1.1"),
        ("process.roles", "king"),
        ("group.coordinator.rebalance.protocols", "consumer"),
        ("group.coordinator.rebalance.protocols", "classic,telepathic"),
        ("listeners", "127.0.0.1:9092"),
        ("listeners", "PLAINTEXT://h:1,plaintext://h:2"),
        ("listeners", "PLAINTEXT://h:70000"),
        ("num.partitions", "²"),
    ],
)
def test_values_that_make_no_sense_name_the_key_and_the_value(name: str, text: str) -> None:
    with pytest.raises(BrokerError) as refused:
        BrokerConfig({name: text})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert name in str(refused.value)


def test_typed_values() -> None:
    config = BrokerConfig({"log.cleanup.policy": " delete , compact ", "broker.rack": "r1", "num.partitions": " 7 "})
    assert config.get_list("log.cleanup.policy") == ("delete", "compact")
    assert config.get_str("broker.rack") == "r1"
    assert config.get_int("num.partitions") == 7
    assert config.get_bool("auto.create.topics.enable") is True
    assert config.get_float("log.cleaner.min.cleanable.ratio") == 0.5
    assert config.get_list("log.dirs") == ()
    assert config.get_str("inter.broker.listener.name") is None
    with pytest.raises(LocalProtocolError):
        config.get_int("broker.rack")
    with pytest.raises(LocalProtocolError):
        config.get_int("auto.create.topics.enable")
    with pytest.raises(LocalProtocolError):
        config.value("no.such.key")


def test_unknown_keys_are_kept_apart() -> None:
    config = BrokerConfig({"my.plugin.key": "x", "num.partitions": "2"})
    assert config.unknown_keys == ("my.plugin.key",)


def test_node_id_from_either_key() -> None:
    assert BrokerConfig({"node.id": "4"}).node_id == 4
    assert BrokerConfig({"broker.id": "5"}).node_id == 5
    assert BrokerConfig({"node.id": "6", "broker.id": "6"}).node_id == 6
    with pytest.raises(BrokerError):
        BrokerConfig({"node.id": "6", "broker.id": "7"})


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (
            {"listeners": "SSL://:9093"},
            r"ssl\.keystore\.location is not set .*listener SSL .*A working block: .*type=PEM",
        ),
        (
            {"listeners": "SSL://:1", "ssl.keystore.location": "/k", "ssl.client.auth": "required"},
            r"ssl\.truststore\.location is not set \(nor listener\.name\.ssl\.ssl\.truststore\.location\)",
        ),
        ({"listeners": "PLAINTEXT://:1,SASL_SSL://:2"}, "keystore.location is not set"),
        ({"listeners": "SASL_PLAINTEXT://:2"}, "GSSAPI is the default of sasl.enabled.mechanisms"),
        ({"listeners": "HTTP://:9092"}, r"listener HTTP has no security protocol: .*add HTTP:PROTOCOL to"),
        ({"listeners": "IN://:1", "listener.security.protocol.map": "IN:SSL"}, "listener IN speaks TLS"),
        ({"listener.security.protocol.map": "IN:TLS"}, r"value IN:TLS .*the protocols are PLAINTEXT"),
        ({"listener.security.protocol.map": "IN"}, "write NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "IN:SSL,in:PLAINTEXT"}, "listener IN is there twice, also with SSL"),
        ({"listener.security.protocol.map": "IN:PLAINTEXT"}, "PLAINTEXT has no security protocol"),
        ({"authorizer.class.name": "a.B"}, r"value a\.B .*authorizer\.class\.name: .*StandardAuthorizer"),
        ({"authorizer.class.name": STANDARD}, r"super\.users: a controller needs super users.*super\.users=User:admin"),
        ({"authorizer.class.name": STANDARD, "super.users": "admin"}, "write TYPE:NAME"),
        ({"authorizer.class.name": STANDARD, "super.users": "User:a,User:b"}, "semicolons separate principals"),
        ({"authorizer.class.name": STANDARD, "super.users": "User:a User:b"}, "semicolons separate principals"),
        ({"super.users": "User:a"}, r"super\.users: without authorizer\.class\.name every client may do everything"),
        ({"allow.everyone.if.no.acl.found": "false"}, r"no\.acl\.found: without authorizer\.class\.name every client"),
        ({"delegation.token.master.key": "planted-7"}, r"value \[hidden\] .*master\.key"),
        ({"sasl.jaas.confg": "planted-8"}, r"value \[hidden\] .*jaas\.confg"),
        (
            {
                "authorizer.class.name": STANDARD,
                "super.users": "User:a",
                "node.id": "1",
                "controller.quorum.voters": "1@a:1,2@b:1",
            },
            r"nodes connect to each other over PLAINTEXT.*super\.users=User:ANONYMOUS;User:a",
        ),
        ({"principal.builder.class": "a.B"}, "Kafka's default"),
        ({"controller.listener.names": "SSL", "controller.quorum.voters": "1@a:1"}, "listener SSL speaks TLS"),
        ({"security.inter.broker.protocol": "SSL"}, r"protocol: it names the listener SSL; there are PLAINTEXT"),
        ({"ssl.engine.factory.class": "a.B"}, "Java classes are not loaded"),
        ({"ssl.enabled.protocols": "TLSv1.1,TLSv1.2"}, r"value TLSv1\.1 .*must be one of: TLSv1\.2, TLSv1\.3"),
        ({"ssl.principal.mapping.rules": "RULE:("}, r"ssl\.principal\.mapping\.rules: write RULE:pattern"),
        ({"listener.name.internal.num.partitions": "3"}, "a single listener has no such setting"),
        ({"listener.name.clinet.ssl.client.auth": "required"}, "there is no such listener; listeners are controller, "),
        ({"listener.name.SSL.ssl.client.auth": "required"}, r"lower case here: write listener\.name\.ssl\.ssl\.client"),
        ({"listener.name.ssl.PLAIN.sasl.jaas.config": "x"}, r"write listener\.name\.ssl\.plain\.sasl\.jaas\.config"),
        ({"listener.name.ssl.plain.ssl.client.auth": "required"}, r"plain\.ssl\.client\.auth is not read"),
        ({"authorizer.class.name": STANDARD, "super.users": "User:*"}, r"no client has this principal"),
        ({"authorizer.class.name": STANDARD, "super.users": "Group:a;User:b"}, r"value Group:a .*no client has this"),
        ({"create.topic.policy.class.name": "a.B"}, "the policy would not hold"),
        ({"remote.log.storage.system.enable": "true"}, "tiered storage"),
    ],
)
def test_what_would_promise_more_than_is_served_is_refused(settings: dict[str, str], what: str) -> None:
    with pytest.raises(BrokerError, match=what) as refused:
        BrokerConfig(settings)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"remote.log.storage.system.enable": "false"},
        {"authorizer.class.name": ""},
        {"allow.everyone.if.no.acl.found": "True"},  # the default of some container images
        {"authorizer.class.name": STANDARD, "super.users": "User:a"},  # no other node connects
        {"authorizer.class.name": STANDARD, "allow.everyone.if.no.acl.found": "true"},
        {"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS", "controller.quorum.voters": "1@a:1"},
        {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL"},  # no listener is SSL
        {"listeners": "plaintext://:9092"},  # names are written large, as in Kafka
    ],
)
def test_settings_that_promise_nothing_are_accepted(settings: dict[str, str]) -> None:
    assert [each.security_protocol for each in BrokerConfig(settings).listeners] == ["PLAINTEXT"]


def test_properties_are_read_as_java_does() -> None:
    text = "\n".join(
        [
            "# a comment",
            "! another",
            "",
            "a=1",
            "  b : 2",
            "c 3",
            "d=one, \\",
            "   two",
            r"e\=f = x\ty\u0041",
            "g",
            "h==",
            "a=last wins",
            r"path=C:\\dir",
        ]
    )
    assert parse_properties(text) == {
        "a": "last wins",
        "b": "2",
        "c": "3",
        "d": "one, two",
        "e=f": "x\tyA",
        "g": "",
        "h": "=",
        "path": r"C:\dir",
    }


def test_settings_of_the_command_line_stand_above_the_file() -> None:
    config = BrokerConfig.from_properties("num.partitions=2\nbroker.rack=file", {"num.partitions": "3"})
    assert (config.get_int("num.partitions"), config.get_str("broker.rack")) == (3, "file")


def test_a_fixed_configuration_keeps_its_values_when_the_node_is_reconfigured() -> None:
    config = BrokerConfig({"node.id": "1"})
    config.reconfigure({"log.retention.ms": "2"}, {"log.retention.bytes": "3"})
    fixed = config.fixed()
    config.reconfigure({"log.retention.ms": "4"}, {})
    assert (fixed.get_int("log.retention.ms"), fixed.get_int("log.retention.bytes")) == (2, 3)
    assert [text for _, text in fixed.layers("log.retention.ms")] == ["2"]
    assert config.get_int("log.retention.ms") == 4


def test_dynamic_settings_stand_above_static_ones_and_go_again() -> None:
    config = BrokerConfig({"log.retention.ms": "1"})
    config.reconfigure({"log.retention.ms": "2", "num.partitions": "9", "nope": "x"}, {"log.retention.ms": "3"})
    assert config.get_int("log.retention.ms") == 3
    assert config.get_int("num.partitions") == 1  # not dynamic: ignored
    assert list(config.layers("log.retention.ms")) == [
        (ConfigSource.DYNAMIC_BROKER, "3"),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER, "2"),
        (ConfigSource.STATIC_BROKER, "1"),
    ]
    config.reconfigure({"log.retention.ms": "2"}, {})
    assert config.get_int("log.retention.ms") == 2
    config.reconfigure({"log.retention.ms": "no number, by a newer version"}, {})
    assert config.get_int("log.retention.ms") == 1


def test_settings_of_single_brokers_that_are_stored_for_all_are_ignored_as_in_kafka() -> None:
    of_all = {"listener.name.client.max.connections": "5", "listener.name.client.sasl.enabled.mechanisms": "PLAIN"}
    of_one = {"listener.name.client.sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    config = BrokerConfig({"sasl.enabled.mechanisms": "GSSAPI"})
    config.reconfigure({**of_all, "sasl.enabled.mechanisms": "PLAIN"}, {})
    assert config.get_listener_int("client", "max.connections") == 5
    assert config.listener_value("client", "sasl.enabled.mechanisms") == ("GSSAPI",)
    assert next(source for source, _ in config.layers("sasl.enabled.mechanisms")) == ConfigSource.STATIC_BROKER
    config.reconfigure(of_all, of_one)
    assert config.listener_value("client", "sasl.enabled.mechanisms") == ("SCRAM-SHA-256",)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 168 * 3_600_000),
        ({"log.retention.hours": "2"}, 2 * 3_600_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 3 * 60_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.ms": "-1"}, -1),
    ],
)
def test_retention_from_the_finest_unit_that_is_set(settings: dict[str, str], expected: int) -> None:
    config = BrokerConfig(settings)
    assert topic_value(config, {}, "retention.ms") == expected
    assert log_config(config, {}).retention_ms == expected
    assert log_config(config, {"retention.ms": "77"}).retention_ms == 77


def test_log_config_defaults_are_kafkas() -> None:
    assert log_config(BrokerConfig(), {}) == LogConfig()


def test_log_config_follows_topic_and_broker() -> None:
    config = BrokerConfig(
        {"log.flush.interval.messages": "1", "record.validation": "full", "message.max.bytes": "1000"}
    )
    found = log_config(config, {"cleanup.policy": "compact,delete", "max.message.bytes": "2000"})
    assert found.cleanup_policy == {"compact", "delete"}
    assert (found.flush_messages, found.max_message_bytes, found.record_validation) == (1, 2000, "full")


def test_validation_says_which_value_is_wrong() -> None:
    validate_topic_config({"cleanup.policy": "", "retention.ms": " 5 "})
    with pytest.raises(BrokerError, match=r"Unknown topic config name: message\.format\.version"):
        validate_topic_config({"message.format.version": "2.0"})


def sources(entries: Any, name: str) -> tuple[str | None, int, list[tuple[str, str | None, int]]]:
    (found,) = [entry for entry in entries if entry.name == name]
    return found.value, found.source, [tuple(synonym) for synonym in found.synonyms]


def test_synonyms_of_a_topic_key() -> None:
    config = BrokerConfig({"log.flush.interval.messages": "7"})
    config.reconfigure({"min.insync.replicas": "2"}, {})
    entries = list(topic_entries(config, {"min.insync.replicas": "3"}))
    assert sources(entries, "min.insync.replicas") == (
        "3",
        1,
        [("min.insync.replicas", "3", 1), ("min.insync.replicas", "2", 3), ("min.insync.replicas", "1", 5)],
    )
    assert sources(entries, "flush.messages") == (
        "7",
        4,
        [("log.flush.interval.messages", "7", 4), ("log.flush.interval.messages", "9223372036854775807", 5)],
    )
    assert sources(entries, "remote.storage.enable") == ("false", 5, [])


def test_coarser_units_show_only_behind_the_main_key() -> None:
    config = BrokerConfig({"log.retention.hours": "100"})
    assert sources(topic_entries(config, {}), "retention.ms") == ("360000000", 5, [])
    assert sources(broker_entries(config), "log.retention.ms") == (None, 5, [])
    (entry,) = [entry for entry in topic_entries(config, {}) if entry.name == "retention.ms"]
    assert entry.effective_source is ConfigSource.STATIC_BROKER  # what CreateTopics answers
    config.reconfigure({"log.retention.ms": "777777"}, {})
    synonyms = [("log.retention.ms", "777777", 3), ("log.retention.hours", "100", 4), ("log.retention.hours", "168", 5)]
    assert sources(topic_entries(config, {}), "retention.ms") == ("777777", 3, synonyms)
    assert sources(broker_entries(config), "log.retention.ms") == ("777777", 3, synonyms)


def test_static_settings_are_shown_as_such_with_dynamic_ones_above() -> None:
    config = BrokerConfig({"node.id": "4", "message.max.bytes": "2000000", "of.a.plugin": "secret"})
    config.reconfigure({}, {"message.max.bytes": "3000000"})
    assert sources(broker_entries(config), "node.id") == ("4", 4, [("node.id", "4", 4)])
    assert sources(broker_entries(config), "broker.id") == ("4", 4, [("broker.id", "4", 4), ("broker.id", "-1", 5)])
    three = [("message.max.bytes", value, source) for value, source in (("3000000", 2), ("2000000", 4), ("1048588", 5))]
    assert sources(broker_entries(config), "message.max.bytes") == ("3000000", 2, three)
    assert sources(broker_entries(config), "of.a.plugin") == (None, 4, [("of.a.plugin", None, 4)])


def test_unknown_dynamic_keys_are_shown_without_their_value() -> None:
    config = BrokerConfig()
    config.reconfigure({}, {"nope": "secret"})
    assert sources(broker_entries(config), "nope") == (None, 2, [("nope", None, 2)])
    (entry,) = cluster_entries({"nope": "secret"})
    assert entry.value is None
    (entry,) = cluster_entries({"log.retention.ms": "5"})
    assert (entry.value, entry.source, entry.read_only) == ("5", 3, False)


def test_the_metadata_log_lies_in_one_of_the_directories() -> None:
    settings = {"log.dirs": "/a,/b,/c"}
    assert BrokerConfig(settings).log_dirs == ("/a", "/b", "/c")
    assert BrokerConfig(settings | {"metadata.log.dir": "/b"}).log_dirs == ("/b", "/a", "/c")
    with pytest.raises(
        BrokerError, match=r"Invalid value /d for configuration metadata\.log\.dir: name one of log\.dirs"
    ):
        BrokerConfig(settings | {"metadata.log.dir": "/d"}).log_dirs  # noqa: B018  # reading it is the check


def test_a_group_needs_an_assignor() -> None:
    with pytest.raises(BrokerError, match=r"group\.consumer\.assignors"):
        BrokerConfig({"group.consumer.assignors": ""})
    assert BrokerConfig({"group.consumer.assignors": "range"}).get_list("group.consumer.assignors") == ("range",)


def test_ssl_client_auth_of_a_sasl_listener_needs_its_prefix() -> None:
    sasl = {
        "listeners": "SASL_SSL://:1,PLAINTEXT://:2",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="b";'
        ),
        "ssl.keystore.location": "/k",
        "ssl.client.auth": "required",
    }
    assert BrokerConfig(sasl).tls_value("SASL_SSL", "ssl.client.auth") == "none"
    own = {"listener.name.sasl_ssl.ssl.client.auth": "requested", "ssl.truststore.location": "/t"}
    assert BrokerConfig(sasl | own).tls_value("SASL_SSL", "ssl.client.auth") == "requested"
    with pytest.raises(BrokerError, match=r"ssl\.truststore\.location is not set"):
        BrokerConfig(sasl | {"listener.name.sasl_ssl.ssl.client.auth": "requested"})


def test_settings_of_a_listener_are_described_without_secrets() -> None:
    config = BrokerConfig(
        {
            "listener.name.ssl.ssl.keystore.location": "/k",
            "listener.name.ssl.ssl.keystore.password": "planted",
            "of.a.plugin": "p",
        }
    )
    entries = {entry.name: entry for entry in broker_entries(config)}
    found = {name: (entries[name].value, entry.sensitive) for name, entry in entries.items() if name in config.static}
    assert found == {
        "listener.name.ssl.ssl.keystore.location": ("/k", False),
        "listener.name.ssl.ssl.keystore.password": (None, True),
        "of.a.plugin": (None, True),
    }
    assert "planted" not in repr(entries)


def test_settings_of_security_with_another_effect_than_they_seem_to_have_are_told() -> None:
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="${env:PASSWORD}";'
    assert remarks(BrokerConfig({"ssl.key.password": "${file:/k:planted-key}", "security.protocol": "SSL"})) == [
        "unknown setting 'security.protocol' ignored: it is a setting of clients; listeners and listener.security.protocol.map "
        "set the protocol of each listener",
        "setting 'ssl.key.password' has a placeholder that no provider replaces: the value is the text itself",
    ]
    found = remarks(BrokerConfig({"listener.name.ssl.plain.sasl.jaas.config": login}))
    assert [each.partition(" has ")[2] for each in found] == [
        "a placeholder that no provider replaces: the value is the text itself"
    ]
    own = {"sasl.oauthbearer.scope": "x", "listener.name.plaintext.oauthbearer.sasl.login.read.timeout.ms": "7"}
    assert remarks(BrokerConfig(own)) == [
        f"setting '{name}' has no effect: neither sasl.mechanism.inter.broker.protocol nor sasl.mechanism.controller.protocol "
        f"is OAUTHBEARER"
        for name in sorted(own)
    ]
    assert remarks(BrokerConfig({**own, "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"})) == []
    everyone = {"allow.everyone.if.no.acl.found": "true"}
    assert remarks(BrokerConfig(everyone)) == [
        "setting 'allow.everyone.if.no.acl.found' has no effect: without authorizer.class.name every client may do everything"
    ]
    authorizer = {"authorizer.class.name": STANDARD, "super.users": "User:CN=a,OU=b;User:c"}
    assert remarks(BrokerConfig(authorizer)) == remarks(BrokerConfig(authorizer | everyone)) == []
