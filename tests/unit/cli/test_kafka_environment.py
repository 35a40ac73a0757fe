"""The variables of Kafka's container image as settings of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.cli.kafka_environment import environment_remarks, environment_settings, logger_levels, started_lines
from barnabas.cli.serve import node_config
from tests.support.kafka_variables import NAMES, TESTCONTAINERS


def test_names_of_variables() -> None:
    settings = environment_settings(dict.fromkeys(NAMES, "x"))
    assert {name: settings[name] for name in NAMES.values()} == dict.fromkeys(NAMES.values(), "x")
    assert set(settings) - set(NAMES.values()) == {"listeners", "advertised.listeners"}


def test_other_variables_are_no_settings() -> None:
    given = (
        "KAFKA_HEAP_OPTS",
        "KAFKA_OPTS",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_VERSION",
        "KAFKA_",
        "PATH",
        "MY_KAFKA_NODE_ID",
    )
    assert set(environment_settings(dict.fromkeys(given, "x"))) == {"listeners", "advertised.listeners"}


def test_a_value_is_read_as_in_a_properties_file() -> None:
    settings = environment_settings({"KAFKA_A": r"c:\\x", "KAFKA_B": "one \\\n  two", "KAFKA_C": ""})
    assert (settings["a"], settings["b"], settings["c"]) == (r"c:\x", "one two", "")


def test_a_value_of_several_lines_is_one_value() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQ==\r\n-----END PRIVATE KEY-----"
    found = environment_settings({"KAFKA_SSL_KEYSTORE_KEY": f"{key}\n", "KAFKA_NODE_ID": "1\n", "KAFKA_X": "a \\\n  b"})
    assert found["ssl.keystore.key"].split("\n") == key.replace("\r", "").split("\n")
    assert (found["node.id"], found["x"]) == ("1", "a b")
    assert not [name for name in found if "MII" in name or "BEGIN" in name], "names of unknown settings are logged"


def test_variables_win_over_the_file() -> None:
    settings = environment_settings({"KAFKA_NODE_ID": "7"}, "node.id=1\nnum.partitions=3\nlisteners=PLAINTEXT://:9")
    assert settings == {
        "node.id": "7",
        "num.partitions": "3",
        "listeners": "PLAINTEXT://:9",
    }


@pytest.mark.parametrize(
    ("given", "listeners"),
    [
        ({}, "PLAINTEXT://0.0.0.0:9092"),
        ({"KAFKA_ADVERTISED_LISTENERS": "A://h:1, B://[::1]:2"}, "A://0.0.0.0:1,B://0.0.0.0:2"),
        ({"KAFKA_ADVERTISED_LISTENERS": "A://h:1", "KAFKA_LISTENERS": "A://:5"}, "A://:5"),
    ],
)
def test_listeners_follow_the_advertised_ones(given: dict[str, str], listeners: str) -> None:
    assert environment_settings(given)["listeners"] == listeners


def test_a_controller_gets_no_listener_of_clients() -> None:
    settings = environment_settings({"KAFKA_PROCESS_ROLES": "controller", "KAFKA_LISTENERS": "CONTROLLER://:9093"})
    assert settings == {"process.roles": "controller", "listeners": "CONTROLLER://:9093"}


def test_secrets_of_tls_come_from_their_files(tmp_path: Path) -> None:
    (tmp_path / "creds").write_text("secret\n")
    given = {
        "KAFKA_SSL_KEYSTORE_FILENAME": "k.p12",
        "KAFKA_SSL_KEYSTORE_CREDENTIALS": "creds",
        "KAFKA_SSL_KEY_CREDENTIALS": "creds",
        "KAFKA_SSL_TRUSTSTORE_FILENAME": "t.pem",
    }
    settings = environment_settings(given, secrets=str(tmp_path))
    assert {name: text for name, text in settings.items() if name.startswith("ssl.")} == {
        "ssl.keystore.location": str(tmp_path / "k.p12"),
        "ssl.keystore.password": "secret",
        "ssl.key.password": "secret",
        "ssl.truststore.location": str(tmp_path / "t.pem"),
    }


def test_a_missing_file_of_a_password() -> None:
    with pytest.raises(ValueError, match=r"^KAFKA_SSL_KEY_CREDENTIALS: /none/creds cannot be read"):
        environment_settings({"KAFKA_SSL_KEY_CREDENTIALS": "creds"}, secrets="/none")


def test_variables_without_effect_are_named() -> None:
    given = {
        "KAFKA_HEAP_OPTS": "-Xmx1G",
        "KAFKA_OPTS": "-Djava.security.auth.login.config=/jaas.conf",
        "KAFKA_JMX_PORT": "",
    }
    first, second = environment_remarks(given)
    assert first == "variable KAFKA_HEAP_OPTS has no effect here: there is no Java"
    assert "SASL_JAAS_CONFIG" in second


def test_levels_of_loggers() -> None:
    given = {"KAFKA_LOG4J_ROOT_LOGLEVEL": "warn", "KAFKA_LOG4J_LOGGERS": "kafka.controller=TRACE,kafka=OFF,"}
    assert logger_levels(given) == {"": 30, "kafka.controller": 5, "kafka": 50}
    assert logger_levels({}) == {}
    with pytest.raises(ValueError, match=r"^KAFKA_LOG4J_LOGGERS: 'LOUD' is no level"):
        logger_levels({"KAFKA_LOG4J_LOGGERS": "kafka=LOUD"})


def test_a_node_of_testcontainers() -> None:
    config = node_config("/data", None, None, None, None, None, (), None, TESTCONTAINERS)
    assert config.node_id == 1
    assert [(each.name, each.host, each.port) for each in config.advertised_listeners] == [
        ("PLAINTEXT", "localhost", 32768),
        ("BROKER", "4f1c", 9093),
    ]
    assert config.get_str("cluster.id") == TESTCONTAINERS["CLUSTER_ID"]


def test_options_win_over_variables() -> None:
    config = node_config("/d", 3, None, None, None, None, ("num.partitions=5",), None, {"KAFKA_NUM_PARTITIONS": "2"})
    assert (config.node_id, config.get_int("num.partitions"), config.log_dirs) == (3, 5, ("/d",))


def test_the_lines_that_testcontainers_waits_for() -> None:
    assert "Transitioning from RECOVERY to RUNNING" in started_lines(4)
    assert "[KafkaRaftServer nodeId=4] Kafka Server started" in started_lines(4)
