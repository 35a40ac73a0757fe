"""Reading from the nearest replica with real clients (KIP-392): the bundled one and librdkafka, three brokers in three racks.

Clients reach each broker through a proxy that counts, so that a test sees who has sent the records. Java's consumer is tried in
tests/oracle/test_nearest_java.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest

from barnabas.client import Consumer, Producer, TopicPartition
from barnabas.client.types import IsolationLevel

confluent_kafka = pytest.importorskip("confluent_kafka")
from tests.support.clients.racks import FETCH_WAIT_MS, LEADER, NEAREST, Racks, racks  # noqa: E402  # after the check that librdkafka is there
from tests.support.processes.copying import read_all  # noqa: E402  # after the check that librdkafka is there

__all__ = ["racks"]

pytestmark = pytest.mark.clients

READERS = ("barnabas", "librdkafka")
SECONDS_MAX = 60.0
TURNS_MAX = 4  # a reader that waits for the end of a fetch waits each time; a busy machine delays single ones


class Reader:
    """Reads `near`-0 from its beginning in a thread of its own, as a consumer in rack 2."""

    def __init__(self, racks: Racks, client: str, isolation_level: IsolationLevel = "read_uncommitted") -> None:
        self.values: list[bytes] = []
        self.client_id = f"reader-{client}"
        self._racks = racks
        self._isolation_level = isolation_level
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        read = self._barnabas if client == "barnabas" else self._librdkafka
        self._thread = threading.Thread(target=self._run, args=(read,), name=self.client_id)
        self._thread.start()

    def _run(self, read: Callable[[], None]) -> None:
        try:
            read()
        except BaseException as error:  # told where the test waits
            self._failure = error

    def _barnabas(self) -> None:
        async def read() -> None:
            async with Consumer(
                bootstrap_servers=self._racks.bootstrap,
                client_id=self.client_id,
                client_rack=str(NEAREST),
                isolation_level=self._isolation_level,
                auto_offset_reset="none",
                fetch_max_wait_ms=FETCH_WAIT_MS,
            ) as consumer:
                consumer.assign([TopicPartition(self._racks.topic, 0)])
                consumer.seek(TopicPartition(self._racks.topic, 0), 0)
                while not self._ended.is_set():
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        self.values += [record.value or b"" for record in records]

        asyncio.run(read())

    def _librdkafka(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._racks.bootstrap,
                "client.id": self.client_id,
                "client.rack": str(NEAREST),
                "group.id": "none",
                "isolation.level": self._isolation_level,
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": FETCH_WAIT_MS,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(self._racks.topic, 0, 0)])
        while not self._ended.is_set():
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is None:
                self.values.append(message.value() or b"")
            elif not message.error().retriable() and message.error().code() < 0:
                continue  # a lost connection, told and mended
            else:
                raise AssertionError(message.error())
        consumer.close()

    def wait(self, reached: Callable[[list[bytes]], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not reached(self.values):
            if self._failure is not None:
                raise self._failure
            assert time.monotonic() < deadline, f"{self.client_id} does not get to {what}: {len(self.values)} read"
            time.sleep(0.02)

    def end(self) -> None:
        self._ended.set()
        self._thread.join(30)
        if self._failure is not None:
            raise self._failure


@pytest.fixture
async def producer(racks: Racks) -> AsyncIterator[Producer]:
    async with Producer(bootstrap_servers=racks.cluster.bootstrap, client_id="writer") as producer:
        yield producer


async def test_the_nearest_replica_sends_the_records(racks: Racks, producer: Producer) -> None:
    expected = [b"%06d" % number + bytes(1_000) for number in range(2_000)]
    await asyncio.gather(*[await producer.send(racks.topic, value, partition=0) for value in expected])
    for client in READERS:
        reader = Reader(racks, client)
        try:
            reader.wait(lambda values: len(values) >= len(expected), "the end")
            for _ in range(TURNS_MAX):
                began = time.monotonic()
                await producer.send_and_wait(racks.topic, b"news", partition=0)
                expected.append(b"news")
                reader.wait(lambda values: len(values) >= len(expected), "the news")
                waited = time.monotonic() - began
                if waited < FETCH_WAIT_MS / 1000 / 2:
                    break
        finally:
            reader.end()
        assert reader.values == expected
        sent = racks.sent_bytes(reader.client_id)
        assert sent[NEAREST] > 2_000 * 1_000
        assert sent[LEADER] < 10_000, sent
        assert sent[3] < 10_000, sent
        assert waited < FETCH_WAIT_MS / 1000 / 2, "news need not wait for the follower's next fetch"


@pytest.mark.parametrize("client", ["barnabas", pytest.param("librdkafka", marks=pytest.mark.soak)])
async def test_nothing_is_lost_or_doubled_when_replica_and_leader_die(racks: Racks, client: str) -> None:
    """Transactions, some of them aborted, are read from a follower that is killed and comes back, then from one whose leader is."""
    reader = Reader(racks, client, "read_committed")
    ended = asyncio.Event()
    committed: list[bytes] = []

    async def write() -> None:
        async with Producer(
            bootstrap_servers=racks.cluster.bootstrap, client_id="writer", transactional_id="w"
        ) as producer:
            number = 0
            while not ended.is_set():
                await producer.begin_transaction()
                values = [b"%06d" % (number + step) for step in range(5)]
                for value in values:
                    await producer.send(racks.topic, value, partition=0)
                if number % 4 == 3:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
                    committed.extend(values)
                number += 5
                await asyncio.sleep(0.005)

    def more(count: int) -> Callable[[list[bytes]], bool]:
        target = len(reader.values) + count
        return lambda values: len(values) >= target

    async def wait(count: int, what: str) -> None:
        await asyncio.to_thread(reader.wait, more(count), what)

    writing = asyncio.ensure_future(write())
    try:
        await wait(200, "the first records")
        assert racks.sent_bytes(reader.client_id)[NEAREST] > 0
        racks.cluster.kill(NEAREST)
        await wait(200, "records without the replica")
        await asyncio.to_thread(racks.cluster.start_node, NEAREST)
        await asyncio.to_thread(racks.cluster.wait_in_sync, racks.topic)
        await wait(200, "records with the replica back")
        racks.cluster.kill(LEADER)
        await wait(200, "records of another leader")
        await asyncio.to_thread(racks.cluster.start_node, LEADER)
        ended.set()
        await writing
        assert committed
        await asyncio.to_thread(reader.wait, lambda values: values[-1] >= committed[-1], "the end")
    finally:
        ended.set()
        reader.end()
    racks.cluster.wait_in_sync(racks.topic)
    assert reader.values == read_all(racks.cluster, racks.topic, 1, isolation_level="read_committed")[0]
    assert reader.values == committed
