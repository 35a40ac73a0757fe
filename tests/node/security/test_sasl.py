"""Logins by SASL, as raw conversations: Barnabas answers and closes as Kafka, except where DEVIATIONS says otherwise.

`tests/oracle/test_sasl_diff.py` compares the recorded answers with a real Kafka.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import socket
import ssl
from itertools import pairwise
from pathlib import Path
from struct import pack

import pytest

from barnabas.broker.scheduling.slices import LOGINS_PER_TURN
from barnabas.broker.security import server_login
from barnabas.broker.security.server_login import Authentications
from barnabas.protocol.messages.authentication import SaslAuthenticateRequest, SaslHandshakeRequest
from barnabas.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from tests.support.broker.in_memory import InMemory
from tests.support.broker.scrapes import scrape
from tests.support.oracle.quota_requests import alter_quotas, entry
from tests.support.oracle.sasl_script import (
    ALICE,
    DEVIATIONS,
    SCRAM_USERS,
    USERS,
    SaslWire,
    held,
    sasl_settings,
)
from tests.support.oracle.sasl_timing import goes_as, held_as
from tests.support.oracle.wire import Wire
from tests.support.security.certificates import CertificateAuthority
from tests.support.security.sasl_node import add_scram_user, address_of, sasl_node
from tests.support.waiting import elapsed, until

RECORDED = Path(__file__).parents[2] / "golden" / "sasl" / "conversations.json"
SETTINGS = dict(each.split("=", 1) for each in sasl_settings("SASL", "AGAIN"))
PLAIN_SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "connection.failed.authentication.delay.ms": "0",
    "listener.name.sasl.plain.sasl.jaas.config": SETTINGS["listener.name.sasl.plain.sasl.jaas.config"],
}


def deviating(name: str, said: list[object]) -> list[object]:
    """Kafka's answers with those that are otherwise here."""
    other = DEVIATIONS.get(name)
    if other is None:
        return said
    handshakes = [number for number, each in enumerate(said) if isinstance(each, list) and each[0] == "handshake"]
    return said[: handshakes[-1] + 1] + other


async def test_every_conversation_goes_as_with_kafka(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    recorded = json.loads(RECORDED.read_text())
    expected = {name: deviating(name, said) for name, said in recorded.items()}
    async with sasl_node(SETTINGS, "SASL", "AGAIN") as node:
        await add_scram_user(node, "alice", SCRAM_USERS["alice"], "SCRAM-SHA-256")
        await add_scram_user(node, "bob", SCRAM_USERS["bob"], "SCRAM-SHA-256")
        await add_scram_user(node, "alice", SCRAM_USERS["alice"], "SCRAM-SHA-512")
        addresses = address_of(node, "SASL"), address_of(node, "AGAIN")
        said = await asyncio.to_thread(held_as, expected, lambda names: held(*addresses, expected, names))
        assert {name: each for name, each in said.items() if not goes_as(each, expected[name])} == {}
        assert said.keys() == expected.keys()
        await until(lambda: not node.server.connections)
    for secret in (*USERS.values(), *SCRAM_USERS.values()):
        assert secret not in caplog.text


async def test_a_crowd_that_logs_in_delays_no_one_who_has_logged_in() -> None:
    """Each stranger sends a handshake, all in one turn; the others send a request after them in each turn."""
    async with sasl_node(PLAIN_SETTINGS, "SASL") as node:
        strangers = [InMemory(node, f"stranger-{number}", "SASL") for number in range(20 * LOGINS_PER_TURN)]
        client = InMemory(node, "client")
        for each in strangers:
            each.sends(17, 1, b"\0\5PLAIN")
        progress: list[tuple[int, int]] = []
        while not progress or progress[-1][0] < len(strangers):
            client.sends(18, 0)
            await asyncio.sleep(0)
            progress.append((sum(len(each.written) for each in strangers), len(client.written)))
        assert len(client.written) == len(progress), "each request is answered in the turn of its arrival"
        assert {after[0] - before[0] for before, after in pairwise(progress)} <= {0, LOGINS_PER_TURN}
        assert all(b"\0\5PLAIN" in each.written[0] for each in strangers)
        for each in (*strangers, client):
            each.end()


async def test_a_login_has_no_place_among_the_large_requests(caplog: pytest.LogCaptureFixture) -> None:
    """A token that is long is decoded at once; one with very many tagged fields ends its connection."""
    async with sasl_node(PLAIN_SETTINGS, "SASL") as node:
        long, tagged = (InMemory(node, name, "SASL") for name in ("long", "tagged"))
        for each in (long, tagged):
            each.sends(17, 1, b"\0\5PLAIN")
        token = b"\0alice\0" + b"guess" * 1_900
        long.sends(36, 1, len(token).to_bytes(4, "big") + token)
        tagged.sends(36, 2, b"\0\1\x94\x23" + 4_500 * b"\1\0")
        await until(lambda: not node.server.connections)
        assert [len(each.written) for each in (long, tagged)] == [2, 1]
        assert b"Invalid username or password" in long.written[1]
        assert node.slices.requests.running == 0
        assert "too many tagged fields in a request of a login" in caplog.text


def announces(size: int) -> bytes:
    """The beginning of a SaslAuthenticate frame of this size."""
    return pack(">ihhih", size, 36, 1, 2, -1)


@pytest.mark.parametrize(
    ("mechanism", "size", "stays"),
    [
        (None, 10 * 1024 + 1, False),
        ("PLAIN", 10 * 1024, True),
        ("PLAIN", 10 * 1024 + 1, False),
        ("SCRAM-SHA-256", 10 * 1024 + 1, False),
        ("OAUTHBEARER", 500_000, True),
        ("OAUTHBEARER", 524_289, False),
    ],
)
async def test_the_mechanism_limits_the_requests_of_a_login(mechanism: str | None, size: int, stays: bool) -> None:
    async with sasl_node(SETTINGS, "SASL", "AGAIN") as node:
        client = InMemory(node, "client", "SASL")
        if mechanism is not None:
            client.sends(17, 1, pack(">h", len(mechanism)) + mechanism.encode())
            await until(lambda: client.written)
        client.receive(announces(size))
        assert len(node.server.connections) == stays


async def test_strangers_share_memory_and_the_newest_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their incomplete requests do not keep another client from its login, whatever its token needs."""
    monkeypatch.setattr("barnabas.broker.front.server.LOGINS_BYTES_MAX", 1_000_000)
    async with sasl_node(SETTINGS, "SASL", "AGAIN") as node:
        strangers = [InMemory(node, f"stranger-{number}", "SASL") for number in range(10)]
        for each in strangers:
            each.sends(17, 1, pack(">h", 11) + b"OAUTHBEARER")
        await until(lambda: all(each.written for each in strangers))
        for each in strangers:
            each.receive(announces(300_000))
            each.receive(bytes(100_000))
            assert sum(one.core.reader.allocated_bytes for one in node.server.connections) <= 1_000_000
        assert [one.client_id for one in node.server.connections] == [f"stranger-{number}" for number in (7, 8, 9)]
        user = InMemory(node, "user", "SASL")
        user.sends(17, 1, b"\0\5PLAIN")
        await until(lambda: user.written)
        token = ALICE
        user.sends(36, 1, len(token).to_bytes(4, "big") + token)
        await until(lambda: len(user.written) == 2)
        assert node.server.connections, "it has logged in beside them"
        assert user.reading


async def test_hostile_frames_before_the_login_end_their_connection_only() -> None:
    seed = int(os.environ.get("BARNABAS_FUZZ_SEED", "1"))
    frames = int(os.environ.get("BARNABAS_SASL_FRAMES", "2000"))
    async with sasl_node(PLAIN_SETTINGS, "SASL") as node:
        await add_scram_user(node, "alice", SCRAM_USERS["alice"], "SCRAM-SHA-256")
        address = address_of(node, "SASL")
        await asyncio.to_thread(fuzz, address, random.Random(seed), frames)
        await until(lambda: not node.server.connections)
        assert node.failure is None
        with SaslWire(address) as wire:
            await asyncio.to_thread(wire.handshake, "PLAIN")
            await asyncio.to_thread(wire.token, ALICE)
            assert wire.said[-1][:5] == ("token", 0, "", False, 0)  # without a note of how long it took


def fuzz(address: str, rng: random.Random, count: int) -> None:
    """Sends frames that begin well and end otherwise."""
    starts = (b"n,,n=alice,r=", b"n,,\1auth=Bearer ", b"\0alice\0", b"c=biws,r=", b"", b"\xff" * 8)
    sent = 0
    while sent < count:
        with SaslWire(address) as wire:
            try:
                for _ in range(rng.randrange(1, 5)):
                    sent += 1
                    body = rng.choice(starts) + rng.randbytes(rng.choice((0, 1, 9, 40, 3_000)))
                    if (kind := rng.randrange(4)) == 0:
                        wire.frame(rng.randbytes(rng.randrange(4, 60)))
                    elif kind == 1:
                        wire.frame(b"\0\x24\0\2" + rng.randbytes(rng.randrange(4, 40)))
                    elif kind == 2:
                        wire.send(
                            SaslHandshakeRequest(mechanism=rng.choice(("PLAIN", "SCRAM-SHA-256"))), rng.randrange(2)
                        )
                    else:
                        wire.send(SaslAuthenticateRequest(auth_bytes=body), rng.randrange(3))
            except ConnectionError:
                continue


async def test_logins_and_handshakes_are_counted(ca: CertificateAuthority) -> None:
    settings = PLAIN_SETTINGS | {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL://127.0.0.1:0,TLS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL",
        "connections.max.reauth.ms": "60000",
        "metrics.listen": "127.0.0.1:0",
        **ca.issue("counted").by_file(),
    }

    def connect(login: str, tls: str) -> None:
        wrong = b"\0alice\0wrong"
        for tokens in ([wrong], [wrong], [ALICE, ALICE], [ALICE, wrong]):
            with SaslWire(login) as wire:
                for token in tokens:
                    wire.handshake("PLAIN")
                    wire.token(token)
        host, port = tls.split(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(b"GET / HTTP/1.1")
            raw.recv(10)
        context = ssl.create_default_context(cafile=ca.certificate)
        with socket.create_connection((host, int(port))) as raw, context.wrap_socket(raw, server_hostname="localhost"):
            pass

    async with sasl_node(settings, "SASL") as node:
        await asyncio.to_thread(connect, address_of(node, "SASL"), address_of(node, "TLS"))
        await until(lambda: node.server.authentications["TLS"].successful == 1)
        assert node.server.authentications == {
            "SASL": Authentications(successful=2, failed=2, renewed=1, failed_renewals=1),
            "TLS": Authentications(successful=1, failed=1),
        }
        series = await scrape(node)
        assert series.total("kafka_server_socket_server_metrics_failed_authentication_total", listener="SASL") == 2
        assert series.total("kafka_server_socket_server_metrics_successful_authentication_total") == 3


async def test_a_client_that_does_not_log_in_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A frame of 256 bytes comes one byte at a time. No byte gives the client more time."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(server_login, "DEADLINE_MS", 200)
    async with sasl_node(PLAIN_SETTINGS, "SASL") as node:
        host, port = node.server.addresses["SASL"]
        _, writer = await asyncio.open_connection(host, port)
        await until(lambda: node.server.connections)
        frame = iter(b"\0\0\1\0\0\x11\0\1" + bytes(252))
        while node.server.connections:
            writer.write(bytes([next(frame)]))
            await elapsed(node.reactor.clock, 10)
        assert "no login within 200 ms" in caplog.text
        writer.close()


async def test_a_connection_before_its_login_has_a_small_buffer() -> None:
    async with sasl_node(PLAIN_SETTINGS, "SASL") as node:
        host, port = node.server.addresses["SASL"]
        _, writer = await asyncio.open_connection(host, port)
        writer.write(b"\0\0")
        await until(lambda: any(each.core.reader.allocated_bytes for each in node.server.connections))
        assert [each.core.reader.allocated_bytes for each in node.server.connections] == [2_048]
        writer.close()


async def test_no_quota_counts_before_a_login() -> None:
    """The connection has no user yet; a quota of ANONYMOUS or of all users would delay the logins of everyone."""
    async with sasl_node(PLAIN_SETTINGS, "SASL") as node:

        def throttle_times() -> tuple[int, int]:
            with Wire(address_of(node, "PLAINTEXT")) as administrator, SaslWire(address_of(node, "SASL")) as before:
                alter_quotas(entry([("user", "ANONYMOUS")], ("request_percentage", 0.000_1)))(administrator)
                plain = administrator.call(MetadataRequest(), 3).throttle_time_ms
                return plain, before.call(ApiVersionsRequest(), 3).throttle_time_ms

        plain, before = await asyncio.to_thread(throttle_times)
    assert plain > 0
    assert before == 0


async def test_no_quota_counts_for_a_re_authentication() -> None:
    """The client would be muted between the two requests of its login, until its session is over."""
    async with sasl_node({**PLAIN_SETTINGS, "connections.max.reauth.ms": "3600000"}, "SASL") as node:

        def logged_in_again() -> list[bool]:
            with Wire(address_of(node, "PLAINTEXT")) as administrator, SaslWire(address_of(node, "SASL")) as wire:
                wire.handshake("PLAIN")
                wire.token(ALICE)
                alter_quotas(entry([("user", "alice")], ("request_percentage", 0.000_1)))(administrator)
                (connection,) = (each for each in node.server.connections if each.listener_name == "SASL")
                found = []
                for send in (
                    lambda: wire.handshake("PLAIN"),
                    lambda: wire.token(ALICE),
                    lambda: wire.handshake("PLAIN"),
                ):
                    send()
                    found.append(connection.core.may_read())
                return found

        assert await asyncio.to_thread(logged_in_again) == [True, True, False]  # the last one begins no login yet


async def test_a_request_after_the_end_of_a_session_is_no_request_before_a_login(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with sasl_node({**PLAIN_SETTINGS, "connections.max.reauth.ms": "50"}, "SASL") as node:

        def late() -> None:
            with SaslWire(address_of(node, "SASL")) as wire:
                wire.handshake("PLAIN")
                wire.token(ALICE)
                while wire.said[-1][0] != "closed":
                    wire.metadata()

        await asyncio.to_thread(late)
    (line,) = [each for each in caplog.records if "is closed by this node" in each.getMessage()]
    assert line.levelno == logging.INFO
    assert "listener=SASL reason=Metadata after the end of its session" in line.getMessage()


@pytest.mark.parametrize("received", ["nothing", "a part of a frame", "a handshake"])
async def test_bytes_of_many_logins_are_read_a_few_in_each_turn(received: str) -> None:
    async with sasl_node(PLAIN_SETTINGS, "SASL") as node:
        clients = [InMemory(node, "x", "SASL") for _ in range(3 * LOGINS_PER_TURN)]
        for client in clients:
            if received == "a part of a frame":
                client.receive(bytes(1))
            elif received == "a handshake":
                client.sends(17, 1, b"\0\5PLAIN")
        assert not any(client.reading for client in clients)
        for turn in (1, 2, 3):
            await asyncio.sleep(0)
            assert sum(client.reading for client in clients) <= turn * LOGINS_PER_TURN
        await until(lambda: all(client.reading for client in clients))


@pytest.mark.parametrize("name", [b"PLAIN", b"N" * 9_000])
async def test_a_long_handshake_in_a_full_turn_goes_as_a_short_one(name: bytes) -> None:
    """It is decoded in a later turn; a mechanism that is not enabled closes the connection without an answer, as in Kafka."""
    async with sasl_node({**PLAIN_SETTINGS, "connections.max.reauth.ms": "3600000"}, "SASL") as node:
        client = InMemory(node, "x" * 9_000, "SASL")

        def shakes_hands(mechanism: bytes) -> None:
            client.sends(17, 1, len(mechanism).to_bytes(2, "big") + mechanism)

        shakes_hands(b"PLAIN")
        await until(lambda: len(client.written) == 1)
        client.sends(36, 1, len(ALICE).to_bytes(4, "big") + ALICE)
        await until(lambda: len(client.written) == 2)
        node.server.slices.count(10**9)
        assert node.server.slices.turn_is_over
        shakes_hands(name)
        assert len(client.written) == 2
        if name == b"PLAIN":
            await until(lambda: len(client.written) == 3)
            client.sends(36, 1, len(ALICE).to_bytes(4, "big") + ALICE)
            await until(lambda: len(client.written) == 4)
        else:
            await until(lambda: not node.server.connections)
            assert len(client.written) == 2
