"""SASL with Kafka and with Barnabas: the recorded answers of Kafka are those of the real one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.oracle.real_kafka import KAFKA_UP, START_SECONDS_MAX, needs_java
from tests.support.oracle.sasl_script import SCRAM_USERS, held, sasl_settings
from tests.support.oracle.sasl_timing import goes_as
from tests.support.processes.ports import free_port_block

pytestmark = pytest.mark.oracle

RECORDED = Path(__file__).parents[1] / "golden" / "sasl" / "conversations.json"


@pytest.fixture(scope="module")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses of a Kafka: of its SASL listener, and of the one with short sessions."""
    needs_java()
    folder = tmp_path_factory.mktemp("secured-kafka")
    port = free_port_block(4)
    address = [f"127.0.0.1:{port + number}" for number in range(4)]
    listeners = f"PLAINTEXT://{address[0]},SASL://{address[2]},AGAIN://{address[3]}"
    settings = [
        f"listeners={listeners},CONTROLLER://{address[1]}",
        f"advertised.listeners={listeners}",
        "listener.security.protocol.map="
        "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,AGAIN:SASL_PLAINTEXT",
        "inter.broker.listener.name=PLAINTEXT",
        *sasl_settings("SASL", "AGAIN"),
    ]
    command = ["bash", str(KAFKA_UP), "start", "--port", str(port), "--dir", str(folder)]
    for each in settings:
        command += ["--set", each]
    with (folder / "kafka-up.log").open("w") as output:
        started = subprocess.run(command, stdout=output, stderr=output, timeout=START_SECONDS_MAX, check=False)
    try:
        if started.returncode:
            pytest.skip(f"Kafka did not start: {(folder / 'kafka-up.log').read_text()[-500:]}")
        for user, mechanism in (("alice", "SCRAM-SHA-256"), ("bob", "SCRAM-SHA-256"), ("alice", "SCRAM-SHA-512")):
            tool = ["bash", str(KAFKA_UP), "tool", "kafka.admin.ConfigCommand", "--bootstrap-server", address[0]]
            change = f"{mechanism}=[password={SCRAM_USERS[user]}]"
            alter = ["--alter", "--add-config", change, "--entity-type", "users", "--entity-name", user]
            subprocess.run([*tool, *alter], check=True, capture_output=True, timeout=60)
        yield address[2], address[3]
    finally:
        subprocess.run(["bash", str(KAFKA_UP), "stop", "--dir", str(folder)], timeout=60, check=False)


def test_the_recorded_conversations_are_those_of_kafka(secured_kafka: tuple[str, str]) -> None:
    recorded, said = json.loads(RECORDED.read_text()), held(*secured_kafka)
    assert {name: each for name, each in said.items() if not goes_as(each, recorded[name])} == {}
    assert said.keys() == recorded.keys()
