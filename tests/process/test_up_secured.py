"""`barnabas up --tls --sasl scram --acl` as a user runs it: client files, refused clients, a killed node, and a second start."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from barnabas.broker.config.properties import parse_properties
from tests.support.processes.attempts import attempts
from tests.support.processes.cli import called
from tests.support.processes.process_tree import command_lines
from tests.support.processes.up import SECONDS_MAX, Up, data

pytestmark = pytest.mark.process
__all__ = ["data"]  # a fixture

SECURED = ("--port", "0", "--tls", "--sasl", "scram", "--acl", "--set", "transaction.state.log.num.partitions=3")


def client_file(data: Path, user: str) -> tuple[str, ...]:
    return "--command-config", str(data / "security" / f"{user}.properties")


def librdkafka(data: Path, user: str, **changes: str) -> dict[str, str]:
    """The same user for librdkafka, whose SASL settings have no JAAS."""
    found = parse_properties((data / "security" / f"{user}.properties").read_text())
    words = dict(word.rstrip(";").split("=", 1) for word in found["sasl.jaas.config"].split() if "=" in word)
    return {
        "bootstrap.servers": found["bootstrap.servers"],
        "security.protocol": found["security.protocol"],
        "ssl.ca.location": found["ssl.truststore.location"],
        "sasl.mechanism": found["sasl.mechanism"],
        "sasl.username": words["username"].strip('"'),
        "sasl.password": words["password"].strip('"'),
        "log_level": "0",
        **changes,
    }


def passwords(data: Path) -> list[str]:
    return list(json.loads((data / "security" / "passwords.json").read_text()).values())


def test_a_secured_cluster_from_one_line(data: Path) -> None:
    up = Up(data, *SECURED)
    try:
        admin, client = client_file(data, "admin"), client_file(data, "client")
        assert "replication factor 3" in called("topic", "create", "orders", *admin).stdout
        assert called("produce", "orders", *admin, stdin="tea\ncoffee\n").returncode == 0
        read = called("consume", "orders", "--from-beginning", "--exit-at-end", *admin)
        assert read.stdout == "tea\ncoffee\n"

        refused = called("produce", "orders", *client, stdin="milk\n")
        assert refused.returncode == 1
        assert "TOPIC_AUTHORIZATION_FAILED" in refused.stderr or "not authorized" in refused.stderr.lower()
        given = called("acl", "add", "User:client", "write", "topic:orders", *admin)
        assert given.returncode == 0, given.stderr
        deadline = time.monotonic() + SECONDS_MAX
        while (wrote := called("produce", "orders", *client, stdin="milk\n")).returncode:
            assert time.monotonic() < deadline, wrote.stderr  # a broker learns of the ACL after its controller

        delivered: list[object] = []
        producer = Producer({**librdkafka(data, "client"), "enable.idempotence": "true"})
        producer.produce("orders", b"cocoa", callback=lambda error, _: delivered.append(error))
        assert producer.flush(SECONDS_MAX) == 0
        assert delivered == [None]

        seen: list[KafkaError] = []
        settings: dict[str, Any] = librdkafka(data, "client", **{"sasl.password": "wrong"})
        settings["error_cb"] = seen.append
        wrong = AdminClient(settings)
        with pytest.raises(KafkaException):
            wrong.list_topics(timeout=0.5)
        deadline = time.monotonic() + SECONDS_MAX
        while not seen and time.monotonic() < deadline:
            wrong.poll(0.05)  # calls back
        assert KafkaError._AUTHENTICATION in {error.code() for error in seen}
        plain = called("cluster", "-b", up.bootstrap, "--timeout", "20")
        assert plain.returncode == 1
        assert "TLS" in plain.stderr

        os.kill(up.nodes()[2], signal.SIGKILL)
        for _ in attempts("the dead node is named", SECONDS_MAX):
            if "To bring it back: " in up.stderr():
                break
        assert called("produce", "orders", *client, stdin="water\n").returncode == 0

        folder = data / "security"
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
        assert {name for name, mode in modes.items() if mode != 0o600} == {"ca.pem"}
        lines = "\n".join(command_lines("").values())
        logs = "".join(file.read_text() for file in data.glob("node-*.log")) + up.stderr()
        for password in passwords(data):
            assert password not in lines + logs
        assert up.end() == 0
    finally:
        up.kill()

    kept = passwords(data)
    up = Up(data, *SECURED)
    try:
        read = called("consume", "orders", "--from-beginning", "--exit-at-end", *client_file(data, "admin"))
        assert sorted(read.stdout.split()) == ["cocoa", "coffee", "milk", "tea", "water"]
        assert passwords(data) == kept
        assert up.end() == 0
    finally:
        up.kill()


@pytest.mark.parametrize(
    ("brokers", "options"),
    # Nodes log in to each other by a password without TLS, and by certificates with it; --tls alone differs for clients only.
    [("1", ("--tls",)), ("2", ("--sasl", "plain")), ("2", ("--tls", "--acl"))],
    ids=["tls", "sasl plain", "tls acl"],
)
def test_the_parts_alone(brokers: str, options: tuple[str, ...], data: Path) -> None:
    up = Up(data, "--port", "0", "--brokers", brokers, *options)
    try:
        user = "client" if options == ("--tls",) else "admin"
        done = called("topic", "create", "orders", *client_file(data, user))
        assert done.returncode == 0, done.stderr
        assert up.end() == 0
    finally:
        up.kill()


def test_users_cannot_be_added_to_a_cluster_that_was_made_without(data: Path) -> None:
    up = Up(data, "--port", "0", "--brokers", "1")
    assert up.end() == 0
    started = called("up", "--port", "0", "--brokers", "1", "--sasl", "scram", "--data", str(data))
    assert started.returncode == 1
    assert "user" in started.stderr
    assert started.stdout == ""


def test_acls_without_users_or_certificates_are_refused(data: Path) -> None:
    started = called("up", "--acl", "--data", str(data))
    assert started.returncode == 2
    assert "--sasl" in started.stderr
    assert not data.exists()
