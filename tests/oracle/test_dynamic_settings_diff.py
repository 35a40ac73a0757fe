"""Altered settings of brokers, with Kafka and with Barnabas: what both refuse, and what only Barnabas refuses (docs/deviations.md).

Each change is validated only, for one broker and for all: set, deleted, and as the only setting of AlterConfigs. Both have a listener
with logins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.oracle.admin_requests import alter, replace
from tests.support.oracle.real_kafka import needs_java, running_kafka
from tests.support.oracle.wire import Wire
from tests.support.processes.ports import free_port_block
from tests.support.processes.served import ServedBroker

pytestmark = pytest.mark.oracle

BROKER, SET, DELETE = 4, 0, 1
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="b";'
SETTINGS = (
    "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
    "inter.broker.listener.name=PLAINTEXT",
    "sasl.enabled.mechanisms=PLAIN",
    f"listener.name.sasl.plain.sasl.jaas.config={JAAS}",
)
# Both answer the same code and the same text.
SAME = (
    ("sasl.enabled.mechanisms", "PLAIN"),
    ("sasl.enabled.mechanisms", "plain"),
    ("sasl.jaas.config", JAAS),
    ("sasl.jaas.config", "junk"),
    ("sasl.mechanism.inter.broker.protocol", "PLAIN"),
    ("sasl.kerberos.service.name", "kafka"),
    ("sasl.kerberos.kinit.cmd", "/x"),
    ("sasl.kerberos.ticket.renew.window.factor", "0.7"),
    ("sasl.kerberos.ticket.renew.jitter", "0.1"),
    ("sasl.kerberos.principal.to.local.rules", "DEFAULT"),
    ("sasl.login.refresh.window.factor", "0.7"),
    ("sasl.login.refresh.min.period.seconds", "60"),
    ("sasl.server.max.receive.size", "100"),
    ("sasl.login.connect.timeout.ms", "1000"),
    ("sasl.server.callback.handler.class", "x"),
    ("ssl.keystore.location", "/nope.pem"),
    ("ssl.keystore.type", "PEM"),
    ("ssl.key.password", "x"),
    ("ssl.truststore.certificates", "x"),
    ("ssl.principal.mapping.rules", "DEFAULT"),
    ("connections.max.reauth.ms", "1000"),
    ("connection.failed.authentication.delay.ms", "1"),
    ("advertised.listeners", "PLAINTEXT://127.0.0.1:1"),
    ("authorizer.class.name", ""),
    ("delegation.token.secret.key", "x"),
    ("max.connections", "9"),
    ("max.connections", "-1"),
    ("max.connections.per.ip", "9"),
    ("max.connections.per.ip.overrides", "127.0.0.1:9"),
    ("max.connection.creation.rate", "9"),
    ("num.network.threads", "3"),
    ("compression.type", "GZIP"),
    ("compression.type", "Gzip"),
    ("log.cleanup.policy", "Delete"),
    ("log.message.timestamp.type", "createtime"),
    ("unclean.leader.election.enable", "True"),
    ("Sasl.enabled.mechanisms", "PLAIN"),
    ("nope", "x"),
    ("listener.name.sasl.sasl.enabled.mechanisms", "PLAIN"),
    ("listener.name.sasl.sasl.enabled.mechanisms", "plain"),
    ("listener.name.sasl.plain.sasl.jaas.config", JAAS),
    ("listener.name.sasl.sasl.jaas.config", JAAS),
    ("listener.name.sasl.scram-sha-256.sasl.jaas.config", "junk"),
    ("listener.name.sasl.sasl.kerberos.service.name", "kafka"),
    ("listener.name.sasl.ssl.keystore.location", "/nope.pem"),
    ("listener.name.sasl.ssl.keystore.type", "pem"),
    ("listener.name.sasl.ssl.truststore.certificates", "x"),
    ("listener.name.sasl.max.connections", "9"),
    ("listener.name.sasl.max.connections", "x"),
    ("listener.name.sasl.max.connection.creation.rate", "9"),
    ("listener.name.controller.sasl.enabled.mechanisms", "PLAIN"),
    ("listener.name.controller.max.connections", "5"),
)
# Both refuse to set it, in other words.
REFUSED = (
    ("sasl.kerberos.min.time.before.relogin", "x"),
    ("listener.name.sasl.plain.sasl.server.callback.handler.class", "x"),
    ("listener.name.sasl.connections.max.reauth.ms", "x"),
    ("listener.name.sasl.ssl.client.auth", "Required"),
    ("listener.name.nope.ssl.client.auth", "x"),
    ("listener.name.sasl.principal.builder.class", "x"),
    ("listener.security.protocol.map", "PLAINTEXT:SSL"),
    ("ssl.engine.factory.class", "x"),
    ("principal.builder.class", "x"),
)
# Kafka sets it for one broker: the rows of docs/deviations.md about AlterConfigs.
REFUSED_HERE = (
    ("sasl.enabled.mechanisms", "NOPE"),
    ("sasl.enabled.mechanisms", ""),
    ("listener.name.sasl.sasl.enabled.mechanisms", "NOPE"),
    ("listener.name.sasl.plain.sasl.jaas.config", "junk"),
    ("listener.name.sasl.PLAIN.sasl.jaas.config", JAAS),
    ("listener.name.SASL.sasl.enabled.mechanisms", "PLAIN"),
    ("listener.name.SASL.plain.sasl.jaas.config", JAAS),
    ("listener.name.SASL.connections.max.reauth.ms", "x"),
    ("listener.name.nope.sasl.enabled.mechanisms", "PLAIN"),
    ("listener.name.nope.ssl.client.auth", "required"),
    ("listener.name.nope.log.retention.ms", "1000"),
    ("listener.name.sasl.log.retention.ms", "1000"),
    ("listener.name.sasl.max.connections.per.ip", "9"),
    ("listener.name.sasl.ssl.client.auth", "required"),
    ("listener.name.sasl.ssl.enabled.protocols", "TLSv1.3"),
    ("listener.name.sasl.ssl.principal.mapping.rules", "DEFAULT"),
    ("listener.name.sasl.connections.max.reauth.ms", "1000"),
    ("listener.name.sasl.sasl.server.max.receive.size", "100"),
    ("ssl.client.auth", "required"),
    ("ssl.enabled.protocols", "TLSv1.3"),
    ("sasl.kerberos.principal.to.local.rules", "RULE:[1:$1"),
    ("sasl.login.refresh.window.factor", "7"),
)
# Kafka sets it for all brokers, too.
REFUSED_HERE_FOR_ALL = (
    ("listener.name.nope.max.connections", "9"),
    ("listener.name.SASL.max.connections", "9"),
    ("listener.name.sasl.num.network.threads", "3"),
    ("listener.name.sasl", "x"),
    ("listener.name.", "x"),
    ("super.users", "User:a"),
    ("allow.everyone.if.no.acl.found", "true"),
)


@pytest.fixture(scope="module")
def wires(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Wire, Wire]]:
    """Connections to Kafka and to Barnabas."""
    needs_java()
    folder = tmp_path_factory.mktemp("dynamic-settings")
    port = free_port_block(6)

    def listeners(first: int) -> tuple[str, str]:
        clients = f"PLAINTEXT://127.0.0.1:{first},SASL://127.0.0.1:{first + 2}"
        return f"listeners={clients},CONTROLLER://127.0.0.1:{first + 1}", f"advertised.listeners={clients}"

    quorum = (
        "process.roles=broker,controller",
        "controller.listener.names=CONTROLLER",
        f"controller.quorum.voters=1@127.0.0.1:{port + 4}",
    )
    ours = ServedBroker(folder / "barnabas", *SETTINGS, *quorum, *listeners(port + 3), port=port + 3, listens=False)
    try:
        ours.launch()
        with running_kafka(folder, port, (*SETTINGS, *listeners(port))):
            ours.await_ready()
            with Wire(f"127.0.0.1:{port}") as theirs, Wire(ours.address) as mine:
                yield theirs, mine
        ours.end()
    finally:
        ours.kill()


def asked(wire: Wire, broker: str, name: str, value: str) -> list[tuple[int, str | None]]:
    """Code and text for setting, deleting and replacing."""
    answers: list[Any] = [
        alter(BROKER, broker, (name, value, SET), validate_only=True)(wire),
        alter(BROKER, broker, (name, None, DELETE), validate_only=True)(wire),
        replace((BROKER, broker, {name: value}), validate_only=True)(wire),
    ]
    return [answer[0][-2:] for answer in answers]


@pytest.mark.parametrize("broker", ["1", ""], ids=["one broker", "all brokers"])
def test_the_same_answers(wires: tuple[Wire, Wire], broker: str) -> None:
    both = {(name, value): [asked(wire, broker, name, value) for wire in wires] for name, value in SAME}
    assert {change: answers for change, answers in both.items() if answers[0] != answers[1]} == {}


@pytest.mark.parametrize("broker", ["1", ""], ids=["one broker", "all brokers"])
def test_the_same_refusals(wires: tuple[Wire, Wire], broker: str) -> None:
    for name, value in REFUSED:
        codes = [[code for code, _ in asked(wire, broker, name, value)] for wire in wires]
        assert codes == [[42, 0, 42]] * 2, name


def test_what_kafka_sets_for_one_broker_only(wires: tuple[Wire, Wire]) -> None:
    for name, value in REFUSED_HERE:
        codes = [[code for code, _ in asked(wire, "1", name, value)] for wire in wires]
        assert codes == [[0, 0, 0], [42, 0, 42]], name
        codes = [[code for code, _ in asked(wire, "", name, value)] for wire in wires]
        assert codes == [[42, 0, 42]] * 2, name


def test_what_kafka_sets_without_effect(wires: tuple[Wire, Wire]) -> None:
    for name, value in REFUSED_HERE_FOR_ALL:
        for broker in ("1", ""):
            codes = [[code for code, _ in asked(wire, broker, name, value)][:2] for wire in wires]
            assert codes == [[0, 0], [42, 0]], name
