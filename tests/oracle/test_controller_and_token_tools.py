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


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses of a node with an authorizer: of its listener with logins, and of its controller listener."""
    needs_java("no tools of Kafka")
    port = free_port_block(3)
    guarded, controller = f"127.0.0.1:{port + 1}", f"127.0.0.1:{port + 2}"
    broker = ServedBroker(
        tmp_path_factory.mktemp("tools") / "data",
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


def test_acls_over_the_controller_listener(secured: tuple[str, str]) -> None:
    option = ("--bootstrap-controller", secured[1])
    tool("AclCommand", *option, "--add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "tools")
    listed = tool("AclCommand", *option, "--list")
    assert "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)" in listed


def test_a_token_by_the_tool_of_tokens(secured: tuple[str, str], tmp_path: Path) -> None:
    """It prints what the broker answers, whose answers are compared with those of Kafka: test_golden_answers.py."""
    properties = tmp_path / "alice.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="alice";\n'
    )

    def tokens(*arguments: str, expected: int = 0) -> str:
        connection = ("--bootstrap-server", secured[0], "--command-config", str(properties))
        return tool("DelegationTokenCommand", *connection, *arguments, expected=expected)

    made = tokens("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    (line,) = [each for each in made.splitlines() if "User:alice" in each]
    token_id, hmac, owner, requester, renewers = line.split()[:5]
    assert re.fullmatch(r"[\w-]{22}", token_id)
    assert (owner, requester, renewers) == ("User:alice", "User:alice", "[User:bob]")
    assert "Completed renew" in tokens("--renew", "--renew-time-period", "3600000", "--hmac", hmac)
    assert f"{token_id} {hmac} User:alice" in re.sub(" +", " ", tokens("--describe", "--owner-principal", "User:alice"))
    expire = ("--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    assert "Completed expire" in tokens(*expire)
    assert "Completed" not in tokens(*expire, expected=1), "the token is not there any more"
