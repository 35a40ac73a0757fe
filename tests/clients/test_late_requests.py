"""Requests that the network holds back until a later transaction is open, sent by real clients (rows 12 to 14 of what is proven).

A proxy takes one request out of its connection and cuts that; the client continues over a new one, and repeats the request. Then
the request arrives after all, over the old connection. The bundled client uses Transactions V2, librdkafka V1, where all transactions
of a producer have one epoch.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from barnabas.client import Producer, TopicPartition
from barnabas.protocol.messages.groups import OffsetFetchRequest
from barnabas.protocol.messages.shared import TopicPartitionIndexes
from barnabas.protocol.messages.transactions import DescribeTransactionsRequest
from tests.support.clients.committed import committed_values
from tests.support.clients.proxy import Proxy
from tests.support.oracle.wire import Wire
from tests.support.processes.fixtures import end, process_broker
from tests.support.processes.ports import free_ports

confluent_kafka = pytest.importorskip("confluent_kafka")

pytestmark = pytest.mark.clients

PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT_OFFSETS = 0, 24, 25, 26, 28
TIMEOUT_MS = 60_000
_names = itertools.count(1)


class Bundled:
    """Of Transactions V2."""

    async def start(self, bootstrap: str, transactional_id: str) -> None:
        self._producer = Producer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS
        )
        await self._producer.start()
        self.begin, self.commit = self._producer.begin_transaction, self._producer.commit_transaction
        self.abort, self.stop = self._producer.abort_transaction, self._producer.stop

    async def send(self, topic: str, value: bytes) -> None:
        await self._producer.send_and_wait(topic, value, partition=0)

    async def offsets(self, topic: str, offset: int, group: str) -> None:
        await self._producer.send_offsets({TopicPartition(topic, 0): offset}, group)


class Librdkafka:
    async def start(self, bootstrap: str, transactional_id: str) -> None:
        self._bootstrap = bootstrap
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TIMEOUT_MS,
                "linger.ms": 0,
            }
        )
        await asyncio.to_thread(self._producer.init_transactions, 60)

    async def begin(self) -> None:
        self._producer.begin_transaction()

    async def send(self, topic: str, value: bytes) -> None:
        failures: list[Any] = []
        self._producer.produce(topic, value, partition=0, on_delivery=lambda error, _: failures.append(error))
        assert await asyncio.to_thread(self._producer.flush, 60) == 0
        assert failures == [None]

    async def offsets(self, topic: str, offset: int, group: str) -> None:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        at = [confluent_kafka.TopicPartition(topic, 0, offset)]
        try:
            metadata = consumer.consumer_group_metadata()
            await asyncio.to_thread(self._producer.send_offsets_to_transaction, at, metadata, 60)
        finally:
            consumer.close()

    async def commit(self) -> None:
        await asyncio.to_thread(self._producer.commit_transaction, 60)

    async def abort(self) -> None:
        await asyncio.to_thread(self._producer.abort_transaction, 60)

    async def stop(self) -> None:
        pass


CLIENTS: dict[str, Callable[[], Any]] = {"barnabas": Bundled, "librdkafka": Librdkafka}


class Network:
    """A broker, and the proxy by which clients reach it."""

    def __init__(self, stack: ExitStack) -> None:
        (port,) = free_ports(1)
        self.proxy = stack.enter_context(Proxy(port))
        broker = process_broker(f"advertised.listeners=PLAINTEXT://{self.proxy.address}", port=port)
        stack.callback(end, broker.start())
        self.wire = Wire(f"127.0.0.1:{port}")


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with ExitStack() as stack:
        network = Network(stack)
        yield network
        network.wire.close()


class Run:
    """One producer with a topic of its own, and what is there in the end."""

    def __init__(self, network: Network, producer: Any, name: str) -> None:
        self.network, self.producer, self.name = network, producer, name

    async def transaction(self, value: bytes, *, commit: bool = True) -> None:
        await self.producer.begin()
        await self.producer.send(self.name, value)
        await (self.producer.commit() if commit else self.producer.abort())

    async def held(self, api_key: int, act: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[Any]]:
        """Holds the next such request back, until the client has brought `act` to its end without it; then what releases it."""
        held = self.network.proxy.hold(api_key)
        async with asyncio.timeout(60):
            await act()
        held.wait()
        return lambda: asyncio.to_thread(held.release)

    def state(self) -> str:
        described = self.network.wire.call(DescribeTransactionsRequest(transactional_ids=[self.name]), 0)
        return str(described.transaction_states[0].transaction_state)

    def values(self) -> list[bytes]:
        """What a read_committed reader is given; nothing holds it back."""
        return committed_values(self.network.wire, self.name, 0)

    def committed_offset(self, group: str) -> int:
        topics = [TopicPartitionIndexes(name=self.name, partition_indexes=[0])]
        answer = self.network.wire.call(OffsetFetchRequest(group_id=group, topics=topics), 5)
        return int(answer.topics[0].partitions[0].committed_offset)


@pytest.fixture
async def run(network: Network, request: pytest.FixtureRequest) -> AsyncIterator[Run]:
    name = f"late-{next(_names)}"
    network.wire.create_topic(name)
    network.wire.find_coordinator(name, 1)
    network.wire.find_coordinator(name, 0)
    producer = CLIENTS[request.getfixturevalue("client")]()
    await producer.start(network.proxy.address, name)
    try:
        yield Run(network, producer, name)
    finally:
        await producer.stop()


@pytest.mark.parametrize("late", ["commit", "abort"])
@pytest.mark.parametrize("outcome", ["commit", "abort"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_late_end_does_not_end_the_next_transaction(run: Run, client: str, late: str, outcome: str) -> None:
    """Row 12."""
    await run.producer.begin()
    await run.producer.send(run.name, b"first")
    release = await run.held(END, run.producer.commit if late == "commit" else run.producer.abort)
    await run.producer.begin()
    await run.producer.send(run.name, b"second")
    await release()
    assert run.state() == "Ongoing"
    await (run.producer.commit() if outcome == "commit" else run.producer.abort())
    await run.transaction(b"third")
    expected = [b"first"] * (late == "commit") + [b"second"] * (outcome == "commit") + [b"third"]
    assert run.values() == expected


@pytest.mark.parametrize("outcome", ["commit", "abort"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_late_batch_is_not_written_again(run: Run, client: str, outcome: str) -> None:
    """Row 13: neither into the transaction after it, nor where none is open and it would hang."""
    for number in range(2):
        await run.producer.begin()
        release = await run.held(PRODUCE, lambda: run.producer.send(run.name, b"first"))
        await (run.producer.commit() if outcome == "commit" else run.producer.abort())
        if number:
            await run.producer.begin()
            await run.producer.send(run.name, b"second")
        await release()
        if number:
            await run.producer.commit()
        firsts = [b"first"] * (outcome == "commit") * (number + 1)
        assert run.values() == firsts + [b"second"] * number
    assert run.state() == "CompleteCommit"


@pytest.mark.parametrize("client", ["librdkafka"])
async def test_a_late_addition_opens_no_transaction(run: Run, client: str) -> None:
    """Row 14: after the end of its transaction, and within the next one. V2 has no such request."""
    for number in range(2):
        await run.producer.begin()
        release = await run.held(ADD_PARTITIONS, lambda: run.producer.send(run.name, b"first"))
        await run.producer.commit()
        if number:
            await run.producer.begin()
            await run.producer.send(run.name, b"second")
        before = run.state()
        await release()
        assert run.state() == before
        if number:
            await run.producer.commit()
    await run.transaction(b"third")
    assert run.values() == [b"first", b"first", b"second", b"third"]


@pytest.mark.parametrize("api_key", [ADD_OFFSETS, COMMIT_OFFSETS], ids=["addition", "commit"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_late_offsets_do_not_go_back(run: Run, client: str, api_key: int) -> None:
    """Row 14 for groups: offsets of one transaction, repeated and committed, come once more within the next."""
    if client == "barnabas" and api_key == ADD_OFFSETS:
        pytest.skip("V2 has no such request")
    group = run.name
    await run.producer.begin()
    release = await run.held(api_key, lambda: run.producer.offsets(run.name, 5, group))
    await run.producer.commit()
    assert run.committed_offset(group) == 5
    await run.producer.begin()
    await run.producer.offsets(run.name, 9, group)
    await release()
    await run.producer.commit()
    assert run.committed_offset(group) == 9
    await run.transaction(b"next")
    assert run.values() == [b"next"]
