"""SimNetwork: streams in order whatever the latency, flow control, cuts, resets, the ends of processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from barnabas.testing.simulation.network import WINDOW_BYTES
from barnabas.testing.simulation.world import Ports, World


class Recorder(asyncio.Protocol):
    """Writes down what its transport tells it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.events: list[str] = []
        self.lost: Exception | None = None
        self.closed = asyncio.get_running_loop().create_future()
        self.keep_open_at_eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keep_open_at_eof

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.lost = exc
        self.closed.set_result(None)


class Echo(Recorder):
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.transport.write(data)


class BufferedEcho(asyncio.BufferedProtocol):
    """Echoes through a buffer of a few bytes, as a framing reader does."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.buffer = bytearray(7)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(memoryview(self.buffer)[:nbytes])


async def forever(ports: Ports) -> None:
    await asyncio.Event().wait()


def recorders(made: list[Recorder]) -> Callable[[], Recorder]:
    """Makes a protocol for each connection and adds it to the list."""

    def make() -> Recorder:
        made.append(Recorder())
        return made[-1]

    return make


def serving(factory: Callable[[], asyncio.BaseProtocol]) -> Callable[[Ports], Coroutine[Any, Any, None]]:
    async def program(ports: Ports) -> None:
        await ports.network.listen(factory, "0.0.0.0", 9092)
        await forever(ports)

    return program


def run(main: Callable[[World], Coroutine[Any, Any, None]], seed: int = 1) -> World:
    with World(seed) as world:
        world.run(main(world))
    return world


@pytest.mark.parametrize("factory", [Echo, BufferedEcho])
@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_once_and_in_order(factory: Callable[[], asyncio.BaseProtocol], seed: int) -> None:
    async def main(world: World) -> None:
        world.machine("server").start(serving(factory))
        client = world.machine("client").host
        transport, protocol = await client.connect(Recorder, "server", 9092)
        assert isinstance(protocol, Recorder)
        sent = bytearray()
        for number in range(200):
            piece = bytes([number]) * (1 + world.rng.randrange(300))
            sent += piece
            if number % 3:
                transport.write(piece)
            else:
                transport.writelines([piece[:1], memoryview(piece)[1:]])
            if number % 7 == 0:
                await asyncio.sleep(world.rng.random() / 1000)
        await asyncio.sleep(1)
        assert protocol.data == sent

    run(main, seed)


def test_latency_is_the_link_s() -> None:
    async def main(world: World) -> None:
        world.network.shape("client", "server", latency_s=0.01, jitter_s=0)
        world.network.shape("server", "client", latency_s=0.03, jitter_s=0)
        world.machine("server").start(serving(Echo))
        transport, protocol = await world.machine("client").host.connect(Recorder, "server", 9092)
        assert world.loop.time() == pytest.approx(0.040)
        transport.write(b"x")
        await asyncio.sleep(0.0399)
        assert protocol.data == b""  # type: ignore[attr-defined]
        await asyncio.sleep(0.0002)
        assert protocol.data == b"x"  # type: ignore[attr-defined]

    run(main)


def test_a_slow_reader_stops_the_writer() -> None:
    async def main(world: World) -> None:
        made: list[Recorder] = []
        world.machine("server").start(serving(recorders(made)))
        transport, protocol = await world.machine("client").host.connect(Recorder, "server", 9092)
        assert isinstance(protocol, Recorder)
        await asyncio.sleep(1)
        (server,) = made
        server.transport.pause_reading()
        assert not server.transport.is_reading()
        for _ in range(10):
            transport.write(bytes(WINDOW_BYTES // 4))
            await asyncio.sleep(1)
        assert protocol.events == ["made", "pause"]
        assert transport.get_write_buffer_size() == 10 * (WINDOW_BYTES // 4) - WINDOW_BYTES
        assert len(server.data) == 0
        server.transport.resume_reading()
        await asyncio.sleep(1)
        assert protocol.events == ["made", "pause", "resume"]
        assert len(server.data) == 10 * (WINDOW_BYTES // 4)
        assert transport.get_write_buffer_size() == 0

    run(main)


def test_nobody_listens() -> None:
    async def main(world: World) -> None:
        world.machine("server").start(forever)
        client = world.machine("client").host
        with pytest.raises(ConnectionRefusedError):
            await client.connect(Recorder, "server", 9092)
        with pytest.raises(OSError, match="no machine"):
            await client.connect(Recorder, "nowhere", 9092)
        listener = await client.listen(Recorder, "client", 1)
        with pytest.raises(OSError, match="in use"):
            await client.listen(Recorder, "0.0.0.0", 1)
        assert listener.address == ("client", 1)
        listener.close()
        free = await client.listen(Recorder, "", 0)
        assert free.address[1] > 0

    run(main)


def test_a_cut_link_delays_and_a_healed_one_delivers_in_order() -> None:
    async def main(world: World) -> None:
        world.machine("server").start(serving(Echo))
        transport, protocol = await world.machine("client").host.connect(Recorder, "server", 9092)
        assert isinstance(protocol, Recorder)
        transport.write(b"before ")
        world.network.cut("client", "server")
        for number in range(50):
            transport.write(b"%d " % number)
            await asyncio.sleep(0.1)
        assert protocol.data == b""
        world.network.heal("client", "server")
        transport.write(b"after")
        await asyncio.sleep(1)
        assert protocol.data == b"before " + b"".join(b"%d " % n for n in range(50)) + b"after"

    run(main)


def test_connecting_over_a_cut_link_waits_for_it_and_gives_up() -> None:
    async def main(world: World) -> None:
        world.machine("server").start(serving(Echo))
        client = world.machine("client").host
        world.network.isolate("server")
        world.loop.call_later(10, world.network.heal)
        await client.connect(Recorder, "server", 9092)
        assert 10 < world.loop.time() < 20
        world.network.cut("client", "server", both_ways=False)
        with pytest.raises(TimeoutError):
            await client.connect(Recorder, "server", 9092)
        assert world.loop.time() > 127

    run(main)


def test_a_killed_process_resets_its_connections_and_hears_nothing_more() -> None:
    async def main(world: World) -> None:
        server = world.machine("server")
        made: list[Recorder] = []
        server.start(serving(recorders(made)))
        client = world.machine("client").host
        transport, protocol = await client.connect(Recorder, "server", 9092)
        assert isinstance(protocol, Recorder)
        await asyncio.sleep(1)
        transport.write(b"too late")
        server.kill()
        made[0].transport.write(b"from the dead")
        made[0].transport.close()
        await protocol.closed
        assert isinstance(protocol.lost, ConnectionResetError)
        assert (bytes(made[0].data), made[0].events) == (b"", ["made"])
        with pytest.raises(ConnectionRefusedError):
            await client.connect(Recorder, "server", 9092)
        server.start(serving(Echo))
        await client.connect(Recorder, "server", 9092)

    run(main)


def test_a_machine_without_power_is_silent_until_it_is_back() -> None:
    async def main(world: World) -> None:
        server = world.machine("server")
        server.start(serving(Echo))
        client = world.machine("client").host
        transport, protocol = await client.connect(Recorder, "server", 9092)
        assert isinstance(protocol, Recorder)
        server.lose_power()
        transport.write(b"hello?")
        await asyncio.sleep(60)
        assert protocol.events == ["made"]
        server.start(serving(Echo))
        await asyncio.sleep(1)
        assert isinstance(protocol.lost, ConnectionResetError)

    run(main)


def test_aborting_and_resetting() -> None:
    async def main(world: World) -> None:
        made: list[Recorder] = []
        world.machine("server").start(serving(recorders(made)))
        client = world.machine("client").host
        transport, protocol = await client.connect(Recorder, "server", 9092)
        assert isinstance(protocol, Recorder)
        transport.abort()
        transport.abort()
        await asyncio.sleep(1)
        assert (protocol.lost, type(made[0].lost)) == (None, ConnectionResetError)
        _, second = await client.connect(Recorder, "server", 9092)
        assert isinstance(second, Recorder)
        await asyncio.sleep(1)
        world.network.reset_links("client", "server")
        await asyncio.sleep(1)
        assert type(second.lost) is type(made[1].lost) is ConnectionResetError

    run(main)


def test_a_cancelled_connect_leaves_nothing_behind() -> None:
    async def main(world: World) -> None:
        made: list[Recorder] = []
        world.machine("server").start(serving(recorders(made)))
        client = world.machine("client").host
        world.network.shape("server", "client", latency_s=1, jitter_s=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await client.connect(Recorder, "server", 9092)
        await asyncio.sleep(5)
        assert [protocol.events for protocol in made] == [["made", "lost"]]
        assert not client.transports

    run(main)


def test_a_transport_is_not_to_be_used_after_its_end() -> None:
    async def main(world: World) -> None:
        world.machine("server").start(serving(Echo))
        transport, protocol = await world.machine("client").host.connect(Recorder, "server", 9092)
        assert isinstance(protocol, Recorder)
        transport.close()
        transport.write(b"ignored while closing")
        await protocol.closed
        uses: list[Callable[[], object]] = [
            lambda: transport.write(b"x"),
            transport.write_eof,
            transport.pause_reading,
            transport.resume_reading,
        ]
        for use in uses:
            with pytest.raises(RuntimeError, match="after connection_lost"):  # as uvloop's transports do
                use()
        transport.close()
        transport.abort()

    run(main)
