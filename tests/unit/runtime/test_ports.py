"""The real clock, randomness, network and loop keep the promises of `barnabas.ports`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import resource
import socket
import time
from typing import cast

import pytest

from barnabas import ports
from barnabas.network_port import Network
from barnabas.runtime.clock import SystemClock
from barnabas.runtime.loop import run
from barnabas.runtime.network import RETRY_S, AsyncioNetwork, TcpListener
from barnabas.runtime.randomness import SystemRng, uuid_from_bytes
from tests.support.waiting import until, until_refused


def test_the_clock_counts_milliseconds() -> None:
    clock: ports.Clock = SystemClock()
    assert abs(clock.now_ms() - time.time() * 1000) < 60_000
    before, began = clock.monotonic_ms(), time.monotonic()
    while time.monotonic() < began + 0.005:
        pass
    assert 4 <= clock.monotonic_ms() - before < 60_000


def test_uuids_have_version_and_variant_and_never_begin_with_a_dash() -> None:
    rng: ports.Rng = SystemRng()
    seen = {rng.uuid() for _ in range(1000)}
    assert len(seen) == 1000
    for uuid in seen:
        assert (len(uuid), uuid[6] >> 4, uuid[8] >> 6) == (16, 4, 2)
        assert not base64.urlsafe_b64encode(uuid).startswith(b"-")
    assert not base64.urlsafe_b64encode(uuid_from_bytes(bytes([0xF8]) + bytes(15))).startswith(b"-")


def test_random_numbers_stay_in_range() -> None:
    rng = SystemRng()
    assert all(0 <= rng.random() < 1 for _ in range(100))
    assert {rng.randrange(3) for _ in range(200)} == {0, 1, 2}


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class _Collect(asyncio.Protocol):
    def __init__(self) -> None:
        self.received: asyncio.Queue[bytes] = asyncio.Queue()

    def data_received(self, data: bytes) -> None:
        self.received.put_nowait(data)


async def _echo_over(network: Network) -> bytes:
    listener = await network.listen(_Echo, "127.0.0.1", 0)
    transport, protocol = await network.connect(_Collect, *listener.address)
    assert isinstance(protocol, _Collect)
    assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    transport.write(b"hello")
    answer = await asyncio.wait_for(protocol.received.get(), 60)
    with pytest.raises(OSError, match=r"in use|bind"):
        await network.listen(_Echo, *listener.address)
    listener.close()
    transport.close()
    await until_refused(lambda: network.connect(_Collect, *listener.address))
    return answer


def test_bytes_go_there_and_back_on_the_chosen_loop() -> None:
    assert run(_echo_over(AsyncioNetwork())) == b"hello"


async def test_bytes_go_there_and_back_on_asyncio_s_own_loop() -> None:
    assert await _echo_over(AsyncioNetwork()) == b"hello"


async def test_a_listener_without_descriptors_goes_on_when_there_are_some_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """accept() fails with EMFILE: it is tried again after a pause, and the listener does not end."""
    failures_s: list[float] = []
    retry_later = TcpListener._retry_later

    def failed(listener: TcpListener, error: OSError) -> None:
        failures_s.append(time.monotonic())
        retry_later(listener, error)

    monkeypatch.setattr(TcpListener, "_retry_later", failed)
    network = AsyncioNetwork()
    listener = await network.listen(_Echo, "127.0.0.1", 0)
    waiting = socket.socket()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(fd) for fd in os.listdir("/proc/self/fd")) + 1, hard))
    others: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                others.append(os.open(os.devnull, os.O_RDONLY))
        waiting.connect(listener.address)
        await until(lambda: len(failures_s) == 3)
        assert failures_s[2] - failures_s[0] > 1.9 * RETRY_S
    finally:
        for fd in others:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    reader, writer = await asyncio.open_connection(sock=waiting)
    writer.write(b"again")
    async with asyncio.timeout(60):
        assert await reader.readexactly(5) == b"again"
    writer.close()
    listener.close()
