"""Batches that are damaged on a broker's disk, as the bundled client meets them: what precedes them is delivered, and the error comes once a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from barnabas.client import Producer, TopicPartition
from barnabas.client.consumer.ranges import RangeReader
from barnabas.client.errors import CorruptRecords, KafkaError
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.core.connection_config import ConnectionConfig
from barnabas.client.net.offsets import list_offsets
from barnabas.client.types import CompressionType
from barnabas.errors import ErrorCode
from barnabas.protocol.batch_layout import HEADER_SIZE
from barnabas.protocol.records import read_header
from barnabas.testing.simulation.world import Ports, World
from tests.support.simulation.workload import BOOTSTRAP, Broker

pytestmark = pytest.mark.simulation

TP = TopicPartition("t", 0)
BATCHES = 8
FIRST_MS = 1_000_000  # timestamp of the first batch; each later one has the next
ROLL_MS = 1_000
KEEPS = {"log.retention.ms": "-1", "log.message.timestamp.before.max.ms": str(2**62)}
Change = Callable[[bytearray], None]


def payload(batch: bytearray) -> None:
    for at in range(HEADER_SIZE, len(batch)):
        batch[at] ^= 0xA5


def length(batch: bytearray) -> None:
    batch[8:12] = (0).to_bytes(4)


def last_offset(batch: bytearray) -> None:
    batch[23:27] = (1_000_000).to_bytes(4)


def compressed(batch: bytearray) -> None:
    batch[HEADER_SIZE:] = bytes(len(batch) - HEADER_SIZE)


def damage(world: World, number: int, change: Change) -> None:
    """Changes a batch where it lies on the disk of the broker, which is stopped: it keeps its latest batches in memory."""
    file = world.machine("broker").disk.open("t-0/00000000000000000000.log")
    position = 0
    for _ in range(number):
        position += read_header(file.pread(HEADER_SIZE, position)).size_bytes
    batch = bytearray(file.pread(read_header(file.pread(HEADER_SIZE, position)).size_bytes, position))
    change(batch)
    file.pwrite(bytes(batch), position)
    file.close()


def after_damage(
    damages: Sequence[tuple[int, Change]],
    scene: Callable[[NetworkClient], Awaitable[Any]],
    compression: CompressionType | None = None,
) -> Any:
    """Writes batches of one record each, damages some, and returns what the scene finds with a started client."""
    with World(1) as world:
        broker = Broker(**{"num.partitions": "1", "log.roll.ms": str(ROLL_MS), **KEEPS})

        def own(ports: Ports) -> dict[str, Any]:
            return {"clock": ports.clock, "rng": ports.rng, "network": ports.network}

        async def write(ports: Ports) -> None:
            async with Producer(bootstrap_servers=BOOTSTRAP, compression_type=compression, **own(ports)) as producer:
                for number in range(BATCHES):
                    await producer.send_and_wait("t", b"x" * 50, partition=0, timestamp_ms=FIRST_MS + number)
                # So much later that the segment of the others is closed: the broker need not read it when it starts.
                await producer.send_and_wait("t", b"x", partition=0, timestamp_ms=FIRST_MS + 10 * ROLL_MS)

        async def read(ports: Ports) -> Any:
            cluster = NetworkClient(
                ConnectionConfig(bootstrap_servers=BOOTSTRAP), ports.clock, ports.rng, ports.network
            )
            await cluster.start()
            try:
                return await scene(cluster)
            finally:
                await cluster.close()

        async def main() -> Any:
            machine, client = world.machine("broker"), world.machine("client")
            machine.start(broker)
            await client.start(write)
            broker.stop()
            await machine.join()
            for number, change in damages:
                damage(world, number, change)
            machine.start(broker)
            return await client.start(read)

        return world.run(main(), time_limit_s=300)


@pytest.mark.parametrize(
    ("damages", "check_crcs", "compression"),
    [
        ([(5, payload)], True, None),
        ([(5, last_offset)], True, None),
        ([(5, length)], True, None),
        ([(5, compressed)], False, "gzip"),
        ([(5, compressed), (7, length)], False, "gzip"),
    ],
    ids=["payload", "last offset", "length", "compressed bytes", "compressed bytes before a length"],
)
def test_a_range_reader_delivers_what_precedes_a_damaged_batch_and_raises_then(
    damages: list[tuple[int, Change]], check_crcs: bool, compression: CompressionType | None
) -> None:
    async def scene(cluster: NetworkClient) -> list[int]:
        reader = RangeReader(cluster, TP, 0, BATCHES, check_crcs=check_crcs)
        found: list[int] = []
        while reader.position < 5:
            chunk = await reader.next()
            assert chunk is not None
            found += [batch.header.base_offset for batch in chunk.batches]
        for _ in range(2):
            with pytest.raises(CorruptRecords, match="after offset 5 cannot be read") as told:
                await reader.next()
            assert (told.value.offset, reader.position) == (5, 5)
        return found

    assert after_damage(damages, scene, compression) == [0, 1, 2, 3, 4]


def test_a_search_by_time_over_a_damaged_batch_fails_at_once() -> None:
    """Kafka counts CORRUPT_MESSAGE among the retriable codes, but no repetition makes a batch on a disk whole."""

    async def scene(cluster: NetworkClient) -> float:
        loop = asyncio.get_running_loop()
        assert (await list_offsets(cluster, {TP: FIRST_MS + 1}))[TP].offset == 1
        began = loop.time()
        with pytest.raises(KafkaError) as told:
            await list_offsets(cluster, {TP: FIRST_MS + 5}, timeout_ms=60_000)
        assert (told.value.code, told.value.topic, told.value.partition) == (ErrorCode.CORRUPT_MESSAGE, "t", 0)
        assert not told.value.retriable
        return loop.time() - began

    assert after_damage([(5, payload)], scene) < 1
