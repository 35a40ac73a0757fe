"""Three brokers that log in at each other, and serve clients and commands, by GSSAPI alone; sessions are renewed all the time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.client import Admin, Consumer, NewTopic, Producer
from barnabas.client.net.security_properties import security_from_properties
from tests.support.processes.cli import called
from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker  # not the kit: the brokers' own listeners have logins
from tests.support.security.kdc import Kdc, running_kdc

pytestmark = pytest.mark.process

RECORDS = 300


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with running_kdc(tmp_path_factory.mktemp("kdc")) as found:
        yield found


@pytest.fixture
def cluster(tmp_path: Path, kdc: Kdc) -> Iterator[list[ServedBroker]]:
    ports = free_ports(6)
    controllers = dict(zip((1, 2, 3), ports[3:], strict=True))
    settings = {
        "process.roles": "broker,controller",
        "controller.quorum.voters": ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items()),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "SECURE",
        "listener.security.protocol.map": "SECURE:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.mechanism.controller.protocol": "GSSAPI",
        "sasl.mechanism.inter.broker.protocol": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.secure.gssapi.sasl.jaas.config": kdc.broker_jaas,
        "listener.name.controller.gssapi.sasl.jaas.config": kdc.broker_jaas,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:kafka;User:alice",
        "connections.max.reauth.ms": "1500",
    }
    nodes = []
    for (node, controller), port in zip(controllers.items(), ports, strict=False):
        listeners = {
            "listeners": f"SECURE://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"SECURE://127.0.0.1:{port}",
        }
        texts = [f"{key}={value}" for key, value in (settings | listeners).items()]
        nodes.append(ServedBroker(tmp_path / f"node-{node}", *texts, node_id=node, listens=False, port=port))
    try:
        for each in nodes:
            each.launch()
        for each in nodes:
            each.await_ready()
        yield nodes
        for each in nodes:
            each.end()
    finally:
        for each in nodes:
            each.kill()
    for each in nodes:
        assert "does not let this node log in" not in each.log()


async def test_records_are_replicated_while_sessions_end_and_a_broker_is_killed(
    cluster: list[ServedBroker], kdc: Kdc, tmp_path: Path
) -> None:
    properties = kdc.client_properties("alice")
    login: Any = security_from_properties(properties)
    settings: Any = {"bootstrap_servers": ",".join(each.address for each in cluster), **login}
    async with Admin(**settings) as admin:
        await admin.create_topics([NewTopic("t", 1, 3)])
    async with Producer(**settings) as producer:
        began = asyncio.get_running_loop().time()
        for number in itertools.count():  # longer than two sessions
            await producer.send_and_wait("t", b"%d" % number)
            if number == 20:
                cluster[1].kill()
                cluster[1].launch()
            if number >= RECORDS and asyncio.get_running_loop().time() - began > 3.5:
                break
    async with Consumer("t", auto_offset_reset="earliest", **settings) as consumer:
        for expected in range(number + 1):
            assert (await asyncio.wait_for(consumer.getone(), 60)).value == b"%d" % expected
    cluster[1].await_ready()
    path = tmp_path / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    for arguments in (("topic", "list"), ("consume", "t", "--from-beginning", "--exit-at-end")):
        done = await asyncio.to_thread(called, *arguments, "-b", cluster[0].address, "--command-config", str(path))
        assert done.returncode == 0, done.shown
        assert done.stdout.split()[0] in ("t", "0")
