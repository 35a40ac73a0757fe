"""SASL with Kafka and with Barnabas: the recorded answers of Kafka are those of the real one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.client.admin.types import ScramMechanism
from tests.support.oracle.real_kafka import running_kafka
from tests.support.oracle.sasl_script import SCRAM_USERS, held, sasl_settings
from tests.support.oracle.sasl_timing import goes_as, held_as
from tests.support.oracle.scram_users import make_scram_users
from tests.support.processes.ports import free_port_block

pytestmark = pytest.mark.oracle

RECORDED = Path(__file__).parents[1] / "golden" / "sasl" / "conversations.json"


@pytest.fixture(scope="module")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses of a Kafka: of its SASL listener, and of the one with short sessions."""
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
    with running_kafka(tmp_path_factory.mktemp("secured-kafka"), port, settings):
        users: list[tuple[str, ScramMechanism]] = [
            ("alice", "SCRAM-SHA-256"),
            ("bob", "SCRAM-SHA-256"),
            ("alice", "SCRAM-SHA-512"),
        ]
        make_scram_users(
            address[0], address[2], [(user, SCRAM_USERS[user], mechanism, 4_096) for user, mechanism in users]
        )
        yield address[2], address[3]


def test_the_recorded_conversations_are_those_of_kafka(secured_kafka: tuple[str, str]) -> None:
    recorded = json.loads(RECORDED.read_text())
    said = held_as(recorded, lambda names: held(*secured_kafka, recorded, names))
    assert {name: each for name, each in said.items() if not goes_as(each, recorded[name])} == {}
    assert said.keys() == recorded.keys()
