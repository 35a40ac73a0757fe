"""TLS connections before the end of their handshake: deadlines, limits, refusals; and errors that reach the application."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from barnabas.network_port import ListenerOptions
from barnabas.runtime import tls_handshakes, tls_transport
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.tls import TlsSettings, client_context, server_context
from barnabas.runtime.tls_handshakes import HandshakeGate
from barnabas.runtime.tls_transport import TlsConnection
from tests.support.security.certificates import CertificateAuthority
from tests.support.waiting import until


class Application(asyncio.Protocol):
    """Notes what it hears."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.transport: asyncio.Transport | None = None
        self.error: Exception | None = None

    def connection_accepted(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.events.append("accepted")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.events.append(f"data {len(data)}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self.events.append("lost")


@pytest.fixture(scope="module")
def contexts(ca: CertificateAuthority) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server and of a client."""
    keys = TlsSettings.from_keys((ca.issue("transport").by_file() | ca.truststore()).get)
    return server_context(keys), client_context(keys)


def serve(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
    body: Callable[[AsyncioNetwork, tuple[str, int], list[Application]], Awaitable[None]],
) -> None:
    """Runs `body` with a TLS listener."""

    async def main() -> None:
        served: list[Application] = []

        def factory() -> Application:
            served.append(Application())
            return served[-1]

        network = AsyncioNetwork()
        options = ListenerOptions(tls=lambda: contexts[0])
        listener = await network.listen(factory, "127.0.0.1", 0, options=options)
        async with asyncio.timeout(60):
            await body(network, listener.address, served)
        listener.close()

    asyncio.run(main())


def test_slow_clients_cost_no_tls_state_and_end_at_the_deadline(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_transport, "HANDSHAKE_TIMEOUT_S", 3.0)

    async def body(network: AsyncioNetwork, address: tuple[str, int], served: list[Application]) -> None:
        slow = [await asyncio.open_connection(*address) for _ in range(150)]
        for _, writer in slow:
            writer.write(b"\x16")
        transport, _ = await network.connect(Application, *address, tls=contexts[1])  # before any deadline
        await until(lambda: any("made" in each.events for each in served))
        assert not any("lost" in each.events for each in served)
        connections = [cast(TlsConnection, each.transport) for each in served]
        assert sum(each.get_extra_info("ssl_object") is not None for each in connections) == 1
        for reader, writer in slow:
            assert await reader.read() == b""
            writer.close()
        assert [each.events for each in served].count(["accepted", "lost"]) == 150
        transport.close()

    serve(contexts, body)


def test_a_full_gate_ends_the_oldest_handshake(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_handshakes, "PATIENCE_S", 0.2)
    monkeypatch.setattr(HandshakeGate.__init__, "__defaults__", (2,))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        contexts[1].wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()

    async def body(network: AsyncioNetwork, address: tuple[str, int], served: list[Application]) -> None:
        stalled = [await asyncio.open_connection(*address) for _ in range(2)]
        for _, writer in stalled:
            writer.write(hello)
        for reader, _ in stalled:
            assert await reader.read(1)  # its handshake runs, and waits for the client
        transport, _ = await network.connect(Application, *address, tls=contexts[1])
        assert [each.events for each in served].count(["accepted", "lost"]) >= 1
        transport.close()
        for _, writer in stalled:
            writer.close()

    serve(contexts, body)


def test_a_connection_can_be_aborted_before_its_handshake(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """As a server does with connections above max.connections.per.ip, and when it stops."""

    async def body(network: AsyncioNetwork, address: tuple[str, int], served: list[Application]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        await until(lambda: bool(served and served[0].transport))
        assert served[0].transport is not None
        served[0].transport.close()
        assert await reader.read() == b""
        assert served[0].events == ["accepted", "lost"]
        writer.close()

    serve(contexts, body)


def test_a_client_learns_why_it_failed(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async def body(network: AsyncioNetwork, address: tuple[str, int], served: list[Application]) -> None:
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await network.connect(Application, *address, tls=contexts[1], server_name="elsewhere")
        plain = await network.listen(lambda: Closing(), "127.0.0.1", 0)
        with pytest.raises(ConnectionResetError, match="is its listener PLAINTEXT"):
            await network.connect(Application, *plain.address, tls=contexts[1])
        plain.close()

    class Closing(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.close()

    serve(contexts, body)


def test_a_client_that_leaves_in_the_handshake_is_logged(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], caplog: pytest.LogCaptureFixture
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        contexts[1].wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()

    async def body(network: AsyncioNetwork, address: tuple[str, int], served: list[Application]) -> None:
        _, probe = await asyncio.open_connection(*address)
        probe.close()  # says nothing: no line
        reader, writer = await asyncio.open_connection(*address)
        writer.write(outgoing.read())
        assert await reader.read(1)
        writer.close()
        await until(lambda: len(served) == 2 and all("lost" in each.events for each in served))

    with caplog.at_level("INFO"):
        serve(contexts, body)
    assert [each.getMessage().partition("reason=")[2] for each in caplog.records if "SSL" in each.getMessage()] == [
        "the other side closed the connection count=1"
    ]


def test_a_damaged_record_ends_the_connection_with_its_error(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async def body(network: AsyncioNetwork, address: tuple[str, int], served: list[Application]) -> None:
        transport, _ = await network.connect(Application, *address, tls=contexts[1])
        transport.write(b"whole")
        plain = cast(Any, transport)._plain
        plain.write(b"\x17\x03\x03\x00\x30" + b"x" * 48)
        await until(lambda: "lost" in served[0].events)
        assert served[0].events == ["accepted", "made", "data 5", "lost"]
        assert isinstance(served[0].error, ssl.SSLError)

    serve(contexts, body)


class Handshake:
    """Notes when it has its turn."""

    def __init__(self, name: str, story: list[str]) -> None:
        self.name, self.story = name, story

    def begin_handshake(self) -> None:
        self.story.append(f"{self.name} begins")

    def go_on_handshake(self) -> None:
        self.story.append(f"{self.name} goes on")

    def fail(self, reason: str) -> None:
        self.story.append(f"{self.name} fails")


def test_handshakes_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of a client's certificate takes as long as the start of a handshake, and many clients may send theirs at once."""
    monkeypatch.setattr(tls_handshakes, "TURN_S", -1.0)  # one takes a whole turn
    story: list[str] = []

    async def main() -> None:
        gate = HandshakeGate(3)
        first, second, left, last = (Handshake(name, story) for name in ("first", "second", "left", "last"))
        for each in (first, second, left):
            gate.enter(each)
        await until(lambda: len(story) == 3)
        gate.enter(last)
        for each in (first, left, second):
            gate.go_on(each)
        gate.leave(left)
        while len(story) < 6:
            before = len(story)
            await asyncio.sleep(0)
            assert len(story) - before <= 1
        assert sorted(story[:3]) == ["first begins", "left begins", "second begins"]
        assert story[3:] == ["first goes on", "second goes on", "last begins"]

    asyncio.run(asyncio.wait_for(main(), 30))


def test_loops_of_several_threads_do_not_share_a_buffer() -> None:
    """Brokers and clients of a test run in threads of one process: a read must not overwrite what another thread reads."""
    used: list[memoryview] = []

    async def connections() -> None:
        for _ in range(2):
            used.append(TlsConnection(asyncio.Protocol(), lambda: pytest.fail("no handshake")).get_buffer(-1))

    for _ in range(2):
        thread = threading.Thread(target=lambda: asyncio.run(connections()))
        thread.start()
        thread.join()
    first, again, other, _ = used
    assert first.obj is again.obj
    assert first.obj is not other.obj
