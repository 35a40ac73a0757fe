"""GSSAPI with Kafka and with Barnabas: the recorded answers of Kafka are those of the real one, with the same keytab.

The bundled client logs in at Kafka, and Kafka's tools at Barnabas.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.client import Admin, AuthenticationFailed, Consumer, Producer
from barnabas.client.net.security_properties import security_from_properties
from barnabas.runtime.offload import WorkerThread
from tests.support.clients.renewed import sends_through_renewals
from tests.support.oracle.gssapi_script import LISTENERS, REAUTH_MS, gssapi_settings, held
from tests.support.oracle.real_kafka import needs_java, running_kafka
from tests.support.oracle.sasl_timing import goes_as, held_as
from tests.support.oracle.tools import tool
from tests.support.processes.ports import free_port_block
from tests.support.security.kdc import SERVICE, Kdc, running_kdc
from tests.support.security.sasl_node import address_of, sasl_node

pytestmark = pytest.mark.oracle

RECORDED = Path(__file__).parents[1] / "golden" / "sasl" / "gssapi.json"


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with running_kdc(tmp_path_factory.mktemp("kdc")) as found:
        yield found


@pytest.fixture(scope="module")
def kafka_with_kerberos(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses of the listeners of a Kafka."""
    port = free_port_block(5)
    addresses = {"PLAINTEXT": f"127.0.0.1:{port}"}
    addresses |= {name: f"127.0.0.1:{port + 2 + number}" for number, name in enumerate(LISTENERS)}
    listeners = ",".join(f"{name}://{address}" for name, address in addresses.items())
    mapped = ",".join(f"{name}:SASL_PLAINTEXT" for name in LISTENERS)
    settings = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{port + 1}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,{mapped}",
        "inter.broker.listener.name": "PLAINTEXT",
        "group.initial.rebalance.delay.ms": "0",
        **gssapi_settings(kdc),
    }
    realm = {"JAVA_TOOL_OPTIONS": f"-Djava.security.krb5.conf={kdc.config}"}  # Java reads no KRB5_CONFIG
    given = [f"{name}={value}" for name, value in settings.items()]
    with running_kafka(tmp_path_factory.mktemp("kerberos-kafka"), port, given, realm):
        yield addresses


def test_the_recorded_conversations_are_those_of_kafka(kafka_with_kerberos: dict[str, str], kdc: Kdc) -> None:
    recorded = json.loads(RECORDED.read_text())
    said = held_as(recorded, lambda names: held(kafka_with_kerberos, kdc, recorded, names))
    assert {name: each for name, each in said.items() if not goes_as(each, recorded[name])} == {}
    assert said.keys() == recorded.keys()


async def test_the_bundled_client_with_kafka(kafka_with_kerberos: dict[str, str], kdc: Kdc) -> None:
    login: Any = {
        "bootstrap_servers": kafka_with_kerberos["SASL"],
        **security_from_properties(kdc.client_properties("alice")),
    }
    async with Producer(**login) as producer:
        sent = await producer.send_and_wait("bundled", b"x")
    async with Consumer("bundled", auto_offset_reset="earliest", group_id="g", **login) as consumer:
        record = await asyncio.wait_for(consumer.getone(), 60)
    assert (record.value, record.offset) == (b"x", sent.offset)
    by_tickets: Any = {
        **login,
        "sasl_kerberos_principal": None,
        "sasl_kerberos_keytab": None,
        "sasl_kerberos_domain_name": "localhost",
    }
    ahead = kdc.shifted(kdc.tickets("alice", service=SERVICE), 1_800)
    for cache, why in ((ahead, "due to invalid credentials with SASL mechanism GSSAPI"), ("FILE:/none", "GSSAPI: ")):
        with pytest.raises(AuthenticationFailed, match=why):
            await Admin(**{**by_tickets, "sasl_kerberos_ticket_cache": cache}).start()
    async with Admin(**{**by_tickets, "sasl_kerberos_ticket_cache": kdc.tickets("bob")}) as admin:
        assert (await admin.create_delegation_token()).owner == "bob"


async def test_a_session_is_renewed_with_kafka(kafka_with_kerberos: dict[str, str], kdc: Kdc) -> None:
    login: Any = {
        "bootstrap_servers": kafka_with_kerberos["AGAIN"],
        **security_from_properties(kdc.client_properties("alice")),
    }
    await sends_through_renewals("renewed", REAUTH_MS / 1_000, 4, **login)


async def test_kafkas_tools_with_barnabas(kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_java()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={kdc.config}")
    settings = {**gssapi_settings(kdc), "offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}

    def write(name: str, keytab: str, principal: str) -> str:
        found = kdc.client_properties(name)
        found["sasl.jaas.config"] = found["sasl.jaas.config"].replace(kdc.keytab_of(name), keytab)
        path = tmp_path / f"{principal.replace('/', '-')}.properties"
        path.write_text(
            "".join(f"{key}={value.replace(f'{name}@', f'{principal}@')}\n" for key, value in found.items())
        )
        return str(path)

    alice = write("alice", kdc.keytab_of("alice"), "alice")
    async with sasl_node(settings, *LISTENERS, offload=WorkerThread().run) as node:
        address = address_of(node, "SASL")

        def run(name: str, *arguments: str, config: str = alice, stdin: str = "", expected: int = 0) -> str:
            given = (*arguments, "--bootstrap-server", address, "--command-config", config)
            return tool(name, *given, stdin=stdin, expected=expected)

        await asyncio.to_thread(run, "ConsoleProducer", "--topic", "java", stdin="one\ntwo\n")
        read = await asyncio.to_thread(
            run,
            "consumer.ConsoleConsumer",
            "--topic",
            "java",
            "--from-beginning",
            "--max-messages",
            "2",
            "--group",
            "g",
        )
        assert read.split() == ["one", "two"]
        wrong = write("alice", kdc.keytab_of("alice"), "nobody")
        assert "java" not in await asyncio.to_thread(run, "TopicCommand", "--list", config=wrong, expected=1)
