"""Bytes through an open TlsConnection: whatever the sizes of records, reads and buffers, they arrive whole and in order."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.runtime.tls import TlsSettings, client_context, server_context
from barnabas.runtime.tls_handshakes import HandshakeGate
from barnabas.runtime.tls_transport import TlsConnection
from tests.support.security.certificates import CertificateAuthority

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]  # of a server and of a client


class Wire(asyncio.Transport):
    """A plain transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Without a limit."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """The test gives it bytes when it reads."""

    def resume_reading(self) -> None:
        """As above."""

    def close(self) -> None:
        """The test closes nothing."""


class Application(asyncio.BufferedProtocol):
    """Reads into buffers of the given sizes, in turn; pauses after each if asked to."""

    def __init__(self, sizes: list[int], pauses: bool) -> None:
        self.received = bytearray()
        self.reads = 0
        self.transport = cast(TlsConnection, None)
        self._sizes = sizes
        self._pauses = pauses
        self._buffer = memoryview(b"")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(TlsConnection, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        self._buffer = memoryview(bytearray(self._sizes[self.reads % len(self._sizes)]))
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.reads += 1
        self.received += self._buffer[:nbytes]
        if self._pauses:
            self.transport.pause_reading()


@pytest.fixture(scope="module")
def contexts(ca: CertificateAuthority) -> Contexts:
    keys = TlsSettings.from_keys((ca.issue("stream").by_file() | ca.truststore()).get)
    client = client_context(keys)
    client.check_hostname = False
    return server_context(keys), client


class Pair:
    """A server's connection, and the client's end as OpenSSL alone."""

    def __init__(self, contexts: Contexts, application: Application) -> None:
        self.wire = Wire()
        self.connection = TlsConnection(application, lambda: contexts[0], gate=HandshakeGate())
        self.connection.connection_made(self.wire)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = contexts[1].wrap_bio(self.incoming, self.outgoing)

    async def open(self) -> None:
        for _ in range(2):
            try:
                self.client.do_handshake()
            except ssl.SSLWantReadError:
                pass
            self.deliver(self.outgoing.read())
            await asyncio.sleep(0)  # the gate begins handshakes in a turn of their own
            await asyncio.sleep(0)
            self.incoming.write(b"".join(self.wire.written))
            self.wire.written.clear()

    def deliver(self, data: bytes) -> None:
        """The plain transport has read."""
        room = self.connection.get_buffer(-1)
        room[: len(data)] = data
        self.connection.buffer_updated(len(data))


def opened(contexts: Contexts, application: Application, body: Callable[[Pair], Any]) -> None:
    async def main() -> None:
        pair = Pair(contexts, application)
        await pair.open()
        assert application.transport is pair.connection
        await body(pair)

    asyncio.run(main())


def content(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


RECORDS = st.lists(st.sampled_from([1, 10, 1_000, 16_383, 16_384]), min_size=1, max_size=40)
READS = st.lists(st.sampled_from([1, 5, 700, 16_500, 66_000, 200_000]), min_size=1, max_size=6)
BUFFERS = st.lists(st.sampled_from([1_000, 16_384, 16_385, 65_536, 1 << 20]), min_size=1, max_size=3)


@settings(max_examples=60)
@given(records=RECORDS, reads=READS, buffers=BUFFERS, pauses=st.booleans())
def test_records_arrive_whole(
    contexts: Contexts, records: list[int], reads: list[int], buffers: list[int], pauses: bool
) -> None:
    application = Application(buffers, pauses)
    sent = content(sum(records))

    async def body(pair: Pair) -> None:
        at = 0
        for size in records:
            pair.client.write(sent[at : at + size])
            at += size
        encrypted = pair.outgoing.read()
        at = turn = 0
        while at < len(encrypted):
            # Reads of a byte each would only take long: some, then large ones.
            size = reads[turn % len(reads)] if turn < 60 else 50_000
            pair.deliver(encrypted[at : at + size])
            at, turn = at + size, turn + 1
            while not pair.connection.is_reading():
                pair.connection.resume_reading()
                await asyncio.sleep(0)

    opened(contexts, application, body)
    assert application.received == sent


def test_reading_asks_openssl_once_for_each_record(contexts: Contexts) -> None:
    """A record takes 0.6 µs in OpenSSL alone, and librdkafka sends each value of 1 kB as one."""
    application = Application([1 << 20], False)
    calls = 0

    async def body(pair: Pair) -> None:
        nonlocal calls
        decrypt = pair.connection._decrypt

        def counted(size: int, buffer: memoryview) -> int:
            nonlocal calls
            calls += 1
            return decrypt(size, buffer)

        pair.connection._decrypt = counted
        for _ in range(200):
            pair.client.write(bytes(1_000))
        pair.deliver(pair.outgoing.read())

    opened(contexts, application, body)
    assert application.reads == 1
    assert len(application.received) == 200_000
    assert calls == 200


@settings(max_examples=30)
@given(
    parts=st.lists(st.sampled_from([0, 1, 120, 16_384, 16_385, 70_000]), min_size=1, max_size=8), joined=st.booleans()
)
def test_written_bytes_arrive_whole(contexts: Contexts, parts: list[int], joined: bool) -> None:
    sent = content(sum(parts))
    received = bytearray()

    async def body(pair: Pair) -> None:
        at, pieces = 0, []
        for size in parts:
            pieces.append(memoryview(sent)[at : at + size])
            at += size
        if joined:
            pair.connection.writelines(pieces)
        else:
            for piece in pieces:
                pair.connection.write(piece)
        for written in pair.wire.written:
            pair.incoming.write(written)
        while len(received) < len(sent):
            received.extend(pair.client.read(1 << 17))

    opened(contexts, Application([1_000], False), body)
    assert received == sent


def test_a_small_answer_is_one_record_and_one_write(contexts: Contexts) -> None:
    writes: list[int] = []

    async def body(pair: Pair) -> None:
        pair.connection.write(b"x" * 100)
        pair.connection.writelines([b"x" * 100, b"y" * 50])
        writes.extend(map(len, pair.wire.written))

    opened(contexts, Application([1_000], False), body)
    assert writes == [100 + 22, 150 + 22]  # header 5, type 1, tag 16
