"""Signing keys of a server that fails on command: the pauses between readings, rotation, and storms of unknown keys."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import in_place
from barnabas.broker.security.jwks import DOCUMENT_BYTES_MAX, KeySource, SigningKeys
from barnabas.testing.simulation.clock import SimClock
from barnabas.testing.simulation.loop import SimLoop
from barnabas.testing.simulation.trace import Trace
from tests.support.rng import SeededRng
from tests.support.security.certificates import CertificateAuthority
from tests.support.security.identity_server import Answer, IdentityServer, identity_server, signing_key

REFRESH_MS, BACKOFF_MS, BACKOFF_MS_MAX = 3_600_000, 100, 10_000


@pytest.fixture
def server() -> Iterator[IdentityServer]:
    with identity_server() as running:
        yield running


class World:
    """Keys on a simulated loop: requests are real, pauses are not."""

    def __init__(self, source: KeySource) -> None:
        self.loop = SimLoop(Trace(keep=None))
        self.reactor = Reactor(SimClock(self.loop), SeededRng(1), name="test", on_fatal=self._fatal)
        self.keys = SigningKeys(self.reactor, in_place, source, REFRESH_MS, BACKOFF_MS, BACKOFF_MS_MAX)

    def _fatal(self, error: BaseException) -> None:
        raise error

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        async def main() -> None:
            self.reactor.attach()
            self.keys.read()
            await asyncio.sleep(0.001)
            await work
            await self.reactor.stop()

        self.loop.run(main())

    @property
    def names(self) -> list[str]:
        return [] if self.keys.keys is None else [str(each.kid) for each in self.keys.keys.keys]


def pauses(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [int(each) for each in re.findall(r"retry_ms=(\d+)", caplog.text)]


def test_a_server_that_is_not_there_yet(server: IdentityServer, caplog: pytest.LogCaptureFixture) -> None:
    """The pauses double up to the longest one, and the keys count as soon as they can be read."""
    caplog.set_level(logging.INFO)
    server.keys_answer = lambda: Answer(503)
    world = World(KeySource(server.keys_url))

    async def work() -> None:
        await asyncio.sleep(40)
        assert world.names == []
        assert pauses(caplog) == [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000]
        server.keys_answer = None
        await asyncio.sleep(10)
        assert world.names == ["first"]
        readings = server.key_readings
        await asyncio.sleep(REFRESH_MS / 1_000 - 11)
        assert server.key_readings == readings
        await asyncio.sleep(11)
        assert server.key_readings == readings + 1

    world.run(work())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(500), "error=status 500 "),
        (Answer(200, b"<html>"), "the document is no set of keys"),
        (Answer(200, b'{"keys": []}'), "the document has no key for signatures"),
        (Answer(200, b" " * (DOCUMENT_BYTES_MAX + 2)), "the document has more than"),
        (Answer(302, headers={"location": "ftp://127.0.0.1/keys"}), "error="),
        (Answer(302, headers={"location": "file:///etc/hostname"}), "error="),
    ],
    ids=range(6),
)
def test_a_document_that_cannot_be_used_keeps_the_former_keys(
    server: IdentityServer, answer: Answer, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(KeySource(server.keys_url))

    async def work() -> None:
        assert world.names == ["first"]
        server.keys_answer = lambda: answer
        world.keys.read()
        await asyncio.sleep(0.001)
        assert world.names == ["first"]
        assert why in caplog.text
        assert pauses(caplog) == [100]

    world.run(work())


def test_a_rotation_is_found_by_the_first_unknown_key_and_a_storm_of_them_reads_little(server: IdentityServer) -> None:
    world = World(KeySource(server.keys_url))

    async def work() -> None:
        await asyncio.sleep(BACKOFF_MS_MAX / 1_000)
        server.keys.append(signing_key("second"))
        world.keys.on_unknown_key()
        await asyncio.sleep(0.001)
        assert world.names == ["first", "second"]
        assert server.key_readings == 2
        for _ in range(60_000):  # a thousand a second, for a minute
            world.keys.on_unknown_key()
            await asyncio.sleep(0.001)
        assert server.key_readings == 8
        del server.keys[0]
        await asyncio.sleep(REFRESH_MS / 1_000)
        assert world.names == ["second"]

    world.run(work())


def test_unknown_keys_do_not_shorten_the_pauses_of_a_server_that_fails(server: IdentityServer) -> None:
    server.keys_answer = lambda: Answer(503)
    world = World(KeySource(server.keys_url))

    async def work() -> None:
        await asyncio.sleep(30)
        readings = server.key_readings
        for _ in range(1_000):
            world.keys.on_unknown_key()
            await asyncio.sleep(0.01)
        assert server.key_readings <= readings + 2

    world.run(work())


def test_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    world = World(KeySource(f"http://127.0.0.1:{port}/keys"))

    async def work() -> None:
        assert pauses(caplog) == [100]
        assert "error=Connection refused " in caplog.text
        assert world.names == []

    world.run(work())


def test_proxies_of_the_environment_are_not_used(server: IdentityServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Java. Tokens of an endpoint are got without a proxy as well."""
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    world = World(KeySource(server.keys_url))

    async def work() -> None:
        assert world.names == ["first"]

    world.run(work())


def test_https_trusts_the_store_of_the_jaas_text(ca: CertificateAuthority, caplog: pytest.LogCaptureFixture) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca.issue("keys", hosts=("127.0.0.1",)).both)
    with identity_server(context) as server:
        url = server.keys_url

        async def work() -> None:
            pass

        trusting = World(KeySource(url, ca.truststore()))
        trusting.run(work())
        assert trusting.names == ["first"]
        other = World(KeySource(url, {}))
        other.run(work())
        assert other.names == []
        assert pauses(caplog) == [100]
        assert "error=the certificate is refused: " in caplog.text


def test_a_trust_store_is_read_with_each_document(
    ca: CertificateAuthority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "trusted.pem"
    store.write_bytes(CertificateAuthority(tmp_path / "other").certificate.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca.issue("keys", hosts=("127.0.0.1",)).both)
    with identity_server(context) as server:
        by_file = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(store)}
        world = World(KeySource(server.keys_url, by_file))

        async def work() -> None:
            assert world.names == []
            store.unlink()
            world.keys.read()
            await asyncio.sleep(0.001)
            assert "error=sasl.jaas.config: ssl.truststore" in caplog.text
            store.write_bytes(ca.certificate.read_bytes())
            world.keys.read()
            await asyncio.sleep(0.001)
            assert world.names == ["first"]

        world.run(work())
