"""How a node logs in at other nodes: the listener that an address belongs to, its mechanism and credentials, and what errors say."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.sasl_settings import UNSECURED_HANDLER
from barnabas.broker.peers.node_network import peer_logins
from barnabas.broker.peers.peer_logins import PeerLogins
from barnabas.broker.security.dynamic_settings import check_dynamic_settings
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.sasl import PlainClient, SaslFailed
from barnabas.protocol.scram import ScramClient
from barnabas.work import finished
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
    node.reconfigure({}, {"sasl.mechanism.inter.broker.protocol": "plain"})
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
        (
            "sasl.mechanism.controller.protocol",
            None,
            "sasl.mechanism.controller.protocol: other nodes log in at listener CONTROLLER by GSSAPI, the default, which "
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512 does not have. A working line is: sasl.mechanism.controller.protocol=PLAIN",
        ),
        (
            "sasl.mechanism.inter.broker.protocol",
            "scram-sha-256",
            "sasl.mechanism.inter.broker.protocol: other nodes log in at listener NODES by scram-sha-256, which "
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512 does not have",
        ),
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


def test_a_mechanism_that_other_nodes_could_not_use_is_refused_at_run_time_as_well() -> None:
    for key, value in (
        ("sasl.mechanism.inter.broker.protocol", "GSSAPI"),
        ("listener.name.nodes.sasl.enabled.mechanisms", "PLAIN"),
    ):
        with pytest.raises(BrokerError, match="other nodes log in at listener NODES by") as refused:
            finished(check_dynamic_settings(config(), None, [key], {key: value}, default=False))
        assert refused.value.code is ErrorCode.INVALID_REQUEST


OAUTH = {
    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
    "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "http://idp/keys",
}
MODULE_OAUTH = f"{MODULE}.oauthbearer.OAuthBearerLoginModule required"
JAAS_OAUTH = "listener.name.nodes.oauthbearer.sasl.jaas.config"


async def test_a_token_is_got_before_the_conversation(tmp_path: Path) -> None:
    url = "listener.name.nodes.oauthbearer.sasl.oauthbearer.token.endpoint.url"
    (tmp_path / "token").write_text("a.b.c")
    changes = {**OAUTH, url: f"file://{tmp_path}/token", JAAS_OAUTH: f'{MODULE_OAUTH} extension_x="y";'}
    logins = PeerLogins(config(**changes), SeededRng(1))
    sasl = logins.sasl("b", 2)
    assert sasl is not None
    with pytest.raises(SaslFailed, match="no token yet"):
        sasl()
    await logins.prepare("b", 1)  # the controller listener has PLAIN
    await logins.prepare("b", 2)
    assert sasl().start() == b"n,,\1auth=Bearer a.b.c\1x=y\1\1"
    (tmp_path / "token").unlink()
    with pytest.raises(SaslFailed, match=r"OAUTHBEARER: no token: .*No such file"):
        await logins.prepare("b", 2)


def provider(logins: PeerLogins) -> Any:
    return logins._provider("NODES")


def test_connections_share_the_tokens_of_a_node_until_a_setting_changes() -> None:
    secret = "sasl.oauthbearer.client.credentials.client.secret"
    endpoint = {
        "sasl.oauthbearer.token.endpoint.url": "http://idp/token",
        "sasl.oauthbearer.client.credentials.client.id": "node",
        secret: "planted-5",
        "sasl.login.read.timeout.ms": "7",
    }
    node = config(**OAUTH, **endpoint)
    logins = PeerLogins(node, SeededRng(1))
    before = provider(logins)
    assert provider(logins) is before
    assert before._settings.read_timeout_ms == 7
    node.reconfigure({}, {"sasl.login.refresh.window.factor": "0.6"})
    assert provider(logins)._settings.window_factor == 0.6
    with pytest.raises(BrokerError) as missing:
        PeerLogins(config(**OAUTH), SeededRng(1))
    assert str(missing.value).startswith(
        "INVALID_CONFIG: this node cannot log in at listener NODES of other nodes: sasl.mechanism=OAUTHBEARER needs "
        "sasl.oauthbearer.token.endpoint.url"
    )
    with pytest.raises(BrokerError, match=r"needs sasl\.oauthbearer\.client\.credentials\.client\.secret"):
        PeerLogins(config(**OAUTH, **{**endpoint, secret: None}), SeededRng(1))
    with pytest.raises(BrokerError, match=r"jwt\.retriever\.class=a\.B: Java classes are not loaded"):
        PeerLogins(config(**OAUTH, **endpoint, **{"sasl.oauthbearer.jwt.retriever.class": "a.B"}), SeededRng(1))


async def test_a_token_that_another_node_has_refused_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = {
        "sasl.oauthbearer.token.endpoint.url": "http://idp/token",
        "sasl.oauthbearer.client.credentials.client.id": "node",
        "sasl.oauthbearer.client.credentials.client.secret": "planted-5",
    }
    logins = PeerLogins(config(**OAUTH, **endpoint), SeededRng(1))
    refused: list[str] = []
    monkeypatch.setattr(provider(logins), "token", AsyncMock(return_value="a.b.c"))
    monkeypatch.setattr(provider(logins), "token_refused", refused.append)
    logins.refused("b", 2)  # before the first token
    await logins.prepare("b", 2)
    logins.refused("b", 1)  # the controller listener has PLAIN
    assert refused == []
    logins.refused("b", 2)
    assert refused == ["a.b.c"]


async def test_tokens_without_a_signature_between_nodes() -> None:
    unsecured = {
        **OAUTH,
        "sasl.oauthbearer.jwks.endpoint.url": None,
        "sasl.server.callback.handler.class": UNSECURED_HANDLER,
        JAAS_OAUTH: f'{MODULE_OAUTH} unsecuredLoginStringClaim_sub="node";',
    }
    logins = PeerLogins(config(**unsecured), SeededRng(1))
    await logins.prepare("b", 2)
    sasl = logins.sasl("b", 2)
    assert sasl is not None
    assert sasl().start().startswith(b"n,,\1auth=Bearer ")
