"""Logins by GSSAPI at a node, with a KDC of the machine: who a client is, what is refused, and tokens that are damaged."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.config.kerberos_names import local_names
from barnabas.broker.node.node import Node
from barnabas.broker.sasl.server_mechanism import LoginFailed
from barnabas.broker.security.core.gssapi_server import GssapiServer
from barnabas.client import Admin, AuthenticationFailed, Consumer, KafkaError, Producer
from barnabas.errors import BrokerError, ErrorCode
from barnabas.runtime.offload import WorkerThread
from tests.support.oracle.gssapi_script import CONVERSATIONS, DEVIATIONS, LISTENERS, GssWire, gssapi_settings, held
from tests.support.oracle.sasl_timing import goes_as, held_as
from tests.support.security.kdc import REALM, SERVICE, Kdc, running_kdc
from tests.support.security.sasl_node import address_of, sasl_node
from tests.support.waiting import until

RECORDED = Path(__file__).parents[2] / "golden" / "sasl" / "gssapi.json"


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with running_kdc(tmp_path_factory.mktemp("kdc")) as found:
        yield found


def settings_of(kdc: Kdc, **more: str) -> dict[str, str]:
    return {
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.sasl.gssapi.sasl.jaas.config": kdc.broker_jaas,
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "connection.failed.authentication.delay.ms": "0",
        "delegation.token.secret.key": "planted-token-secret",
        **more,
    }


@pytest.fixture
async def node(kdc: Kdc) -> AsyncIterator[Node]:
    async with sasl_node(settings_of(kdc), "SASL", offload=WorkerThread().run) as running:
        yield running


def login(node: Node, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": address_of(node, "SASL"),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_domain_name": "localhost",
        **more,
    }


def by_keytab(kdc: Kdc, name: str) -> dict[str, str]:
    return {"sasl_kerberos_principal": f"{name}@{REALM}", "sasl_kerberos_keytab": kdc.keytab_of(name)}


async def owner(settings: dict[str, Any]) -> str:
    """Who the broker takes the client for: the owner of a delegation token."""
    async with Admin(**settings) as admin:
        return str((await admin.create_delegation_token()).owner)


async def test_a_client_is_the_principal_of_its_ticket(kdc: Kdc, node: Node) -> None:
    assert await owner(login(node, **by_keytab(kdc, "alice"))) == "alice"
    assert await owner(login(node, sasl_kerberos_ticket_cache=kdc.tickets("bob"))) == "bob"
    settings = login(node, **by_keytab(kdc, "alice"))
    async with Producer(**settings) as producer:
        await producer.send_and_wait("topic", b"x")
    async with Consumer("topic", auto_offset_reset="earliest", group_id="g", **settings) as consumer:
        assert (await asyncio.wait_for(consumer.getone(), 60)).value == b"x"


async def test_every_conversation_goes_as_with_kafka(kdc: Kdc) -> None:
    expected = json.loads(RECORDED.read_text()) | DEVIATIONS
    async with sasl_node(gssapi_settings(kdc), *LISTENERS, offload=WorkerThread().run) as node:
        addresses = {name: address_of(node, name) for name in LISTENERS}
        said = await asyncio.to_thread(held_as, expected, lambda names: held(addresses, kdc, expected, names))
        assert {name: each for name, each in said.items() if not goes_as(each, expected[name])} == {}
        assert said.keys() == expected.keys()
        await until(lambda: not node.server.connections)


async def test_tokens_without_a_header_are_checked_in_a_thread(
    kdc: Kdc, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step reads and writes files: the other connections must not wait for it."""
    from barnabas.runtime import kerberos

    threads: set[int] = set()
    step = kerberos._Accepting.step

    def noted(self: Any, token: bytes) -> bytes:
        threads.add(threading.get_ident())
        return step(self, token)

    monkeypatch.setattr(kerberos._Accepting, "step", noted)
    address = address_of(node, "SASL")

    def talk() -> list[Any]:
        with GssWire(address, kdc) as wire:
            CONVERSATIONS["tokens without a header"](wire)
            return wire.said

    said = await asyncio.to_thread(talk)
    assert ("is", 0, "alice") in [each[:3] for each in said], said  # without a note of how long it took
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("RULE:[1:$1@$0](a.*)s/@.*/-x/U,DEFAULT", "alice", "ALICE-X"),
        ("RULE:[1:$1@$0](a.*)s/@.*/-x/U,DEFAULT", "bob", "bob"),
        ("RULE:[2:$1-$2]", "kafka/other", "kafka-other"),
    ],
)
async def test_rules_make_the_name(kdc: Kdc, rules: str, name: str, expected: str) -> None:
    settings = settings_of(kdc, **{"sasl.kerberos.principal.to.local.rules": rules})
    async with sasl_node(settings, "SASL", offload=WorkerThread().run) as node:
        assert await owner(login(node, **by_keytab(kdc, name))) == expected


async def refusal(settings: dict[str, Any]) -> str:
    with pytest.raises(AuthenticationFailed) as refused:
        await Admin(**settings).start()
    return str(refused.value)


async def test_clients_that_are_refused(kdc: Kdc, node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    text = "due to invalid credentials with SASL mechanism GSSAPI"
    ahead = kdc.shifted(kdc.tickets("alice", service=SERVICE), 1_800)
    assert text in await refusal(login(node, sasl_kerberos_ticket_cache=ahead))
    assert "Clock skew too great" in caplog.text
    # These do not reach the broker.
    late = kdc.shifted(kdc.tickets("alice", service=SERVICE), 50_000)
    assert "expired" in await refusal(login(node, sasl_kerberos_ticket_cache=late))
    assert "No credentials cache" in await refusal(login(node, sasl_kerberos_ticket_cache="FILE:/none"))
    other = {"sasl_kerberos_service_name": "nobody"}
    assert "not found in Kerberos database" in await refusal(login(node, **by_keytab(kdc, "alice"), **other))
    wrong = {"sasl_kerberos_principal": f"alice@{REALM}", "sasl_kerberos_keytab": kdc.keytab_of("bob")}
    assert "GSSAPI: " in await refusal(login(node, **wrong))


async def test_a_ticket_for_another_service_is_refused(kdc: Kdc, node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    settings = login(node, **by_keytab(kdc, "alice"))
    assert "due to invalid credentials" in await refusal({**settings, "sasl_kerberos_domain_name": "other"})
    assert "A Kerberos login is refused: reason=" in caplog.text


async def test_a_principal_without_a_rule_is_refused(kdc: Kdc, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    settings = settings_of(kdc, **{"sasl.kerberos.principal.to.local.rules": "RULE:[2:$1]"})
    async with sasl_node(settings, "SASL", offload=WorkerThread().run) as node:
        await refusal(login(node, **by_keytab(kdc, "alice")))
    assert f"no rule of sasl.kerberos.principal.to.local.rules applies to 'alice@{REALM}'" in caplog.text


async def test_a_keytab_that_cannot_be_used_stops_the_start(kdc: Kdc) -> None:
    for old, new, why in ((kdc.keytab, "/none/x.keytab", "not found"), (SERVICE, f"kafka/x@{REALM}", "kafka/x@")):
        settings = settings_of(kdc)
        jaas = "listener.name.sasl.gssapi.sasl.jaas.config"
        with pytest.raises(BrokerError) as refused:
            async with sasl_node({**settings, jaas: settings[jaas].replace(old, new)}, "SASL"):
                pass
        assert refused.value.code is ErrorCode.INVALID_CONFIG
        assert why in str(refused.value)
        assert "ktadd" in str(refused.value)


@pytest.fixture
def own_keytab(kdc: Kdc, tmp_path: Path) -> str:
    """A keytab of bob by which no earlier test has tickets."""
    path = tmp_path / "own.keytab"
    path.write_bytes(Path(kdc.keytab_of("bob")).read_bytes())
    return str(path)


async def test_a_kdc_that_does_not_answer_stops_only_its_client(
    kdc: Kdc, node: Node, own_keytab: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = login(node, sasl_kerberos_principal=f"bob@{REALM}", sasl_kerberos_keytab=own_keytab)
    silent = socket.create_server(("127.0.0.1", 0))
    with silent:
        config = tmp_path / "krb5.conf"
        config.write_text(re.sub(r"kdc = .*", f"kdc = 127.0.0.1:{silent.getsockname()[1]}", kdc.config.read_text()))
        monkeypatch.setenv("KRB5_CONFIG", str(config))
        with pytest.raises(KafkaError):
            await Admin(**settings, request_timeout_ms=1_000).start()
        monkeypatch.undo()
        assert await owner(login(node, **by_keytab(kdc, "alice"))) == "alice"


def test_damaged_tokens_are_refused(kdc: Kdc) -> None:
    """Every message of the client, damaged at random: refused or closed, and nothing else."""
    from barnabas.runtime.kerberos import KerberosAcceptor, KerberosInitiator

    rng = random.Random(7)
    acceptor = KerberosAcceptor(kdc.keytab, SERVICE)
    initiator = KerberosInitiator("kafka", principal=f"alice@{REALM}", keytab=kdc.keytab_of("alice"))
    names = local_names(("DEFAULT",), REALM)
    refused = 0
    for number in range(9_000):
        server = GssapiServer(acceptor.context(), names, lambda reason: None)
        client: Any = None
        if number % 4 == 0:  # damage the second or the third message
            client = initiator.context("localhost")
            client.step(server.step(client.step(b""), 0))
            token = b""
            if number % 8:
                client.unwrap(server.step(b"", 0))
                token = client.wrap(bytes((1, 0, 0, 0)))
        else:
            if number % 100 == 1:
                first = initiator.context("localhost").step(b"")
            token = first
        wrong = damaged(token, rng)
        if number % 8 == 4 and len(wrong) == len(token):
            wrong = wrong[:6] + token[6:8] + wrong[8:]  # RFC 4121, 4.2.5: the rotation count is not protected
        if wrong == token:
            continue
        try:
            server.step(wrong, 0)
        except LoginFailed:
            refused += 1
        assert server.identity is None, (number, token.hex(), wrong.hex())
    assert refused > 8_500


async def test_damaged_tokens_end_their_connection_only(kdc: Kdc, node: Node) -> None:
    rng = random.Random(8)
    address = address_of(node, "SASL")

    def send() -> None:
        refused = 0
        for number in range(1_000):
            with GssWire(address, kdc) as wire:
                wire.handshake("GSSAPI")
                if number % 20 == 0:
                    first = wire.context().step(b"")
                wrong = damaged(first, rng)
                if wrong != first:
                    wire.token(wrong)
                    wire.end()
                    refused += wire.said[-1] == "closed"
        assert (
            refused > 950
        )  # a few bits of the first message are not protected: the login goes on, and is not complete

    await asyncio.to_thread(send)
    await until(lambda: not node.server.connections)
    assert node.failure is None
    assert await owner(login(node, **by_keytab(kdc, "alice"))) == "alice"


def damaged(token: bytes, rng: random.Random) -> bytes:
    data = bytearray(token)
    kind = rng.randrange(4) if data else 2
    if kind == 0:
        return bytes(data[: rng.randrange(len(data))])
    if kind == 1:
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(1, 9)] = rng.randbytes(rng.randrange(12))
    elif kind == 2:
        data += rng.randbytes(rng.randrange(1, 40))
    else:
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)
