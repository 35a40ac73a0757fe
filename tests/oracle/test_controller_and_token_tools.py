"""kafka-acls over the controller listener, and kafka-delegation-tokens: Kafka's tools on Barnabas.

kafka-configs for users and ips needs no test over the controller listener: Kafka's AdminClient refuses it before it sends a request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.oracle.real_kafka import needs_java
from tests.support.oracle.token_script import JAAS, SECRET
from tests.support.oracle.tools import tool
from tests.support.processes.ports import free_port_block
from tests.support.processes.served import ServedBroker

pytestmark = pytest.mark.oracle


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Addresses of a node with an authorizer: of its listener with logins, and of its controller listener."""
    needs_java("no tools of Kafka")
    port = free_port_block(3)
    guarded, controller = f"127.0.0.1:{port + 1}", f"127.0.0.1:{port + 2}"
    broker = ServedBroker(
        tmp_path / "data",
        f"listeners=PLAINTEXT://127.0.0.1:{port},GUARDED://{guarded},CONTROLLER://{controller}",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,GUARDED:SASL_PLAINTEXT",
        "inter.broker.listener.name=PLAINTEXT",
        "controller.listener.names=CONTROLLER",
        f"controller.quorum.voters=1@{controller}",
        "sasl.enabled.mechanisms=PLAIN",
        f"listener.name.guarded.plain.sasl.jaas.config={JAAS}",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:ANONYMOUS",
        f"delegation.token.secret.key={SECRET}",
        listens=False,
    ).start()
    yield guarded, controller
    broker.end()


def test_the_tools_work(secured: tuple[str, str], tmp_path: Path) -> None:
    guarded, controller = secured
    option = ("--bootstrap-controller", controller)
    tool("AclCommand", *option, "--add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "tools")
    listed = tool("AclCommand", *option, "--list")
    assert "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)" in listed

    properties = tmp_path / "alice.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="alice";\n'
    )

    def tokens(*arguments: str) -> str:
        connection = ("--bootstrap-server", guarded, "--command-config", str(properties))
        return tool("DelegationTokenCommand", *connection, *arguments)

    made = tokens("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    (line,) = [each for each in made.splitlines() if "User:alice" in each]
    token_id, hmac = line.split()[:2]
    assert re.fullmatch(r"[\w-]{22}", token_id)
    assert "[User:bob]" in line
    assert "Completed renew" in tokens("--renew", "--renew-time-period", "3600000", "--hmac", hmac)
    described = tokens("--describe", "--owner-principal", "User:alice")
    assert token_id in described
    assert hmac in described
    assert "Completed expire" in tokens("--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    assert token_id not in tokens("--describe", "--owner-principal", "User:alice")
