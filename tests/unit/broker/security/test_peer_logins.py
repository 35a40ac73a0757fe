"""How a node logs in at other nodes: the listener that an address belongs to, its mechanism and credentials, and what errors say."""

from __future__ import annotations

import pytest

from barnabas.broker.config import BrokerConfig
from barnabas.broker.security.node_network import peer_logins
from barnabas.broker.security.peer_logins import PeerLogins
from barnabas.errors import BrokerError
from barnabas.protocol.sasl import PlainClient, SaslFailed
from barnabas.protocol.scram import ScramClient
from tests.support.rng import SeededRng

MODULE = "org.apache.kafka.common.security"
PLAIN = f'{MODULE}.plain.PlainLoginModule required username="node" password="planted-1" user_node="planted-1";'
SCRAM = f'{MODULE}.scram.ScramLoginModule required username="node" password="planted-2";'


def config(**changes: str | None) -> BrokerConfig:
    """A node of three; SCRAM between brokers, PLAIN between controllers."""
    settings: dict[str, str | None] = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "log.dirs": "data",
        "controller.quorum.voters": "1@a:1,2@b:1,3@c:1",
        "listeners": "NODES://a:2,CONTROLLER://a:1",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "NODES",
        "listener.security.protocol.map": "NODES:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.nodes.plain.sasl.jaas.config": PLAIN,
        "listener.name.nodes.scram-sha-512.sasl.jaas.config": SCRAM,
        "listener.name.controller.plain.sasl.jaas.config": PLAIN,
        **changes,
    }
    return BrokerConfig({name: value for name, value in settings.items() if value is not None})


def test_the_address_decides_about_the_login() -> None:
    logins = PeerLogins(config(), SeededRng(1))
    controller, broker = logins.sasl("b", 1), logins.sasl("b", 2)
    assert controller is not None
    assert broker is not None
    first = controller()
    assert isinstance(first, PlainClient)
    assert first.start() == b"\0node\0planted-1"
    scram, again = broker(), broker()
    assert isinstance(scram, ScramClient)
    assert scram.start().startswith(b"n,,n=node,r=")
    assert scram.start() != again.start()  # another nonce


def test_a_changed_password_counts_from_the_next_login() -> None:
    node = config()
    sasl = PeerLogins(node, SeededRng(1)).sasl("b", 1)
    assert sasl is not None
    node.reconfigure({}, {"listener.name.controller.plain.sasl.jaas.config": PLAIN.replace("planted-1", "planted-3")})
    assert sasl().start() == b"\0node\0planted-3"
    node.reconfigure({"sasl.mechanism.inter.broker.protocol": "plain"}, {})
    broker = PeerLogins(node, SeededRng(1)).sasl("b", 2)
    assert broker is not None
    assert isinstance(broker(), PlainClient)
    node.reconfigure({}, {"listener.name.controller.plain.sasl.jaas.config": "broken"})
    with pytest.raises(SaslFailed, match=r"listener\.name\.controller\.plain\.sasl\.jaas\.config"):
        sasl()


def test_only_listeners_with_sasl_have_a_login() -> None:
    protocols = "NODES:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
    logins = PeerLogins(config(**{"listener.security.protocol.map": protocols}), SeededRng(1))
    assert logins.sasl("b", 1) is None
    assert logins.sasl("b", 2) is not None
    protocols = "NODES:PLAINTEXT,CONTROLLER:PLAINTEXT"
    assert peer_logins(config(**{"listener.security.protocol.map": protocols}), SeededRng(1)) is None


def test_a_node_alone_needs_no_login() -> None:
    alone = config(
        **{"controller.quorum.voters": None, "listeners": "NODES://a:2", "sasl.mechanism.inter.broker.protocol": None}
    )
    assert peer_logins(alone, SeededRng(1)) is None


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("sasl.mechanism.controller.protocol", None, "sasl.mechanism.controller.protocol=GSSAPI is not served"),
        ("sasl.mechanism.inter.broker.protocol", "OAUTHBEARER", "=OAUTHBEARER is not served between nodes: set"),
        (
            "listener.name.nodes.scram-sha-512.sasl.jaas.config",
            None,
            "cannot log in at listener NODES of other nodes: set listener.name.nodes.scram-sha-512.sasl.jaas.config=",
        ),
        (
            "listener.name.controller.plain.sasl.jaas.config",
            PLAIN.replace('username="node"', ""),
            "has no username, so this node cannot log in at other nodes: set",
        ),
        (
            "listener.name.controller.plain.sasl.jaas.config",
            PLAIN.replace('password="planted-1" ', ""),
            "has no password, so this node cannot log in at other nodes: set",
        ),
    ],
)
def test_incomplete_settings_name_the_key_and_a_working_line(name: str, value: str | None, why: str) -> None:
    with pytest.raises(BrokerError) as refused:
        PeerLogins(config(**{name: value}), SeededRng(1))
    assert why in str(refused.value)
    assert "planted" not in str(refused.value)
