"""LinkConnection between scripted sides: who may write, and who learns the end of a connection, while its flows change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from barnabas.ports import Buffer
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.randomness import SystemRng
from barnabas.testing.world.link import LinkConnection, LinkTransport
from barnabas.testing.world.network import LinkRule, WorldNetwork
from barnabas.testing.world.pipe import FREE, Flow

CUT = Flow(cut=True)
HIGH = 65_536


class Socket(asyncio.Transport):
    """A real transport whose other side reads nothing before `drain`."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0
        self.link: LinkConnection | None = None
        self.ended = False

    def write(self, data: Buffer) -> None:
        before, self.unsent = self.unsent, self.unsent + len(data)
        if before <= HIGH < self.unsent and self.link is not None:
            self.link.pause_writing()

    def drain(self) -> None:
        self.unsent = 0
        assert self.link is not None
        self.link.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.ended

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.ended and self.link is not None:
            self.ended = True
            asyncio.get_running_loop().call_soon(self.link.connection_lost, None)


class Inner(asyncio.Protocol):
    """The broker's protocol; notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")


def made() -> tuple[LinkConnection, Inner, Socket]:
    inner, real = Inner(), Socket()
    link = LinkConnection(inner, SystemRng(), lambda _: None, lambda _: None)
    real.link = link
    link.connection_made(real)
    return link, inner, real


def test_who_may_write_follows_the_slower_of_pipe_and_socket() -> None:
    async def story() -> None:
        link, inner, real = made()
        link.shape(CUT, CUT)
        for _ in range(4):
            link.transport.write(bytes(50_000))
        assert inner.told == ["pause"]
        link.shape(FREE, FREE)
        assert real.unsent == 200_000
        assert inner.told == ["pause"]  # the pipe is empty; the socket is full
        real.drain()
        assert inner.told == ["pause", "resume"]

    asyncio.run(story())


def test_a_socket_that_was_full_before_the_cut() -> None:
    async def story() -> None:
        link, inner, real = made()
        link.transport.write(bytes(HIGH + 1))
        link.shape(CUT, FREE)
        link.transport.write(bytes(HIGH + 1))
        real.drain()
        assert inner.told == ["pause"]  # the socket has room; the pipe is full
        link.shape(FREE, FREE)
        assert inner.told == ["pause"]
        real.drain()
        assert inner.told == ["pause", "resume"]

    asyncio.run(story())


@pytest.mark.parametrize("leave", [LinkTransport.close, LinkTransport.abort])
@pytest.mark.parametrize("flows", [(CUT, CUT), (FREE, CUT), (CUT, FREE), (FREE, FREE), (FREE, Flow(latency_s=60.0))])
def test_who_leaves_a_connection_is_told_its_end_whatever_the_flows_are(
    leave: Callable[[LinkTransport], None], flows: tuple[Flow, Flow]
) -> None:
    async def story() -> None:
        link, inner, _ = made()
        link.shape(*flows)
        leave(link.transport)
        for _ in range(3):
            await asyncio.sleep(0)
        assert inner.told == ["lost"]
        link.shape(FREE, FREE)
        for _ in range(3):
            await asyncio.sleep(0)
        assert inner.told == ["lost"]
        assert link.transport.is_closing()

    asyncio.run(story())


def test_who_leaves_after_the_other_side_does_not_wait_for_bytes_on_their_way() -> None:
    async def story() -> None:
        link, inner, real = made()
        link.shape(FREE, Flow(latency_s=60.0))
        assert link.inbound is not None
        link.inbound.put(b"late")
        real.abort()
        await asyncio.sleep(0)
        assert inner.told == []
        link.transport.abort()
        for _ in range(3):
            await asyncio.sleep(0)
        assert inner.told == ["lost"]

    asyncio.run(story())


def test_each_write_of_a_reset_begins_the_wait_anew() -> None:
    async def story() -> None:
        link, _, _ = made()
        link.shape(Flow(reset_s=60.0, resets=1), FREE)
        first = link.age_timer
        link.shape(Flow(reset_s=60.0, resets=1), FREE)  # another rule has changed
        assert link.age_timer is first
        link.shape(Flow(reset_s=60.0, resets=2), FREE)
        assert first is not None
        assert first.cancelled()
        assert link.age_timer is not None
        assert not link.age_timer.cancelled()
        link.end_now()

    asyncio.run(story())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_whose_connect_is_cancelled_is_forgotten(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The connection is made in the same turn of the loop in which its caller gives up."""

    class Leaving(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            connecting[0].cancel()

    connecting: list[asyncio.Task[object]] = []

    async def story() -> None:
        network = WorldNetwork(AsyncioNetwork(), SystemRng(), frozenset())
        listener = await network.listen(asyncio.Protocol, "127.0.0.1", 0)
        port = listener.address[1]
        connecting.append(asyncio.get_running_loop().create_task(network.connect(Leaving, "127.0.0.1", port)))
        with pytest.raises(asyncio.CancelledError):
            await connecting[0]
        await asyncio.sleep(0)
        for rules in ((LinkRule(2, "", CUT, CUT),), ()):
            network.set_rules(rules, {port: 2})
        listener.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story())
