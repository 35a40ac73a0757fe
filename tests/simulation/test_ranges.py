"""A range reader on a simulated broker: whoever was cancelled and goes on misses nothing, and nothing comes twice."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from barnabas.client import Producer, TopicPartition
from barnabas.client.consumer.ranges import Chunk, RangeReader, fetch_together
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.core.connection_config import ConnectionConfig
from barnabas.testing.simulation.world import Ports, World
from tests.support.simulation.workload import BOOTSTRAP, Broker

RECORDS = 20
FETCH_BYTES = 100  # one batch an answer


class CancelledAt:
    """Awaits some work and cancels it at a pause: 0 is the first."""

    def __init__(self, work: Coroutine[Any, Any, Chunk | None], pause: int) -> None:
        self.work = work
        self.left = pause

    def __await__(self) -> Generator[Any, None, Chunk | None]:
        while True:
            try:
                waits_for = self.work.send(None)
                if self.left == 0:
                    self.work.throw(asyncio.CancelledError())
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # of the work
            self.left -= 1
            yield waits_for


async def write_and_read(ports: Ports, pause: int) -> list[int]:
    """The offsets of the chunks, where every other call is cancelled and made again."""
    async with Producer(
        bootstrap_servers=BOOTSTRAP, clock=ports.clock, rng=ports.rng, network=ports.network
    ) as producer:
        for number in range(RECORDS):
            await producer.send_and_wait("t", b"%d" % number, partition=0)
    cluster = NetworkClient(ConnectionConfig(bootstrap_servers=BOOTSTRAP), ports.clock, ports.rng, ports.network)
    await cluster.start()
    reader = RangeReader(cluster, TopicPartition("t", 0), 0, RECORDS, fetch_bytes=FETCH_BYTES)
    found: list[int] = []
    while reader.position < RECORDS:
        try:
            chunk = await CancelledAt(reader.next(), pause)
        except asyncio.CancelledError:
            chunk = await reader.next()
        for batch in chunk.batches if chunk is not None else ():
            found += range(batch.header.base_offset, batch.header.next_offset)
    await cluster.close()
    return found


@pytest.mark.parametrize("pause", range(5))
def test_a_cancelled_call_has_taken_nothing(pause: int) -> None:
    with World(1) as world:

        async def scene() -> list[int]:
            broker = Broker(**{"num.partitions": "1"})
            world.machine("broker").start(broker)
            return await world.machine("reader").start(lambda ports: write_and_read(ports, pause))

        assert world.run(scene()) == list(range(RECORDS))


async def read_together(ports: Ports, fetch_bytes: int) -> list[list[int]]:
    """Two partitions, and the second half of the first one, by readers whose first records come in one response."""
    async with Producer(
        bootstrap_servers=BOOTSTRAP, clock=ports.clock, rng=ports.rng, network=ports.network
    ) as producer:
        for number in range(2 * RECORDS):
            await producer.send_and_wait("t", bytes(200 * (number % 2)), partition=number % 2)
    cluster = NetworkClient(
        ConnectionConfig(bootstrap_servers=BOOTSTRAP, retry_backoff_ms=5_000),
        ports.clock,
        ports.rng,
        ports.network,
    )
    cluster.add_topics(["t"])
    await cluster.start()
    half = RECORDS // 2
    places = [(0, 0, half), (1, 0, RECORDS - 5), (0, half, RECORDS)]
    readers = [
        RangeReader(cluster, TopicPartition("t", p), start, end, fetch_bytes=fetch_bytes) for p, start, end in places
    ]
    await fetch_together(readers)
    began = ports.clock.monotonic_ms()
    found: list[list[int]] = []
    for reader in readers:
        found.append([])
        while (chunk := await reader.next()) is not None:
            for batch in chunk.batches:
                found[-1] += range(batch.header.base_offset, batch.header.next_offset)
    assert ports.clock.monotonic_ms() - began < 5_000, "a reader that got nothing asks at once"
    await cluster.close()
    return found


@pytest.mark.parametrize("fetch_bytes", [FETCH_BYTES, 1024 * 1024])
def test_readers_that_share_a_request(fetch_bytes: int) -> None:
    with World(1) as world:

        async def scene() -> list[list[int]]:
            broker = Broker(**{"num.partitions": "2"})
            world.machine("broker").start(broker)
            return await world.machine("reader").start(lambda ports: read_together(ports, fetch_bytes))

        half = RECORDS // 2
        assert world.run(scene()) == [list(range(half)), list(range(RECORDS - 5)), list(range(half, RECORDS))]
