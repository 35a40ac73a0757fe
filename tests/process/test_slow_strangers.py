"""Ten thousand strangers that send one byte a second, and thousands that guess passwords: others are served, nothing stays."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.oracle.wire import Wire
from tests.support.security.certificates import CertificateAuthority
from tests.support.security.login_frames import client_hellos, frame
from tests.support.security.stranger import OpenBroker  # not the kit: listeners of several protocols

pytestmark = [pytest.mark.process, pytest.mark.soak]

MIB = 1024 * 1024
SLOW = 10_000
LONGEST_WAIT_S_MAX = 30.0  # of the bystander: nothing hangs, also on a busy machine
LISTENERS = {"login": 30.0, "login over TLS": 10.0}  # and how long a broker waits for the end of a login or handshake


def produce(address: str, waits: Any, begun: Any, ended: Any) -> None:
    """Produces at depth 1 from `begun` to `ended`; puts the seconds of each answer."""
    found: list[float] = []
    with Wire(address, timeout_s=60) as wire:
        wire.create_topic("beside")
        wire.produce(9, "beside", 0, [b"first"])
        begun.set()
        while not ended.wait(0.005):
            began = time.perf_counter()
            assert wire.produce(9, "beside", 0, [b"x"]).error_code == 0
            found.append(time.perf_counter() - began)
    waits.put(sorted(found))


class Bystander:
    """Produces in a process of its own.

    Attributes:
        waits: seconds of each answer, ascending; after the end.
    """

    def __init__(self, address: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.waits: list[float] = []
        self._found, self._begun, self._ended = context.Queue(), context.Event(), context.Event()
        self._process = context.Process(target=produce, args=(address, self._found, self._begun, self._ended))

    def __enter__(self) -> Bystander:
        self._process.start()
        assert self._begun.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.waits = self._found.get(timeout=60)
        self._process.join(60)

    def figures(self) -> str:
        each = self.waits
        p99 = each[len(each) * 99 // 100]
        return f"p50 {statistics.median(each) * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, longest {each[-1] * 1000:.0f} ms"


class Trickle(asyncio.Protocol):
    """Sends one byte a second."""

    def __init__(self, data: bytes, ended: list[float]) -> None:
        self._data, self._at, self._ended = data, 0, ended
        self.began = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def send(self) -> None:
        """The next byte."""
        transport = self.transport
        if isinstance(transport, asyncio.Transport) and not transport.is_closing() and self._at < len(self._data):
            transport.write(self._data[self._at : self._at + 1])
            self._at += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.append(time.monotonic() - self.began)


async def trickle(port: int, data: bytes, longest_s: float) -> list[float]:
    """Opens SLOW connections and sends until the broker has ended all; returns how long each was open."""
    loop = asyncio.get_running_loop()
    ended: list[float] = []
    each: list[Trickle] = []
    for _ in range(SLOW):
        _, protocol = await loop.create_connection(lambda: Trickle(data, ended), "127.0.0.1", port)
        each.append(protocol)
    until = time.monotonic() + longest_s + 60
    while len(ended) < SLOW and time.monotonic() < until:
        began = time.monotonic()
        for protocol in each:
            protocol.send()
        await asyncio.sleep(max(0.0, began + 1 - time.monotonic()))
    return ended


@pytest.fixture
def broker(tmp_path: Path, ca: CertificateAuthority) -> Iterator[OpenBroker]:
    running = OpenBroker(tmp_path, ca).start()
    yield running
    running.end()


def report(what: str, broker: OpenBroker, before: int, peak: int, bystander: Bystander) -> None:
    sys.stdout.write(
        f"{what}: RSS {before / MIB:.0f} MiB before, {peak / MIB:.0f} at most, {broker.rss_bytes() / MIB:.0f} after; "
        f"a bystander's Produce {bystander.figures()}; load {os.getloadavg()[0]:.0f}\n"
    )


@contextlib.contextmanager
def watched(broker: OpenBroker) -> Iterator[list[int]]:
    """The resident memory of the broker, ten times a second."""
    found, ended = [broker.rss_bytes()], threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            found.append(broker.rss_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    yield found
    ended.set()
    thread.join()


@pytest.mark.parametrize("listener", LISTENERS)
def test_ten_thousand_connections_that_send_one_byte_a_second(broker: OpenBroker, listener: str) -> None:
    data = client_hellos()[0] if "TLS" in listener else frame("SaslHandshake", 1, mechanism="PLAIN" + "N" * 200)
    with watched(broker) as rss, Bystander(broker.plain) as bystander:
        ended = asyncio.run(trickle(broker.ports[listener], data, LISTENERS[listener]))
    report(f"{SLOW} slow connections, {listener}", broker, rss[0], max(rss), bystander)
    assert len(ended) == SLOW
    assert max(rss) - rss[0] < SLOW * 16_384
    assert bystander.waits[-1] < LONGEST_WAIT_S_MAX


@pytest.mark.parametrize("delay_ms", [100, 3_000])
def test_thousands_of_wrong_passwords_keep_no_memory(tmp_path: Path, ca: CertificateAuthority, delay_ms: int) -> None:
    """8,000 guesses, 1,000 at once; each waits for connection.failed.authentication.delay.ms."""
    broker = OpenBroker(tmp_path, ca, f"connection.failed.authentication.delay.ms={delay_ms}").start()
    try:
        guess = frame("SaslHandshake", 1, mechanism="PLAIN")
        guess += frame("SaslAuthenticate", 2, auth_bytes=b"\0alice\0" + b"guess" * 4_000)
        refused = 0

        async def guesses() -> None:
            nonlocal refused
            gate = asyncio.Semaphore(1_000)

            async def one() -> None:
                nonlocal refused
                async with gate:
                    reader, writer = await asyncio.open_connection("127.0.0.1", broker.ports["login"])
                    writer.write(guess)
                    answer = await reader.read(-1)
                    refused += b"Invalid username or password" in answer
                    writer.close()

            await asyncio.gather(*(one() for _ in range(8_000)))

        with watched(broker) as rss, Bystander(broker.plain) as bystander:
            asyncio.run(guesses())
        report(f"8,000 guesses, delay {delay_ms} ms", broker, rss[0], max(rss), bystander)
        assert refused == 8_000
        assert max(rss) - rss[0] < 128 * MIB
        assert bystander.waits[-1] < LONGEST_WAIT_S_MAX
        assert broker.log().count("Invalid username or password") < 1_000, "the log has a limited number of lines"
    finally:
        broker.end()
