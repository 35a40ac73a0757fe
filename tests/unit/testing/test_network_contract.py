"""What every Network must do: one suite, run over real sockets and over simulated ones."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from barnabas.network_port import PLAIN_LISTENER, Listener, ListenerOptions, Network
from barnabas.runtime.loop import run
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.tls import TlsSettings, client_context, server_context
from barnabas.testing.simulation.world import World
from tests.support.security.certificates import CertificateAuthority
from tests.support.waiting import until, until_refused

Body = Callable[[Network], Awaitable[None]]


def on_real_sockets(body: Body) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await body(AsyncioNetwork())

    run(main())


def on_asyncio_s_own_loop(body: Body) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await body(AsyncioNetwork())

    asyncio.run(main())


def on_simulated_ones(body: Body) -> None:
    async def main(world: World) -> None:
        await body(world.machine("localhost").host)

    with World(1) as world:
        world.run(main(world), time_limit_s=20)


class _TlsNetwork(AsyncioNetwork):
    """Real sockets with TLS on every connection."""

    def __init__(self) -> None:
        super().__init__()
        with tempfile.TemporaryDirectory() as folder:
            authority = CertificateAuthority(Path(folder))
            keys = authority.issue("node").by_file() | authority.truststore()
            settings = TlsSettings.from_keys(keys.get)
            self._server, self._client = server_context(settings), client_context(settings)

    async def listen(self, *args: Any, options: ListenerOptions = PLAIN_LISTENER, **more: Any) -> Listener:
        return await super().listen(*args, options=replace(options, tls=lambda: self._server), **more)

    async def connect(self, *args: Any, **_: Any) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await super().connect(*args, tls=self._client)


def over_tls(body: Body) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await body(_TlsNetwork())

    run(main())


def over_tls_on_asyncio_s_own_loop(body: Body) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await body(_TlsNetwork())

    asyncio.run(main())


_PLAIN = [on_real_sockets, on_asyncio_s_own_loop, on_simulated_ones]


@pytest.fixture(params=_PLAIN, ids=lambda f: f.__name__)
def on_plain(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    """For what TLS cannot do: half-closing, and a connection that is made before the other side accepts it."""
    return cast(Callable[[Body], None], request.param)


@pytest.fixture(params=[*_PLAIN, over_tls, over_tls_on_asyncio_s_own_loop], ids=lambda f: f.__name__)
def on(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    return cast(Callable[[Body], None], request.param)


class Peer(asyncio.Protocol):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.made = asyncio.Event()
        self.ended = asyncio.Event()
        self.changed = asyncio.Event()
        self.data = bytearray()
        self.error: Exception | None = None
        self.paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.made.set()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.changed.set()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self.ended.set()
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


class BufferedPeer(asyncio.BufferedProtocol):
    """The same through a buffer of its own."""

    def __init__(self) -> None:
        self.buffer = bytearray(1000)
        self.data = bytearray()
        self.ended = asyncio.Event()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self.buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


async def pair(network: Network) -> tuple[Peer, Peer]:
    """A client's and a server's end, both connected."""
    server = Peer()
    listener = await network.listen(lambda: server, "127.0.0.1", 0)
    transport, client = await network.connect(Peer, *listener.address)
    assert isinstance(client, Peer)
    assert client.transport is transport  # connection_made came before connect returned
    await server.made.wait()
    listener.close()
    return client, server


def test_bytes_go_both_ways_in_order(on: Callable[[Body], None]) -> None:
    async def body(network: Network) -> None:
        client, server = await pair(network)
        for number in range(100):
            client.transport.writelines([b"%d" % number, memoryview(b" "), bytearray(b"c")])
            server.transport.write(b"%d s" % number)
        await server.until(lambda: server.data == b"".join(b"%d c" % n for n in range(100)))
        await client.until(lambda: client.data == b"".join(b"%d s" % n for n in range(100)))
        client.transport.close()
        await client.ended.wait()
        await server.ended.wait()

    on(body)


def test_close_delivers_what_was_written_and_both_ends_hear_of_it(on: Callable[[Body], None]) -> None:
    async def body(network: Network) -> None:
        client, server = await pair(network)
        client.transport.write(b"z" * 3_000_000)
        client.transport.close()
        assert client.transport.is_closing()
        client.transport.close()
        await server.ended.wait()
        await client.ended.wait()
        assert len(server.data) == 3_000_000
        assert (client.error, server.error) == (None, None)

    on(body)


def test_abort_drops_the_connection_at_both_ends(on: Callable[[Body], None]) -> None:
    async def body(network: Network) -> None:
        client, server = await pair(network)
        client.transport.abort()
        assert client.transport.is_closing()
        await client.ended.wait()
        await server.ended.wait()
        assert client.error is None
        server.transport.close()  # harmless after the end

    on(body)


def test_a_writer_is_paused_and_resumed(on: Callable[[Body], None]) -> None:
    async def body(network: Network) -> None:
        client, server = await pair(network)
        server.transport.pause_reading()
        assert not server.transport.is_reading()
        written = 0
        while not client.paused:
            client.transport.write(bytes(100_000))
            written += 100_000
            assert written < 100_000_000, "nothing ever paused the writer"
            await asyncio.sleep(0)
        assert client.transport.get_write_buffer_size() > 0
        server.transport.resume_reading()
        await client.until(lambda: not client.paused)
        await server.until(lambda: len(server.data) == written)
        client.transport.close()
        await server.ended.wait()

    on(body)


def test_a_buffered_protocol_reads_too(on: Callable[[Body], None]) -> None:
    async def body(network: Network) -> None:
        server = BufferedPeer()
        listener = await network.listen(lambda: server, "127.0.0.1", 0)
        transport, _ = await network.connect(Peer, *listener.address)
        sent = bytes(range(256)) * 100
        transport.write(sent)
        transport.close()
        await server.ended.wait()
        assert server.data == sent
        listener.close()

    on(body)


def test_half_closing(on_plain: Callable[[Body], None]) -> None:
    async def body(network: Network) -> None:
        class Answering(Peer):
            def eof_received(self) -> bool:
                self.transport.write(bytes(self.data[::-1]))
                self.transport.close()
                return True

        listener = await network.listen(Answering, "127.0.0.1", 0)
        transport, client = await network.connect(Peer, *listener.address)
        assert isinstance(client, Peer)
        assert transport.can_write_eof()
        transport.write(b"abc")
        transport.write_eof()
        await client.ended.wait()
        assert client.data == b"cba"
        listener.close()

    on_plain(body)


def test_addresses(on: Callable[[Body], None]) -> None:
    async def body(network: Network) -> None:
        listener = await network.listen(Peer, "127.0.0.1", 0)
        host, port = listener.address
        assert (host, port > 0) == ("127.0.0.1", True)
        with pytest.raises(OSError, match=r"."):
            await network.listen(Peer, host, port)
        transport, _ = await network.connect(Peer, host, port)
        assert transport.get_extra_info("peername")[1] == port
        assert transport.get_extra_info("sockname")[1] != port
        transport.close()
        listener.close()
        assert isinstance(await until_refused(lambda: network.connect(Peer, host, port)), ConnectionRefusedError)

    on(body)


def test_a_listener_that_pauses_lets_connections_wait(on_plain: Callable[[Body], None]) -> None:
    async def body(network: Network) -> None:
        served: list[Peer] = []
        complete = asyncio.Event()

        def factory() -> Peer:
            served.append(Peer())
            if len(served) == 4:
                complete.set()
            if len(served) == 2:
                listener.pause()
            return served[-1]

        listener = await network.listen(factory, "127.0.0.1", 0)
        transports = [(await network.connect(Peer, *listener.address))[0] for _ in range(4)]
        for transport in transports:
            transport.write(b"hello")
        await until(lambda: len(served) >= 2)
        for each in list(served):
            await each.until(lambda each=each: each.data == b"hello")  # type: ignore[misc]  # bound at once
        assert len(served) == 2, "a pause within the factory holds from the next connection on"
        listener.resume()
        await complete.wait()
        for each in served:
            await each.until(lambda each=each: each.data == b"hello")  # type: ignore[misc]  # bound at once
        for transport in transports:
            transport.close()
        listener.close()

    on_plain(body)
